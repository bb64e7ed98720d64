"""The lock that Snakemake leaves behind when it is killed, freed by the next call."""

import logging
import os
import socket
from pathlib import Path

import psutil

from fakeprefix.storage import read_json, write_json

log = logging.getLogger(__name__)

MAIN_PROCESS_FILE = "fakeprefix_main_process.json"


def remember_main_process(state: Path) -> None:
    """Called by the main process when it holds the lock, so that `free_stale_lock` knows whose it was.

    Args:
        state: Snakemake's folder, ``.snakemake``.
    """
    write_json(state / MAIN_PROCESS_FILE, {"host": socket.gethostname(), "pid": os.getpid()})


def free_stale_lock(state: Path) -> bool:
    """Remove the lock of a main process that was killed; True if there was one.

    Only a lock whose holder is known to have run on this machine goes, and only while no other snakemake
    is alive in this checkout: one on another machine of a shared file system cannot be seen from here.
    """
    locks = list((state / "locks").glob("*.lock"))
    try:
        holder = read_json(state / MAIN_PROCESS_FILE)
    except (OSError, ValueError):
        return False
    if not locks or holder["host"] != socket.gethostname() or _others_alive(state.resolve().parent):
        return False
    for lock in locks:
        lock.unlink(missing_ok=True)
    log.warning("freed the lock of a snakemake that was killed (process %d)", holder["pid"])
    return True


def _others_alive(checkout: Path) -> bool:
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        is_snakemake = any(Path(word).name == "snakemake" for word in words[:4])
        if is_snakemake and process.pid not in family and process.info["cwd"] == str(checkout):
            return True
    return False
