"""Errors come last and alone: what ended a run is the last line on the terminal, behind Snakemake's own report."""

import atexit
import os
import sys
import tempfile
from pathlib import Path

ERRORS_KEY = "FAKEPREFIX_ERRORS"


def collect_errors(folder: Path) -> None:
    """Called once by the main process: print at its end what `say_last` was told by it or by its jobs.

    Args:
        folder: for a small file, which is removed again.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="errors-", suffix=".txt", dir=folder)
    os.close(handle)
    os.environ[ERRORS_KEY] = str(Path(name).resolve())
    atexit.register(_print_errors, Path(name), os.getpid())


def say_last(message: str) -> None:
    """Leave a line for the end; nothing happens where nobody collects, as on another machine of a cluster."""
    path = os.environ.get(ERRORS_KEY)
    if not path or not Path(path).is_file():
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"error: {message}\n")
    except OSError:
        # the disk may be what is full; the message stands in the job's log and further up
        return


def _print_errors(file: Path, owner: int) -> None:
    # a forked child has inherited the registration, and not the duty
    if os.getpid() != owner:
        return
    try:
        # a job that was retried says the same twice
        lines = dict.fromkeys(file.read_text(encoding="utf-8").splitlines())
        file.unlink()
    except OSError:
        return
    sys.stdout.flush()
    for line in lines:
        sys.stderr.write(f"{line}\n")
