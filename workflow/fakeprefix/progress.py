"""Lines a few times a minute that say what is done, how far, and how long it will take."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

log = logging.getLogger(__name__)

Item = TypeVar("Item")


class Progress:
    """Counts finished parts of a stage and reports them, at most every `interval_s` seconds.

    Args:
        stage: what is being done.
        total: parts, in any unit; time left is extrapolated from the parts done. None if nobody knows.
    """

    def __init__(
        self, stage: str, total: float | None, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stage, self.total, self.interval_s = stage, total, interval_s
        self.done = 0.0
        self._what = ""
        self._clock = clock
        self._started = clock()
        # the first part shows that it goes on; a count without an end is worth no line before it lasts
        self._reported = self._started if total is None else self._started - interval_s
        self._lock = threading.Lock()

    def advance(self, parts: float, what: str = "") -> None:
        """Add finished parts and report if it is time to, or if this was the last one."""
        with self._lock:
            self.done += parts
            self._what = what
            finished = self.total is not None and self.done >= self.total
            if finished or self._clock() - self._reported >= self.interval_s:
                self._report(finished)

    @contextmanager
    def ticking(self) -> Iterator["Progress"]:
        """Report while a part takes longer than the interval, too."""
        stop = threading.Event()
        thread = threading.Thread(target=self._tick, args=(stop,), name=f"progress of {self.stage}", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(self.interval_s / 2):
            with self._lock:
                if self._clock() - self._reported >= self.interval_s:
                    self._report(False)

    def _report(self, finished: bool) -> None:
        now = self._clock()
        self._reported = now
        elapsed = now - self._started
        what = f", {self._what}" if self._what else ""
        if self.total is None:
            log.info("%s: %s%s, %s so far", self.stage, f"{self.done:,.0f}", what, describe_seconds(elapsed))
            return
        share = min(1.0, self.done / self.total) if self.total else 1.0
        if finished:
            tail = f"done in {describe_seconds(elapsed)}"
        elif share:
            tail = f"about {describe_seconds(elapsed * (1 - share) / share)} left"
        else:
            tail = f"{describe_seconds(elapsed)} so far"
        log.info("%s: %3.0f %%%s, %s", self.stage, 100 * share, what, tail)


def counted(items: Iterable[Item], stage: str) -> Iterator[Item]:
    """The same items, with a line from time to time that says how many there were."""
    progress = Progress(stage, None)
    for item in items:
        yield item
        progress.advance(1)


def describe_seconds(seconds: float) -> str:
    """Seconds in words, for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
