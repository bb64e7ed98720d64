from fakeprefix.machine import commands


def test_missing_commands_and_files_give_a_reason_instead_of_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    assert commands.run_command("lscpu") == {"absent": "lscpu is not installed"}
    assert "absent" in commands.read_file(tmp_path / "nothing")


def test_a_failing_command_gives_a_reason():
    assert "status 1" in commands.run_command("false")["absent"]
