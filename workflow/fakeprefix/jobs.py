"""What every rule's script needs around its one call: a log, one-line errors, an end when its starter dies."""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psutil

from fakeprefix.errors import FakePrefixError
from fakeprefix.last_words import say_last

MAIN_PROCESS_KEY = "FAKEPREFIX_MAIN_PROCESS"
WATCH_INTERVAL_S = 0.5
END_GRACE_S = 15.0


@contextmanager
def job(log_path: str | Path) -> Iterator[None]:
    """Run a rule's work: messages go to the terminal and to `log_path`, expected errors are one line.

    The job ends, with everything it has started, when it is told to (SIGTERM, Ctrl-C) or when the
    snakemake process that started it all has died.
    """
    path = Path(log_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    file = logging.FileHandler(path, mode="w", encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [terminal, file]
    root.setLevel(logging.INFO)
    for noisy in ("gguf", "matplotlib", "fontTools", "urllib3", "git"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    faulthandler.enable()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    watch_main_process()
    try:
        yield
    except FakePrefixError as error:
        _fail(str(error))
    except OSError as error:
        if not error.filename and not error.strerror:
            raise
        _fail(f"{error.filename or 'writing'}: {error.strerror}")


def _fail(message: str) -> NoReturn:
    logging.getLogger("fakeprefix").error("error: %s", message)
    say_last(message)
    sys.exit(1)


def make_importable(folder: Path) -> None:
    """Let the scripts of all jobs import what is in `folder`."""
    os.environ["PYTHONPATH"] = str(folder)


def announce_run(key: str, name: str) -> None:
    """Called once by the main process, so that its jobs write to the same run folder."""
    os.environ[key] = name


def announce_main_process() -> None:
    """Called once by the main process, so that its jobs can watch it."""
    process = psutil.Process()
    os.environ[MAIN_PROCESS_KEY] = f"{process.pid}:{process.create_time()}"


def watch_main_process() -> None:
    """End this process soon after the main process has died, whoever adopted it meanwhile."""
    announced = os.environ.get(MAIN_PROCESS_KEY)
    if not announced:
        return
    pid, created = announced.split(":")

    def alive() -> bool:
        try:
            main = psutil.Process(int(pid))
            # one that was killed stays a zombie until its parent looks
            return main.status() != psutil.STATUS_ZOMBIE and abs(main.create_time() - float(created)) < 1.0
        except psutil.NoSuchProcess:
            return False

    if not alive():
        # another machine of a cluster: its scheduler ends the job
        return

    def watch() -> None:
        while alive():
            time.sleep(WATCH_INTERVAL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_GRACE_S)
        os._exit(143)

    threading.Thread(target=watch, name="watch-main-process", daemon=True).start()
