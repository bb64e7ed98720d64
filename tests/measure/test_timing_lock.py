import os
import subprocess
import sys
import time
from itertools import pairwise

from conftest import WORKFLOW
from fakeprefix.measure.timing_lock import timing_slot

HOLD = """
import sys, time
from pathlib import Path
from fakeprefix.measure.timing_lock import timing_slot
with timing_slot(Path(sys.argv[1])):
    start = time.time()
    time.sleep(0.7)
    print(start, time.time())
"""


def intervals_overlap(intervals):
    ordered = sorted(intervals)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))


def test_two_processes_never_hold_the_slot_together(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    environment = os.environ | {"PYTHONPATH": str(WORKFLOW)}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    intervals = [tuple(map(float, process.communicate(timeout=30)[0].split())) for process in processes]
    assert len(intervals) == 3
    assert not intervals_overlap(intervals)


def test_a_killed_process_frees_the_slot(tmp_path):
    command = [sys.executable, "-c", HOLD.replace("0.7", "60"), str(tmp_path / "lock")]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(WORKFLOW)})
    time.sleep(1.5)
    process.kill()
    process.wait()
    started = time.monotonic()
    with timing_slot(tmp_path / "lock"):
        assert time.monotonic() - started < 5
