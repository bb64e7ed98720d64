"""Runs that are broken on purpose and continued: nothing lost, nothing doubled, nothing half taken for whole."""

import os
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
from conftest import contract_verdict
from fakeprefix.measure.records import read_records
from fakeprefix.runs.folder import verify
from fakeprefix.storage import read_json
from small_run import CUT_DOWN, SNAKEMAKE, copy_project, environment_of_a_user

REPETITIONS = 8
# of prefixes of 300 and 900 tokens, 512 wide
BUCKETS = (2, 3)
BROKEN = CUT_DOWN | {
    "run_name": "broken",
    "trace": {"source": "grid", "grid": {"prefix_tokens": [300, 900], "new_tokens": [256]}},
    "measure": {
        "arms": ["fake_prefix"],
        "repetitions": {"fake_prefix": REPETITIONS, "depth_rate": 0},
        "fidelity": {"prefix_tokens": []},
        "probe": {"prefix_tokens": 256, "new_tokens": 32},
    },
}
# a job notices within half a second that its starter is gone, and its server has three to end
SOON_S = 8.0

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A run that has its plan and has not measured anything."""
    contract_verdict()
    folder = copy_project(tmp_path_factory.mktemp("prepared"))
    (folder / "overlay.yaml").write_text(yaml.safe_dump(BROKEN))
    status, output = finish(folder, "smoke")
    assert status == 0, output[-4000:]
    return folder


@pytest.fixture(scope="module")
def finished(prepared, tmp_path_factory):
    """A sealed run."""
    folder = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("finished") / "project", symlinks=True))
    status, output = finish(folder)
    assert status == 0, output[-4000:]
    return folder


@pytest.fixture
def project(prepared, tmp_path):
    return Path(shutil.copytree(prepared, tmp_path / "project", symlinks=True))


def start(folder, *arguments, limit=lambda: None):
    """Snakemake as the leader of a group, as a terminal would start it.

    Args:
        limit: called in the new process, to restrict it.
    """

    def set_up():
        # ignored by all that a script has put into the background, these tests among them
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        limit()

    return subprocess.Popen(
        [*SNAKEMAKE, *arguments, "--configfile", "overlay.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment_of_a_user(),
        start_new_session=True,
        preexec_fn=set_up,
    )


def finish(folder, *arguments):
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def servers(folder):
    """Engine servers that were started in this checkout."""
    found = []
    for process in psutil.process_iter(["name", "cwd"]):
        if process.info["name"] == "llama-server" and process.info["cwd"] == str(folder):
            found.append(process)
    return found


def wait_until(condition, what, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


def partial_rows(folder, bucket, least):
    """The rows of a bucket that is being measured, when there are so many."""
    path = only_run(folder) / "raw" / "fake_prefix" / f".{bucket}.partial.jsonl"
    return path if path.exists() and path.read_text().count("\n") >= least else None


def second_bucket(folder, least=3):
    """Files of the bucket that is finished and of the one that is being measured, once that has a few rows."""
    raw = only_run(folder) / "raw" / "fake_prefix"
    for bucket, other in (BUCKETS, BUCKETS[::-1]):
        if (raw / f"{other}.jsonl").exists() and partial_rows(folder, bucket, least):
            return raw / f"{other}.jsonl", raw / f"{bucket}.jsonl"
    return None


def snapshot(file):
    return file, file.stat().st_mtime_ns, file.read_bytes()


def only_run(folder):
    (run,) = folder.glob("results/*_broken")
    return run


def stop_while_second_bucket_is_measured(folder, how):
    """Start a run, break it when the second bucket has a few rows; what it printed, and the first bucket's state."""
    process = start(folder)
    try:
        first, second = wait_until(lambda: second_bucket(folder), "rows of the second bucket")
        state = snapshot(first)
        how(process)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    wait_until(lambda: not servers(folder), "no server is left", SOON_S)
    assert process.returncode != 0
    assert not second.exists(), "a partial file has the final name"
    assert not (only_run(folder) / "manifest.json").exists()
    return output, state, second


def assert_continues(folder, state):
    """Rerunning needs no flag, keeps the first bucket as it is, and has every repetition once."""
    status, output = finish(folder)
    assert status == 0, output[-4000:]
    run = only_run(folder)
    assert snapshot(state[0]) == state, "a finished bucket was measured again"
    assert_complete(run)


def assert_complete(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    counted = rows[rows.arm == "fake_prefix"]
    assert (rows.status == "ok").all()
    keys = Counter(counted[["task_id", "step", "repetition"]].itertuples(index=False, name=None))
    assert set(keys.values()) == {1}
    assert len(keys) == 2 * REPETITIONS
    assert verify(run) == []


def kill_server(folder):
    def kill(_):
        for server in servers(folder):
            server.kill()

    return kill


def test_a_killed_server_is_an_error_row_and_the_run_continues(project):
    keys = []

    def kill(process):
        keys.extend(server.environ()["LLAMA_API_KEY"].encode() for server in servers(project))
        kill_server(project)(process)

    output, state, second = stop_while_second_bucket_is_measured(project, kill)
    assert "Traceback" not in output
    earlier = list(read_records(second.with_name(f".{second.stem}.partial.jsonl")))
    assert earlier[-1].status == "error"
    assert earlier[-1].prompt_ms is None
    assert_continues(project, state)
    (superseded,) = only_run(project).glob(f"raw/superseded/fake_prefix/{second.stem}.*.jsonl")
    assert list(read_records(superseded)) == earlier
    # neither the run folder, which is what an archive has, nor a log has the key
    assert keys
    written = [path for path in (project / "results").rglob("*") if path.is_file()]
    assert not [path for path in written for key in keys if key in path.read_bytes()]
    assert not any(key.decode() in output for key in keys)


def test_ctrl_c_leaves_no_server_and_no_lock(project):
    _, state, _ = stop_while_second_bucket_is_measured(project, lambda process: os.killpg(process.pid, signal.SIGINT))
    assert_continues(project, state)


def test_kill_9_of_snakemake_leaves_no_server_and_its_lock_is_freed(project):
    _, state, _ = stop_while_second_bucket_is_measured(project, lambda process: process.kill())
    assert list((project / ".snakemake" / "locks").iterdir()), "nothing was locked, so nothing is shown"
    assert_continues(project, state)


def test_a_server_killed_at_start_is_said_so_and_the_run_continues(project):
    process = start(project)
    seen = wait_until(lambda: servers(project), "a server")
    for server in seen:
        server.kill()
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "status -9" in output or "no answer" in output
    assert "Traceback" not in output
    status, output = finish(project)
    assert status == 0, output[-4000:]
    assert_complete(only_run(project))


def test_a_second_run_in_the_same_checkout_is_refused_and_the_first_goes_on(project):
    process = start(project)
    try:
        wait_until(lambda: any(partial_rows(project, bucket, 1) for bucket in BUCKETS), "rows of a bucket")
        status, output = finish(project)
        assert status != 0
        assert "lock" in output.lower()
        first, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, first[-4000:]
    assert_complete(only_run(project))


def test_two_checkouts_take_turns_on_one_machine(project, tmp_path):
    other = Path(shutil.copytree(project, tmp_path / "other", symlinks=True))
    processes = [start(folder) for folder in (project, other)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs[0][-2000:] + outputs[1][-2000:]
    spans = []
    for folder in (project, other):
        assert_complete(only_run(folder))
        rows = pd.read_parquet(only_run(folder) / "measurements.parquet")
        begin = pd.to_datetime(rows.started_at)
        end = begin + pd.to_timedelta(rows.wall_s, unit="s")
        spans += [(begin[group.index].min(), end[group.index].max()) for _, group in rows.groupby("job")]
    assert len(spans) == 4
    assert all(later[0] > earlier[1] for earlier, later in pairwise(sorted(spans)))


@pytest.mark.parametrize("lost", [["raw"], ["trace", "measurements.parquet"], ["analysis", "raw/fake_prefix/3.jsonl"]])
def test_a_half_deleted_run_is_made_whole_again(finished, tmp_path, lost):
    project = Path(shutil.copytree(finished, tmp_path / "project", symlinks=True))
    run = only_run(project)
    kept = run / "raw" / "fake_prefix" / "2.jsonl"
    before = kept.stat().st_mtime_ns
    for name in [*lost, "manifest.json", "report.html"]:
        if (run / name).is_dir():
            shutil.rmtree(run / name)
        else:
            (run / name).unlink()
    status, output = finish(project)
    assert status == 0, output[-4000:]
    assert_complete(run)
    if lost == ["analysis", "raw/fake_prefix/3.jsonl"]:
        assert kept.stat().st_mtime_ns == before, "a finished bucket was measured again"


@contextmanager
def small_disk(folder, size):
    """A file system with so much room; skips the test where none can be made."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_one_line_and_the_run_continues_when_there_is_room(project):
    elsewhere = (project / "results").rename(project / "elsewhere")
    with small_disk(project / "results", "24m"):
        shutil.copytree(elsewhere, project / "results", symlinks=True, dirs_exist_ok=True)
        filler = project / "results" / "filler"
        process = start(project)
        first, second = wait_until(lambda: second_bucket(project), "rows of the second bucket")
        state = snapshot(first)
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"\0" * 4096)
        output, _ = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "No space left on device" in output
        assert not second.exists()
        filler.unlink()
        assert_continues(project, state)
        # what was cut off in the middle of a line stays what it is, beside the rows
        assert list(only_run(project).glob(f"raw/superseded/fake_prefix/{second.stem}.*.jsonl"))


def test_a_parquet_file_that_does_not_fit_is_one_line_and_no_file(project):
    status, output = finish(project, "plan")
    assert status == 0, output[-4000:]
    run = only_run(project)
    plan = run / "trace" / "plan.parquet"
    plan.unlink()

    def limit():
        # as a full disk for every larger file
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))

    process = start(project, "plan", "--nolock", limit=limit)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert not plan.exists()
    assert not [path for path in plan.parent.iterdir() if path.suffix == ".tmp"]
    status, output = finish(project)
    assert status == 0, output[-4000:]
    assert read_json(run / "trace" / "plan.json")["n_measured"] == 2
    assert_complete(run)
