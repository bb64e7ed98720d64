"""Stopping a process that was started here, so that another one has the machine, and letting it go on."""

import os
import signal
import subprocess
import time
from pathlib import Path

from fakeprefix.errors import MeasureError
from fakeprefix.machine.commands import run_command
from fakeprefix.server.process import child_setup

STOP_TIMEOUT_S = 5.0
POLL_S = 0.0005


def stop(pid: int) -> bool:
    """Stop a child of this process and wait until it stands still.

    Returns:
        True if it is stopped, False if it has ended meanwhile; its status is left for who waits for it.

    Raises:
        MeasureError: it goes on all the same.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    os.kill(pid, signal.SIGSTOP)
    while not (state := os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        if time.monotonic() > deadline:
            raise MeasureError(f"process {pid} goes on after SIGSTOP: processes cannot be paused here")
        time.sleep(POLL_S)
    return state.si_code == os.CLD_STOPPED


def go_on(pid: int) -> None:
    """Let a stopped child go on."""
    os.kill(pid, signal.SIGCONT)


def pause_problem(benchmark: Path) -> str:
    """Why ``llama-bench`` cannot be run in pauses beside a server, in one line; empty if it can.

    Nothing is computed: its help must know ``--progress``, and another process must stand still when it is stopped.
    """
    if not benchmark.is_file():
        return f"{benchmark} is missing; build the engine with its benchmark"
    help_text = run_command(str(benchmark), "--help")
    if isinstance(help_text, dict):
        return f"llama-bench cannot be started: {help_text['absent']}"
    if "--progress" not in help_text:
        return f"{benchmark} has no --progress, without which nobody knows when to pause it; take a newer engine"
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, preexec_fn=child_setup())
    try:
        return "" if stop(process.pid) else "a process that sleeps ended when it was stopped"
    except MeasureError as error:
        return str(error)
    finally:
        process.kill()
        process.wait()
