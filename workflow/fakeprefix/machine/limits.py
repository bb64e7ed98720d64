"""What this process may use of the machine."""

import os

import psutil


def usable_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
