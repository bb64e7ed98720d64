"""The command ``fakeprefix``: what each subcommand says, and one line for what is wrong."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import WORKFLOW
from fakeprefix import cli, doctor
from fakeprefix.cli import main
from fakeprefix.machine.limits import usable_cores
from fakeprefix.runs.archive import pack
from fakeprefix.runs.folder import verify
from fakeprefix.trace.steps import read_steps
from sealed_run import sealed_run

COMMANDS = ("verify", "restore", "rebuild", "compare", "import", "doctor")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two sealed runs, one with its report."""
    folder = tmp_path_factory.mktemp("results")
    sealed_run(folder, "a", drawn=True)
    sealed_run(folder, "b")
    pack(folder / "a", folder / "a.tar.zst")
    return folder


@pytest.fixture
def archive(results):
    return results / "a.tar.zst"


def refused(capsys, *arguments):
    """The one line with which a command ends."""
    assert main([str(argument) for argument in arguments]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


def unusable(capsys, *arguments):
    """The one line about arguments that cannot be used."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


def test_an_archive_and_a_sealed_run_are_intact_or_not(archive, results, tmp_path, capsys):
    assert main(["verify", str(archive)]) == 0
    assert main(["verify", str(results / "b")]) == 0
    assert capsys.readouterr().out == f"{archive} is intact\n{results / 'b'} is intact\n"
    changed = sealed_run(tmp_path, "changed")
    (changed / "summary.json").write_text("{}")
    (changed / "extra.txt").write_text("")
    assert main(["verify", str(changed)]) == 1
    assert capsys.readouterr().err == "error: changed: summary.json\nerror: extra: extra.txt\n"


def test_a_damaged_archive_is_neither_intact_nor_restored(archive, tmp_path, capsys):
    damaged = tmp_path / "damaged.tar.zst"
    damaged.write_bytes(archive.read_bytes()[:-200])
    assert main(["verify", str(damaged)]) == 1
    assert "damaged or not an archive" in capsys.readouterr().err
    assert "damaged.tar.zst" in refused(capsys, "restore", damaged, "--results", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_run_is_restored_once(archive, tmp_path, capsys):
    assert main(["restore", str(archive), "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a'}\n"
    assert verify(tmp_path / "a") == []
    assert "exists already" in refused(capsys, "restore", archive, "--results", tmp_path)


def test_a_run_is_rebuilt_beside_the_sealed_one(results, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["rebuild", str(results / "a")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("results/rebuilt/a/report.html: ") and "files are as they were sealed" in said
    assert (tmp_path / "results" / "rebuilt" / "a" / "report.html").is_file()


def test_runs_are_compared_with_warnings_on_stderr(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "write_comparison", lambda runs, output: [f"{len(runs)} runs", "odd"])
    assert main(["compare", str(results / "a"), str(results / "b"), "--output", str(tmp_path / "c")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'c' / 'compare.html'}\n"
    assert said.err == "warning: 2 runs\nwarning: odd\n"


LINE = {"task_id": "t1", "step": 0, "prefix_tokens": 300, "new_tokens": 48}


def test_a_log_becomes_steps_that_a_run_can_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [LINE, LINE | {"step": 1, "prefix_tokens": 348, "new_tokens": 64}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["import", "log.jsonl"]) == 0
    assert capsys.readouterr().out == "log-steps/steps.parquet: 2 steps of format steps\n"
    steps = read_steps(tmp_path / "log-steps" / "steps.parquet")
    assert [(step.prefix_tokens, step.new_tokens) for step in steps] == [(300, 48), (348, 64)]
    assert "exists already" in refused(capsys, "import", "log.jsonl")
    assert main(["import", "log-steps/steps.parquet", "--output", "again"]) == 0
    assert read_steps(tmp_path / "again" / "steps.parquet") == steps


def test_records_that_cannot_be_used_stop_the_import_or_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"new_tokens": -1}) + "\n")
    assert "log.jsonl" in refused(capsys, "import", "log.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl"]
    assert main(["import", "log.jsonl", "--skip"]) == 0
    said = capsys.readouterr()
    assert said.out == "log-steps/steps.parquet: 1 steps of format steps\n"
    assert said.err.startswith("warning: 1 records were skipped; the first: ")


def test_the_doctor_names_what_there_is_and_fails_only_for_what_is_needed(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.out.splitlines()] == [
        "CPU",
        "load",
        "memory",
        "disk",
        "tools",
        "CUDA",
        "Vulkan",
        "engine",
    ]
    assert f"{usable_cores()} usable cores" in said.out
    assert "tiny-hybrid" in said.out
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["doctor"]) == 1
    assert "error: tools: no C++ compiler: no-such-compiler is not installed" in capsys.readouterr().err


def test_the_doctor_says_that_a_disk_is_too_small(monkeypatch, capsys):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: SimpleNamespace(free=2**30))
    assert main(["doctor"]) == 1
    assert "error: disk: the engine needs about 4.00 GiB; make room" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["import", "chat.jsonl"], "give --model FILE.gguf"),
        (["import", "chat.jsonl", "--model", "file"], "model.path: file"),
        (["verify", "nowhere.tar.zst"], "nowhere.tar.zst: no such archive"),
        (["verify", "."], "is not sealed"),
        (["restore", "nowhere.tar.zst"], "nowhere.tar.zst: no such archive"),
        (["restore", "."], "no such archive"),
        (["rebuild", "nowhere"], "nowhere is not sealed"),
        (["rebuild", "file"], "file is not sealed"),
        (["compare"], "at least two"),
        (["compare", "nowhere", "file"], "nowhere is not sealed"),
    ],
)
def test_what_is_missing_or_of_the_wrong_kind_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("text")
    chat = {"task_id": "t1", "messages": [{"role": "user", "content": "Go on."}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    assert message in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND; see fakeprefix --help"),
        (["verfy", "a"], "invalid choice: 'verfy'"),
        (["verify"], "required: ARCHIVE; see fakeprefix verify --help"),
        (["verify", ""], "is empty; name a file or folder"),
        (["restore"], "required: ARCHIVE"),
        (["rebuild"], "required: RUN"),
        (["import"], "required: LOG"),
        (["import", "a", "--format", "odd"], "invalid choice: 'odd'"),
    ],
)
def test_unusable_arguments_are_one_line_that_names_the_help(arguments, message, capsys):
    assert message in unusable(capsys, *arguments)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"Example: fakeprefix {command}" in said
    assert len(said.splitlines()) < 30


def test_a_disk_that_cannot_be_written_to_is_one_line(archive, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'}" in refused(capsys, "restore", archive, "--results", tmp_path / "file")


def test_ctrl_c_ends_without_a_traceback(archive, monkeypatch, capsys):
    def interrupted(_archive):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "verify_archive", interrupted)
    assert main(["verify", str(archive)]) == 130
    assert capsys.readouterr().err == ""


def test_the_module_is_the_same_command(archive):
    done = subprocess.run(
        [sys.executable, "-m", "fakeprefix", "verify", str(archive)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(WORKFLOW)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{archive} is intact\n", "")
