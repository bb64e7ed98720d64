"""Small files of the kernel, parsed; where there is none of them, or no such counter in it, None or nothing."""

import os
from collections.abc import Iterable
from pathlib import Path

from fakeprefix.machine.limits import parse_cpus

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
MOST_BYTES = 2**16
# fields of /proc/stat in which a CPU worked: user, nice, system, irq, softirq (guests are in user)
BUSY_FIELDS, STEAL_FIELD = (0, 1, 2, 5, 6), 7
# fields of /proc/PID/stat, counted behind the name, which may hold blanks
MAJOR_FAULTS, USER_TICKS, SYSTEM_TICKS = 9, 11, 12


def text(path: Path | str) -> str | None:
    """Content of a small file of the kernel; a third of the time that `Path.read_text` takes."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(file, MOST_BYTES).decode("ascii", "replace")
    except OSError:
        # /proc/pressure can be there and refuse to be read
        return None
    finally:
        os.close(file)


def number(path: Path) -> int | None:
    """The one number in a file."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def pairs(path: Path | str) -> dict[str, str]:
    """Lines of a name and a value."""
    lines = (line.split(None, 1) for line in (text(path) or "").splitlines())
    return {pair[0]: pair[1] for pair in lines if len(pair) == 2}


def existing(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those that are there."""
    return tuple(path for path in paths if path.exists())


def allowed_cpus(process: Path) -> list[int]:
    """Logical CPUs that a process may use; none if it has ended."""
    try:
        return parse_cpus(pairs(process / "status").get("Cpus_allowed_list:", ""))
    except ValueError:
        return []


def threads(process: Path) -> dict[int, str]:
    """The folders of all threads of a process, as text: there may be hundreds, and making paths takes longer."""
    try:
        with os.scandir(process / "task") as folders:
            return {int(thread.name): thread.path for thread in folders}
    except OSError:
        return {}


def schedule(thread: str) -> tuple[float, float] | None:
    """Seconds on a CPU, and ready without one; a kernel that does not count writes zeros only."""
    try:
        ran_ns, waited_ns, turns = map(int, (text(f"{thread}/schedstat") or "").split())
    except ValueError:
        return None
    return (ran_ns / 1e9, waited_ns / 1e9) if turns else None


def switches(thread: str) -> int | None:
    """How often a thread was taken from a CPU."""
    try:
        return int(pairs(f"{thread}/status").get("nonvoluntary_ctxt_switches:", ""))
    except ValueError:
        return None


def machine_time(path: Path) -> dict[str, float]:
    """Seconds in which the CPUs worked, and in which the host took them away, all CPUs together; of ``/proc/stat``."""
    first = (text(path) or "").partition("\n")[0].split()[1:]
    if len(first) <= STEAL_FIELD:
        return {}
    ticks = [int(value) for value in first]
    return {
        "busy_s": sum(ticks[field] for field in BUSY_FIELDS) / TICKS_PER_S,
        "steal_s": ticks[STEAL_FIELD] / TICKS_PER_S,
    }


def process_time(process: Path) -> tuple[float, int] | None:
    """CPU time in seconds, and major faults."""
    values = (text(process / "stat") or "").rpartition(")")[2].split()
    if len(values) <= SYSTEM_TICKS:
        return None
    return (int(values[USER_TICKS]) + int(values[SYSTEM_TICKS])) / TICKS_PER_S, int(values[MAJOR_FAULTS])


def swapped(proc: Path) -> dict[str, int]:
    """Bytes that were swapped since the start of the machine."""
    found = pairs(proc / "vmstat")
    names = {"pswpin": "swap_in_bytes", "pswpout": "swap_out_bytes"}
    return {name: int(found[key]) * PAGE_BYTES for key, name in names.items() if key in found}


def pressure_s(path: Path) -> float | None:
    """Seconds in which at least one process waited, of a file of ``/proc/pressure``."""
    some = pairs(path).get("some", "")
    _, equals, total_us = some.partition("total=")
    return int(total_us) / 1e6 if equals else None


def throttles(path: Path) -> tuple[int, float] | None:
    """How often the quota of a control group throttled, and for how many seconds, on all CPUs together."""
    found = pairs(path)
    for name, per_s in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        # of version 2, of version 1
        if name in found and "nr_throttled" in found:
            return int(found["nr_throttled"]), int(found[name]) / per_s
    return None
