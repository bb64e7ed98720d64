"""One timing job at a time on a machine, whoever started it."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

REMINDER_S = 60.0


def lock_path() -> Path:
    """The lock file of this machine; two Snakemake processes do not see each other's resources."""
    return Path(tempfile.gettempdir()) / "fakeprefix-timing.lock"


@contextmanager
def timing_slot(path: Path | None = None) -> Iterator[None]:
    """Wait until no other timing job runs on this machine, and keep others waiting meanwhile.

    The kernel releases the lock when the process ends, however it ends.
    """
    lock = FileLock(path or lock_path(), mode=0o666)
    while True:
        try:
            lock.acquire(timeout=REMINDER_S)
            break
        except Timeout:
            log.info("waiting for another timing job on this machine (%s)", lock.lock_file)
    try:
        yield
    finally:
        lock.release()
