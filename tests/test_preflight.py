"""What is missing on a fresh machine is said in one line, before anything is installed."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

TOOLS = ("sh", "git", "c++", "as", "ld", "cc1plus", "echo")


@pytest.fixture
def tools(tmp_path):
    """A folder with links to the usual programs, to be used as the whole PATH."""
    for name in TOOLS:
        if found := shutil.which(name):
            (tmp_path / name).symlink_to(found)
    (tmp_path / "python3").symlink_to(sys.executable)
    return tmp_path


def preflight(tools, **environment):
    environment = {"PATH": str(tools), "PYTHON": "python3", "HOME": os.environ.get("HOME", "/")} | environment
    return subprocess.run([str(ROOT / "workflow" / "preflight.sh")], capture_output=True, text=True, env=environment)


def refused(done, message):
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_a_complete_machine_passes_without_a_word(tools):
    done = preflight(tools)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("missing", "message"),
    [("git", "git is not installed"), ("c++", "no C++ compiler"), ("python3", "python3 is not installed")],
)
def test_a_missing_program_is_named_with_a_remedy(tools, missing, message):
    (tools / missing).unlink()
    refused(preflight(tools), message)


def test_a_python_that_is_too_old_is_refused(tools):
    (tools / "python3").unlink()
    (tools / "python3").write_text('#!/bin/sh\n[ "$1" = "--version" ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    (tools / "python3").chmod(0o755)
    refused(preflight(tools), "Python 3.9.2 is too old; Python 3.11 or newer is needed")


def test_a_compiler_without_sanitizers_is_refused(tools):
    (tools / "c++").unlink()
    (tools / "c++").write_text("#!/bin/sh\nexit 1\n")
    (tools / "c++").chmod(0o755)
    refused(preflight(tools), "sanitizers")
