"""Lines a few times a minute that say what is done, how far, and how long it will take."""

import logging
import time
from collections.abc import Callable

from fakeprefix.model.estimate import describe_seconds

log = logging.getLogger(__name__)


class Progress:
    """Counts finished parts of a stage and reports them, at most every `interval_s` seconds.

    Args:
        stage: what is being done.
        total: parts, in any unit; time left is extrapolated from the parts done.
    """

    def __init__(
        self, stage: str, total: float, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stage, self.total, self.interval_s = stage, total, interval_s
        self.done = 0.0
        self._clock = clock
        self._started = clock()
        self._reported = self._started - interval_s

    def advance(self, parts: float, what: str = "") -> None:
        """Add finished parts and report if it is time to, or if this was the last one."""
        self.done += parts
        now = self._clock()
        finished = self.done >= self.total
        if now - self._reported < self.interval_s and not finished:
            return
        self._reported = now
        elapsed = now - self._started
        share = min(1.0, self.done / self.total) if self.total else 1.0
        left = elapsed * (1 - share) / share if share else 0.0
        tail = f"done in {describe_seconds(elapsed)}" if finished else f"about {describe_seconds(left)} left"
        log.info("%s: %3.0f %%%s, %s", self.stage, 100 * share, f", {what}" if what else "", tail)
