"""What this process may use of the machine: cores, and memory, of the machine or of its container."""

import os
from pathlib import Path

import psutil

from fakeprefix.machine.commands import Absent

# cgroup v2 and v1
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_cores() -> int:
    """Physical cores that this process may use."""
    allowed = visible_cores()
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def visible_cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cgroup_quota(cpu_max: str | Absent) -> float | str | Absent:
    """CPUs that ``cpu.max`` (cgroup v2: quota and period in microseconds) allows, or ``unlimited``."""
    if isinstance(cpu_max, dict):
        return cpu_max
    try:
        quota, period = cpu_max.split()
        return "unlimited" if quota == "max" else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return Absent(absent=f"cpu.max is {cpu_max!r}")


def available_memory() -> int:
    """Bytes this process may use: the machine's, or the container's if that is less."""
    limit: int = psutil.virtual_memory().total
    for path in MEMORY_LIMITS:
        try:
            limit = min(limit, int(Path(path).read_text().strip()))
        except (OSError, ValueError):
            continue
    return limit
