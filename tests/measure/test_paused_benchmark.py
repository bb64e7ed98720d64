import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from fakeprefix.errors import MeasureError
from fakeprefix.measure import paused_benchmark
from fakeprefix.measure.paused_benchmark import PausedBenchmark, process_seconds
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.pausing import pause_problem, stop

SETTINGS = EngineSettings(2, 2048, 512, "on", "f16", "f16", 4096)
SAMPLE_S = 0.12

# says and does what llama-bench does, in no time but that of a sample; a stop stops its clock no more than its own
FAKE = f"""\
import json, os, sys, time
if "--help" in sys.argv: print("--progress"); sys.exit()
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
size, depth, repetitions = (int(options[name]) for name in ("--n-prompt", "--n-depth", "--repetitions"))
def say(words): print(f"llama-bench: benchmark 1/1: {{words}}", file=sys.stderr, flush=True)
say("starting"); say("warmup prompt run")
samples = []
for number in range(1, repetitions + 1):
    if depth: say(f"depth run {{number}}/{{repetitions}}")
    started = time.monotonic_ns()
    say(f"prompt run {{number}}/{{repetitions}}")
    while time.monotonic_ns() < started + {SAMPLE_S} * 1e9: pass
    samples.append(time.monotonic_ns() - started + WRONG_NS)
    RESTORE
print(json.dumps([{{"n_prompt": size, "n_gen": 0, "n_depth": depth, "samples_ns": samples}}]))
"""


def fake(tmp_path, restore="", wrong_ns="0", change=("", "")):
    text = FAKE.replace("RESTORE", restore or "pass").replace("WRONG_NS", wrong_ns).replace(*change)
    path = tmp_path / "llama-bench"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def paused(binary, tmp_path, depth=256, n_clean=3, **options):
    log = tmp_path / "bench.log"
    return PausedBenchmark(binary, SETTINGS, tmp_path / "model", 64, depth, n_clean, log, 10.0, **options)


def test_samples_between_two_pauses_are_clean_and_stopped_ones_are_not(tmp_path):
    taken = []
    with paused(fake(tmp_path), tmp_path) as bench:
        for _ in range(3):
            time.sleep(2 * SAMPLE_S)
            taken.append(bench.clean_sample())
        samples = bench.finish()
    assert taken == sorted(set(taken))
    assert len(samples) == bench.repetitions
    clean = {sample.number: sample for sample in samples if sample.clean}
    assert set(taken) <= set(clean)
    for number in taken:
        assert clean[number].seen_ms == pytest.approx(clean[number].own_ms, abs=5 + clean[number].late_ms)
        # the one in front was stopped for longer than it takes
        assert samples[number - 2].own_ms > 2 * SAMPLE_S * 1000
        assert not samples[number - 2].clean
    assert statistics.median(sample.own_ms for sample in clean.values()) < 2 * SAMPLE_S * 1000


def test_it_stands_still_between_samples(tmp_path):
    with paused(fake(tmp_path), tmp_path) as bench:
        process = psutil.Process(bench.process.pid)
        for _ in range(2):
            assert process.status() == psutil.STATUS_STOPPED
            used = process_seconds(process.pid)
            time.sleep(0.1)
            assert process_seconds(process.pid) == used
            assert bench.clean_sample()


def test_what_restoring_the_cells_takes_is_no_disagreement_of_the_clocks(tmp_path):
    with paused(fake(tmp_path, restore="time.sleep(0.03)"), tmp_path) as bench:
        taken = [bench.clean_sample() for _ in range(3)]
        samples = bench.finish()
    clean = [sample for sample in samples if sample.clean]
    assert {sample.number for sample in clean} >= set(taken)
    assert statistics.median(sample.seen_ms - sample.own_ms for sample in clean) > 25


def test_a_clock_that_disagrees_is_an_error(tmp_path):
    with (
        pytest.raises(MeasureError, match=r"llama-bench says that sample \d took .* its times cannot be used"),
        paused(fake(tmp_path, wrong_ns="20_000_000"), tmp_path, depth=0) as bench,
    ):
        bench.clean_sample()
        bench.finish()


def test_a_line_that_was_read_late_makes_one_sample_unclean(tmp_path):
    sample = paused_benchmark.BenchSample
    samples = [
        sample(1, 100.0, 102.0, True, 0.0, None),
        sample(2, 100.0, 109.0, True, 0.0, None),
        sample(3, 100.0, 101.5, True, 0.0, None),
        # this process was kept from running
        sample(4, 100.0, 110.0, True, 3.5, None),
        sample(5, 600.0, 602.0, False, 0.0, None),
        sample(6, 100.0, None, False, 0.0, None),
    ]
    agreed = paused(fake(tmp_path), tmp_path)._agreed(samples)
    assert [sample.number for sample in agreed if sample.clean] == [1, 3, 4]


def test_when_no_sample_is_left_there_is_none(tmp_path):
    with paused(fake(tmp_path), tmp_path, n_clean=1) as bench:
        assert bench.clean_sample() == 2
        assert bench.clean_sample() is None
        assert len(bench.finish()) == 4


def test_the_cpu_time_of_a_server_that_should_be_idle_is_seen(tmp_path):
    program = {True: "while True: pass", False: "import time; time.sleep(60)"}
    shares = {}
    for busy, code in program.items():
        server = subprocess.Popen([sys.executable, "-S", "-c", code])
        try:
            with paused(fake(tmp_path), tmp_path, n_clean=2, idle_pid=server.pid) as bench:
                taken = [bench.clean_sample() for _ in range(2)]
                shares[busy] = [sample.idle_share for sample in bench.finish() if sample.number in taken]
        finally:
            server.kill()
            server.wait()
    assert max(shares[False]) < 0.01
    assert min(shares[True]) > 0.02
    assert process_seconds(server.pid) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('say("starting")', 'print("no such model", file=sys.stderr); sys.exit(3)'), r"status 3: no such model"),
        (("samples = []", "sys.exit(4)"), r"llama-bench ended with status 4"),
        (('"n_prompt": size', '"n_prompt": size + 1'), r"llama-bench measured \(65, 0, 256, 4\), asked was \(64, 0"),
        (("print(json.dumps", "print(str"), r"its output is not what was asked for"),
        (("    pass\nprint", "    sys.exit(5)\nprint"), r"ended with status 5"),
    ],
)
def test_a_benchmark_that_fails_is_told_in_one_line(tmp_path, change, message):
    binary = fake(tmp_path, change=change)
    with pytest.raises(MeasureError, match=message) as error, paused(binary, tmp_path, n_clean=1) as bench:
        bench.clean_sample()
        bench.finish()
    assert "\n" not in str(error.value)


def test_a_benchmark_that_says_nothing_is_not_waited_for_longer_than_told(tmp_path):
    bench = paused(fake(tmp_path, change=("samples = []", "time.sleep(60)")), tmp_path)
    bench.timeout_s = 0.5
    with pytest.raises(MeasureError, match=r"said nothing for 0\.5 s"), bench:
        pass
    assert not psutil.pid_exists(bench.process.pid)


def test_nothing_is_left_when_an_error_ends_it(tmp_path):
    with pytest.raises(ZeroDivisionError), paused(fake(tmp_path), tmp_path) as bench:
        assert psutil.Process(bench.process.pid).status() == psutil.STATUS_STOPPED
        raise ZeroDivisionError
    assert not psutil.pid_exists(bench.process.pid)


# a job that ends of SIGTERM cleans up, one that is killed cannot
@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_stopped_benchmark_does_not_outlive_the_process_that_stopped_it(tmp_path, way):
    program = f"""\
    import signal, sys, time
    from pathlib import Path
    from fakeprefix.measure.paused_benchmark import PausedBenchmark
    from fakeprefix.server.engine_settings import EngineSettings
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # in a background job of a shell it is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = Path({str(tmp_path)!r})
    settings = EngineSettings(2, 2048, 512, "on", "f16", "f16", 4096)
    with PausedBenchmark(here / "llama-bench", settings, here / "model", 64, 0, 3, here / "log", 10.0) as bench:
        print(bench.process.pid, flush=True)
        time.sleep(60)
    """
    fake(tmp_path)
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = int(parent.stdout.readline())
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    parent.send_signal(way)
    parent.wait(timeout=10)
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def test_a_benchmark_that_is_missing_or_too_old_or_cannot_be_paused_is_said_beforehand(tmp_path, monkeypatch):
    assert "is missing; build the engine" in pause_problem(tmp_path / "llama-bench")
    old = fake(tmp_path, change=('print("--progress")', 'print("no such thing")'))
    assert "has no --progress" in pause_problem(old)
    binary = fake(tmp_path)
    assert pause_problem(binary) == ""
    kill = os.kill
    monkeypatch.setattr(
        "fakeprefix.server.pausing.os.kill", lambda pid, sign: None if sign == signal.SIGSTOP else kill(pid, sign)
    )
    monkeypatch.setattr("fakeprefix.server.pausing.STOP_TIMEOUT_S", 0.1)
    assert "processes cannot be paused here" in pause_problem(binary)


def test_a_missing_benchmark_is_one_line(tmp_path):
    with (
        pytest.raises(MeasureError, match=r"llama-bench cannot be started: .*No such file"),
        paused(tmp_path / "llama-bench", tmp_path),
    ):
        pass


def test_a_process_that_has_ended_is_not_stopped():
    process = subprocess.Popen(["true"])
    time.sleep(0.2)
    assert stop(process.pid) is False
    assert process.wait() == 0


@pytest.mark.engine
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("depth", [0, 1024])
def test_the_real_benchmark_can_be_paused(fast_bench, tiny_model, tmp_path, threads, depth):
    settings = EngineSettings(threads, 2048, 512, "on", "f16", "f16", 2048)
    taken = []
    with PausedBenchmark(fast_bench, settings, tiny_model, 128, depth, 4, tmp_path / "log", 120.0) as bench:
        for _ in range(4):
            time.sleep(0.3)
            taken.append(bench.clean_sample())
        samples = bench.finish()
    assert pause_problem(fast_bench) == ""
    assert not psutil.pid_exists(bench.process.pid)
    assert None not in taken
    assert {sample.number for sample in samples if sample.clean} >= set(taken)
    straddled = [samples[number - 2].own_ms for number in taken]
    clean = [samples[number - 1].own_ms for number in taken]
    # a pause of 0.3 s is in all of the one, and in none of the other
    assert min(straddled) > 300
    assert statistics.median(clean) < statistics.median(straddled) - 150
