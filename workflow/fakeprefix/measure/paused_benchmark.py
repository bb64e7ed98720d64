"""``llama-bench`` beside the server: one process, stopped while the server takes its turns."""

import contextlib
import json
import math
import os
import re
import select
import signal
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from fakeprefix.errors import MeasureError
from fakeprefix.machine.commands import kept_environment
from fakeprefix.machine.counters import schedule
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.pausing import go_on, stop
from fakeprefix.server.process import ENVIRONMENT_KEPT, child_setup, last_lines

PROGRESS_LINE = re.compile(rb"benchmark \d+/\d+: (depth|prompt) run (\d+)/\d+")
# what its clock and ours may differ by, besides restoring the cells
MAX_CLOCK_DIFFERENCE_MS = 5.0
# when the next sample is stopped, as a share of the shortest one so far: that it goes on for a while before the
# clean one, which it warms up, and has not ended when it is stopped, though the machine be faster suddenly
STOPPED_AFTER = 0.25


@dataclass(frozen=True)
class BenchSample:
    """One repetition of the benchmark.

    Attributes:
        number: from 1.
        own_ms: by its own clock, which counts.
        seen_ms: by ours, from its progress line to the next one, with the restoring of the cells for the next;
            None of the last one, which has no next.
        clean: it was not stopped in between, and both clocks agree.
        late_ms: its lines may have been read late by so much, since this process was kept from running.
        idle_share: CPU time of the server over this time, which should be idle; None where that is not watched.
    """

    number: int
    own_ms: float
    seen_ms: float | None
    clean: bool
    late_ms: float
    idle_share: float | None


@dataclass(frozen=True)
class _Line:
    """When a progress line was read, in seconds.

    Attributes:
        at_s: by a clock that is never set.
        waited_s: since the line before it this process was kept from running for so long, and read it late by no more.
        idle_s: CPU time of the idle server then.
    """

    at_s: float
    waited_s: float
    idle_s: float | None


class PausedBenchmark:
    """A context manager that starts the benchmark, stops it inside its first sample, and ends it whatever happens.

    A stopped process cannot be left behind: the kernel kills it when this process ends, and leaving kills it.

    Args:
        binary: ``llama-bench``.
        settings: those of the server.
        model: the model.
        size: tokens of a sample.
        depth: cells that it computes first, and restores before every sample.
        n_clean: how often `clean_sample` is going to be called.
        log_path: gets its messages.
        timeout_s: longest time for its start, for the depth, and for a sample.
        idle_pid: the server, to see that it is idle during samples.
    """

    def __init__(
        self,
        binary: Path,
        settings: EngineSettings,
        model: Path,
        size: int,
        depth: int,
        n_clean: int,
        log_path: Path,
        timeout_s: float,
        idle_pid: int | None = None,
    ) -> None:
        self.size, self.depth, self.timeout_s = size, depth, timeout_s
        # one that is stopped before every clean one, one behind the last, and some for those stopped too late
        self.repetitions = 2 * n_clean + 2 + n_clean // 8
        self.command = [str(binary), "--model", str(model), *settings.bench_arguments()]
        self.command += ["--n-prompt", str(size), "--n-gen", "0", "--n-depth", str(depth)]
        self.command += ["--repetitions", str(self.repetitions), "--output", "json", "--progress"]
        self.environment = kept_environment(*ENVIRONMENT_KEPT) | {"OMP_NUM_THREADS": str(settings.threads)}
        self.log_path, self.idle_pid = log_path, idle_pid
        self._starts: dict[int, _Line] = {}
        self._ends: dict[int, _Line] = {}
        self._stops: list[tuple[float, float]] = []
        self._stopped_s: float | None = None
        self._unread = b""
        self._shortest_s = math.inf
        self._waited_s = waited_seconds()

    def __enter__(self) -> Self:
        """Raises MeasureError if it cannot be started, fails, or cannot be stopped."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            self._log = stack.enter_context(self.log_path.open("ab", buffering=0))
            self._output = stack.enter_context(tempfile.TemporaryFile())
            self._errors, errors = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, self._errors)
            os.set_blocking(self._errors, False)
            try:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=errors,
                    env=self.environment,
                    start_new_session=True,
                    preexec_fn=child_setup(),
                )
            except OSError as error:
                raise MeasureError(f"llama-bench cannot be started: {self.command[0]}: {error.strerror}") from None
            finally:
                os.close(errors)
            stack.callback(self._end)
            self._wait_for(self._starts, 1)
            self._stop()
            self._leave = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.close()

    def clean_sample(self) -> int | None:
        """Let the sample that was stopped end, take one without a stop, and stop again inside the next.

        Returns:
            Its number, by which `finish` has its time. None if too many samples had ended before they could be
            stopped, on a machine that keeps us from running, so that none is left.

        Raises:
            MeasureError: it failed, or takes longer than `timeout_s`.
        """
        number = max(self._starts) + 1
        if number >= self.repetitions:
            return None
        self._go_on()
        self._wait_for(self._ends, number)
        self._wait_for(self._starts, number + 1)
        self._shortest_s = min(self._shortest_s, self._ends[number].at_s - self._starts[number].at_s)
        time.sleep(STOPPED_AFTER * self._shortest_s)
        self._stop()
        return number

    def finish(self) -> list[BenchSample]:
        """Let it run to its end.

        Returns:
            All its samples; see which are clean.

        Raises:
            MeasureError: it failed, answered something else than was asked, or its clock and ours disagree.
        """
        self._go_on()
        deadline = time.monotonic() + self.timeout_s
        while self._read(deadline):
            pass
        if status := self.process.wait():
            raise MeasureError(f"llama-bench ended with status {status}, see {self.log_path}")
        self._output.seek(0)
        own_ms = self._own_times(self._output.read())
        samples = [self._sample(number, own) for number, own in enumerate(own_ms, 1)]
        return self._agreed(samples)

    def _sample(self, number: int, own_ms: float) -> BenchSample:
        start, end = self._starts[number], self._ends.get(number)
        if end is None:
            return BenchSample(number, own_ms, None, False, 0.0, None)
        wall_s = end.at_s - start.at_s
        stopped = any(began < end.at_s and ended > start.at_s for began, ended in self._stops)
        idle_s = None if start.idle_s is None or end.idle_s is None else end.idle_s - start.idle_s
        return BenchSample(
            number,
            own_ms,
            seen_ms=wall_s * 1000,
            clean=not stopped,
            late_ms=(start.waited_s + end.waited_s) * 1000,
            idle_share=None if idle_s is None else idle_s / wall_s,
        )

    def _own_times(self, output: bytes) -> list[float]:
        """Milliseconds of all samples, of the benchmark's JSON."""
        try:
            (result,) = json.loads(output)
            asked = (result["n_prompt"], result["n_gen"], result["n_depth"], len(result["samples_ns"]))
        except (ValueError, KeyError, TypeError):
            raise MeasureError(f"llama-bench: its output is not what was asked for, see {self.log_path}") from None
        if asked != (self.size, 0, self.depth, self.repetitions):
            raise MeasureError(
                f"llama-bench measured {asked}, asked was {(self.size, 0, self.depth, self.repetitions)}"
            )
        return [nanoseconds / 1e6 for nanoseconds in result["samples_ns"]]

    def _agreed(self, samples: list[BenchSample]) -> list[BenchSample]:
        """Of those without a stop the ones are clean of which both clocks agree."""
        seen = {sample.number: sample.seen_ms - sample.own_ms for sample in samples if sample.seen_ms is not None}
        # behind a sample, and before the line that ends it, the cells are restored for the next one
        restoring_ms = statistics.median(seen.values()) if self.depth and seen else 0.0
        unstopped = [sample for sample in samples if sample.clean]
        wrong = [
            sample
            for sample in unstopped
            if abs(seen[sample.number] - restoring_ms) > MAX_CLOCK_DIFFERENCE_MS + sample.late_ms
        ]
        if len(wrong) > len(unstopped) / 2:
            raise MeasureError(
                f"llama-bench says that sample {wrong[0].number} took {wrong[0].own_ms:.1f} ms, by our clock it were "
                f"{wrong[0].seen_ms:.1f} ms, and so of {len(wrong)} of {len(unstopped)}; its times cannot be used"
            )
        return [replace(sample, clean=sample.clean and sample not in wrong) for sample in samples]

    def _wait_for(self, lines: dict[int, _Line], number: int) -> None:
        deadline = time.monotonic() + self.timeout_s
        while number not in lines:
            if not self._read(deadline):
                status = self.process.wait()
                raise MeasureError(f"llama-bench ended with status {status}: {last_lines(self.log_path, 1)}")

    def _read(self, deadline: float) -> bool:
        """Wait for messages and take them; False at their end."""
        if not select.select([self._errors], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise MeasureError(f"llama-bench said nothing for {self.timeout_s:g} s, see {self.log_path}")
        return self._take()

    def _take(self) -> bool:
        try:
            text = os.read(self._errors, 65536)
        except BlockingIOError:
            return False
        now = self._now()
        self._log.write(text)
        *lines, self._unread = (self._unread + text).split(b"\n")
        for line in lines:
            if found := PROGRESS_LINE.search(line):
                number = int(found[2])
                # the first line behind a sample ends it
                self._ends.setdefault(number - 1, now)
                if found[1] == b"prompt":
                    self._starts[number] = now
        return bool(text)

    def _now(self) -> _Line:
        at_s, waited_s = time.monotonic(), waited_seconds()
        late_s, self._waited_s = waited_s - self._waited_s, waited_s
        return _Line(at_s, late_s, None if self.idle_pid is None else process_seconds(self.idle_pid))

    def _stop(self) -> None:
        """Stop it and take what it said until then; if it has ended meanwhile it stays as it is."""
        began_s = time.monotonic()
        if stop(self.process.pid):
            self._stopped_s = began_s
        while self._take():
            pass

    def _go_on(self) -> None:
        if self._stopped_s is not None:
            go_on(self.process.pid)
            self._stops.append((self._stopped_s, time.monotonic()))
            self._stopped_s = None

    def _end(self) -> None:
        # a stopped process ends of this too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def process_seconds(pid: int) -> float | None:
    """CPU time of a process in seconds, to the nanosecond; None if it has ended."""
    try:
        # the clock of a process by its number, as clock_getcpuclockid makes it
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return None


def waited_seconds() -> float:
    """For how long this thread was ready to run and was not let; 0 where the kernel does not count that."""
    found = schedule("/proc/thread-self")
    return found[1] if found else 0.0
