"""What this process may use of the machine: cores and memory, of the machine or of its container."""

import os
from collections.abc import Collection
from pathlib import Path

import psutil

from fakeprefix.machine.cgroups import ROOT, cgroup_folders
from fakeprefix.machine.commands import Absent

UNLIMITED = "unlimited"
# version 2, where beyond `high` everything is slowed down until it fits, and version 1
MEMORY_FILES = ("memory.max", "memory.high", "memory.limit_in_bytes")
# version 1 writes the largest number of pages where there is no limit
NO_LIMIT_BYTES = 2**60
CPU_DIR = Path("sys/devices/system/cpu")


def usable_cores(root: Path = ROOT, cpus: Collection[int] = ()) -> int:
    """Physical cores that this process may keep busy: by its affinity and the quota of its control groups.

    Args:
        cpus: logical ones to which it will be pinned; none for all that it may use.
    """
    cores = len({core_of(number, root) for number in cpus or os.sched_getaffinity(0)})
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def visible_cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0))


def core_of(number: int, root: Path = ROOT) -> frozenset[int]:
    """The logical CPUs that share a core with this one, itself included."""
    try:
        text = (root / CPU_DIR / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
        return frozenset(parse_cpus(text))
    except (OSError, ValueError):
        return frozenset({number})


def parse_cpus(text: str) -> list[int]:
    """Logical CPUs of a list as Linux writes it, for example ``0-3,5``; in order, each once.

    Raises:
        ValueError: it is no such list.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        span = range(int(first), int(last if dash else first) + 1)
        if not span or span[0] < 0:
            raise ValueError(f"{part!r} is no range of CPUs")
        numbers.update(span)
    return sorted(numbers)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the smallest quota from the outermost control group to the own one allows; None for no quota."""
    quotas = [_quota_of(folder) for folder in cgroup_folders("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        # version 2 says `max`, version 1 says -1
        return None


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that the smallest limit from the outermost control group to the own one allows; None for no limit."""
    limits = []
    for folder in cgroup_folders("memory", root):
        for name in MEMORY_FILES:
            try:
                limits.append(int((folder / name).read_text()))
            except (OSError, ValueError):
                continue
    return min((limit for limit in limits if limit < NO_LIMIT_BYTES), default=None)


def no_limit(controller: str, root: Path = ROOT) -> str | Absent:
    """What the snapshot says where there is no limit: ``unlimited``, or why nothing is known."""
    return UNLIMITED if cgroup_folders(controller, root) else Absent(absent="no control groups are mounted")


def available_memory(root: Path = ROOT) -> int:
    """Bytes that this process may use: the machine's, or those of the smallest limit of its control groups."""
    total: int = psutil.virtual_memory().total
    limit = memory_limit(root)
    return total if limit is None else min(total, limit)
