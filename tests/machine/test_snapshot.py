import subprocess

import pytest
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


def test_missing_commands_and_files_give_a_reason_instead_of_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(host.shutil, "which", lambda name: None)
    assert host.run_command("lscpu") == {"absent": "lscpu is not installed"}
    assert "absent" in host.read_file(tmp_path / "nothing")
    taken = host.write_snapshot(tmp_path, {})
    assert taken["gpus"] == {
        "nvidia": {"absent": "nvidia-smi is not installed"},
        "vulkan": {"absent": "vulkaninfo is not installed"},
    }
    assert (tmp_path / "lscpu.txt").read_text().startswith("# absent: lscpu")


def test_a_failing_command_gives_a_reason():
    assert "status 1" in host.run_command("false")["absent"]


def test_an_item_that_fails_does_not_abort_the_snapshot():
    assert host.guarded(lambda: 1 / 0) == {"absent": "ZeroDivisionError: division by zero"}


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor : 0\nmodel name\t: A CPU\nprocessor : 1\nmodel name\t: A CPU", "A CPU"),
        ("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c", "implementer 0x41, part 0xd0c"),
        ("processor : 0", {"absent": "/proc/cpuinfo has no model name"}),
        ({"absent": "gone"}, {"absent": "gone"}),
    ],
)
def test_the_cpu_model_has_a_fallback(cpuinfo, model):
    assert host.cpu_model(cpuinfo) == model


@pytest.mark.parametrize(
    ("content", "quota"), [("max 100000", "unlimited"), ("150000 100000", 1.5), ("x", {"absent": "cpu.max is 'x'"})]
)
def test_the_cgroup_quota_is_in_cpus(content, quota):
    assert host.cgroup_quota(content) == quota


def test_a_quota_below_the_visible_cores_is_warned_about(monkeypatch):
    monkeypatch.setattr(host, "read_file", lambda path: "50000 100000" if "cpu.max" in str(path) else "x: y")
    assert "0.5 CPUs" in host.cpu()["warnings"][0]


def git(folder, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True, capture_output=True
    )


def test_a_repository_is_described_with_changes_and_untracked_files_apart(tmp_path):
    git(tmp_path, "init")
    assert "absent" in host.repository(tmp_path)
    (tmp_path / "a").write_text("1\n")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "one")
    assert host.repository(tmp_path)["dirty"] is False
    (tmp_path / "a").write_text("2\n")
    (tmp_path / "b").write_text("x")
    state = host.repository(tmp_path)
    assert (state["dirty"], state["changed_files"], state["untracked_files"]) == (True, 1, 1)
    assert "+2" in host.repository_diff(tmp_path)


def test_no_repository_and_a_foreign_one_never_abort(tmp_path, monkeypatch):
    assert host.repository(tmp_path)["absent"].endswith("is not a git repository")
    assert "does not exist" in host.repository(tmp_path / "gone")["absent"]
    assert host.repository_diff(tmp_path) == ""

    def dubious(*arguments, **options):
        raise host.git.GitCommandError("git", 128, "fatal: detected dubious ownership in repository")

    monkeypatch.setattr(host.git, "Repo", dubious)
    assert "dubious ownership" in host.repository(tmp_path)["absent"]
