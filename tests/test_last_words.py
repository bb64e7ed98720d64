"""What ended a run is the last line on the terminal."""

import os
import subprocess
import sys

import pytest
from conftest import WORKFLOW
from fakeprefix.last_words import ERRORS_KEY, say_last

MAIN = """
import subprocess, sys
from pathlib import Path
from fakeprefix.last_words import collect_errors, say_last
collect_errors(Path(sys.argv[1]))
say = "from fakeprefix.last_words import say_last; say_last('no room')"
for _ in range(2):
    subprocess.run([sys.executable, "-c", say], check=True)
sys.stderr.write("a report of what failed\\n")
sys.exit(1)
"""


def test_what_a_job_says_comes_once_and_behind_everything_else(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(WORKFLOW)}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, str(tmp_path / "state")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert done.stderr == "a report of what failed\nerror: no room\n"
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("path", ["", "nowhere.txt"])
def test_where_nobody_collects_nothing_is_written(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ERRORS_KEY, path)
    say_last("no room")
    assert list(tmp_path.iterdir()) == []
