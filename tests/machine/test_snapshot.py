from fakeprefix.machine import snapshot as host


def test_a_snapshot_has_every_part_and_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    taken = host.write_snapshot(tmp_path, {"here": tmp_path})
    assert set(taken) >= {"uname", "cpu", "memory", "compilers", "gpus", "load_average", "repositories"}
    assert taken["environment"]["OMP_NUM_THREADS"] == "3"
    for path in tmp_path.iterdir():
        assert "hunter2" not in path.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {
        "snapshot.json",
        "uname.txt",
        "lscpu.txt",
        "free.txt",
        "df.txt",
        "packages.txt",
    }


def test_a_snapshot_without_any_command_has_reasons_instead(tmp_path, monkeypatch):
    monkeypatch.setattr("fakeprefix.machine.commands.shutil.which", lambda name: None)
    taken = host.write_snapshot(tmp_path, {})
    assert taken["gpus"] == {
        "nvidia": {"absent": "nvidia-smi is not installed"},
        "vulkan": {"absent": "vulkaninfo is not installed"},
    }
    assert (tmp_path / "lscpu.txt").read_text().startswith("# absent: lscpu")


def test_an_item_that_fails_does_not_abort_the_snapshot():
    assert host.guarded(lambda: 1 / 0) == {"absent": "ZeroDivisionError: division by zero"}
