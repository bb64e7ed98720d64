"""What else happened on the machine beside a turn: counters read before and after it, outside of its clock.

They explain and warn. Nothing is dropped or judged by them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from fakeprefix.machine import counters
from fakeprefix.machine.cgroups import ROOT, cgroup_folders
from fakeprefix.machine.limits import CPU_DIR

# of more CPUs reading the frequency would take longer than a short turn
MOST_CPUS = 8
# beyond this share of the time a sentence says so
NOTABLE_SHARE, NOTABLE_FAULTS = 0.02, 10
# a process whose threads compute has at least this share of their time
FULL_SHARE = 0.9
BUSY_THREAD_S = 0.02

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Witness:
    """What happened between two readings; None where this machine has no such counter.

    Attributes:
        wall_s: time between the readings.
        server_cpu_s: CPU time of the watched process, all its threads: the server, or the benchmark.
        server_wait_s: time in which its threads were ready and had no CPU, all threads together.
        other_cpu_s: CPU time of everybody else on the machine except this process; counted in ticks of the kernel.
        steal_s: time in which the host of this virtual machine gave a CPU to another one, all CPUs together.
        involuntary_switches: how often threads of the watched process were taken from a CPU.
        major_faults: pages that the watched process had to wait for until they were read from a disk.
        swap_in_bytes, swap_out_bytes: of the whole machine.
        cpu_pressure_s, memory_pressure_s, io_pressure_s: time in which somebody on the machine waited for it.
        frequency_mhz: mean of the CPUs that the process may use (of eight at most), at both readings.
        thermal_throttles: how often these CPUs were slowed down because of heat or power.
        quota_throttles, quota_throttled_s: how often, and for how long on all CPUs together, the quota of the control
            group that throttled most kept its processes from running.
    """

    wall_s: float
    server_cpu_s: float | None = None
    server_wait_s: float | None = None
    other_cpu_s: float | None = None
    steal_s: float | None = None
    involuntary_switches: int | None = None
    major_faults: int | None = None
    swap_in_bytes: int | None = None
    swap_out_bytes: int | None = None
    cpu_pressure_s: float | None = None
    memory_pressure_s: float | None = None
    io_pressure_s: float | None = None
    frequency_mhz: float | None = None
    thermal_throttles: int | None = None
    quota_throttles: int | None = None
    quota_throttled_s: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)

    def server_share(self, threads: int) -> float | None:
        """CPU time of the watched process over wall time and threads: 1 if all its threads computed all the time."""
        if self.server_cpu_s is None or not self.wall_s:
            return None
        return self.server_cpu_s / self.wall_s / threads

    def lost_share(self, threads: int) -> float | None:
        """Share of the time of its threads in which the watched process was ready and did not run.

        Waiting for a CPU, stolen time and throttling by a quota together; to find the turns that were disturbed most.
        """
        lost = [part for part in (self.server_wait_s, self.steal_s, self.quota_throttled_s) if part is not None]
        return sum(lost) / self.wall_s / threads if lost and self.wall_s else None


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, in the units of `Witness`; those of threads by their number.

    Attributes:
        at_s: of a clock that is never set.
        counters: by the name of the field of `Witness`; absent ones are left out.
        cpu_s, wait_s, switches: of every thread of the watched process.
        throttles: of every control group, how often and for how many seconds.
        frequency_mhz: at this moment.
    """

    at_s: float
    counters: Mapping[str, int | float]
    cpu_s: Mapping[int, float]
    wait_s: Mapping[int, float]
    switches: Mapping[int, int]
    throttles: Mapping[Path, tuple[int, float]]
    frequency_mhz: float | None


class Watch:
    """Reads the counters of a machine and of one process on it; where they are is looked up once.

    Args:
        pid: the process.
        root: that ``/proc`` and ``/sys`` are below.
    """

    def __init__(self, pid: int, root: Path = ROOT) -> None:
        self.proc, self.process, self.own = root / "proc", root / "proc" / str(pid), root / "proc" / "self"
        cpus = [root / CPU_DIR / f"cpu{number}" for number in counters.allowed_cpus(self.process)[:MOST_CPUS]]
        self.frequencies = counters.existing(cpu / "cpufreq" / "scaling_cur_freq" for cpu in cpus)
        self.throttle_counts = counters.existing(cpu / "thermal_throttle" / "core_throttle_count" for cpu in cpus)
        self.quota_stats = counters.existing(folder / "cpu.stat" for folder in cgroup_folders("cpu", root))

    def read(self) -> Reading:
        """All counters now; takes about 0.5 ms for a process with one thread, 1 ms with ten, 3 ms with a hundred."""
        threads = counters.threads(self.process)
        schedules = {number: ran for number, thread in threads.items() if (ran := counters.schedule(thread))}
        # a server has a thread for connections for every CPU of the machine; they hardly run
        busy = [number for number in threads if schedules.get(number, (BUSY_THREAD_S, 0))[0] >= BUSY_THREAD_S]
        switches = {number: found for number in busy if (found := counters.switches(threads[number])) is not None}
        speeds = [speed for file in self.frequencies if (speed := counters.number(file)) is not None]
        return Reading(
            at_s=time.monotonic(),
            counters=self._counters(),
            cpu_s={thread: cpu_s for thread, (cpu_s, _) in schedules.items()},
            wait_s={thread: wait_s for thread, (_, wait_s) in schedules.items()},
            switches=switches,
            throttles={file: lost for file in self.quota_stats if (lost := counters.throttles(file))},
            frequency_mhz=sum(speeds) / len(speeds) / 1000 if speeds else None,
        )

    def _counters(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {**counters.machine_time(self.proc / "stat"), **counters.swapped(self.proc)}
        if watched := counters.process_time(self.process):
            found["server_cpu_s"], found["major_faults"] = watched
        if own := counters.process_time(self.own):
            found["own_cpu_s"] = own[0]
        for what in ("cpu", "memory", "io"):
            pressure_s = counters.pressure_s(self.proc / "pressure" / what)
            if pressure_s is not None:
                found[f"{what}_pressure_s"] = pressure_s
        throttled = [count for file in self.throttle_counts if (count := counters.number(file)) is not None]
        if throttled:
            found["thermal_throttles"] = sum(throttled)
        return found


def difference(before: Reading, after: Reading) -> Witness:
    """What happened from one reading to another of the same `Watch`."""
    both = before.counters.keys() & after.counters.keys()
    values: dict[str, Any] = {name: after.counters[name] - before.counters[name] for name in both}
    busy_s, own_cpu_s = values.pop("busy_s", None), values.pop("own_cpu_s", None)
    # to the nanosecond, where the kernel counts that; else the ticks of the whole process
    exact_s = _of_threads(before.cpu_s, after.cpu_s)
    if exact_s is not None:
        values["server_cpu_s"] = exact_s
    if None not in (busy_s, own_cpu_s, values.get("server_cpu_s")):
        # ticks are coarser than what is taken off them
        values["other_cpu_s"] = max(0.0, busy_s - own_cpu_s - values["server_cpu_s"])
    throttles = [
        (count - before.throttles[file][0], throttled_s - before.throttles[file][1])
        for file, (count, throttled_s) in after.throttles.items()
        if file in before.throttles
    ]
    speeds = [speed for speed in (before.frequency_mhz, after.frequency_mhz) if speed is not None]
    return Witness(
        wall_s=after.at_s - before.at_s,
        server_wait_s=_of_threads(before.wait_s, after.wait_s),
        involuntary_switches=_of_known_threads(before.switches, after.switches),
        frequency_mhz=sum(speeds) / len(speeds) if speeds else None,
        quota_throttles=max((count for count, _ in throttles), default=None),
        quota_throttled_s=max((throttled_s for _, throttled_s in throttles), default=None),
        **values,
    )


def total(witnesses: Sequence[Witness]) -> Witness:
    """Sums over those that have a counter; the frequency is the mean."""
    sums: dict[str, Any] = {}
    for field in fields(Witness):
        known = [value for witness in witnesses if (value := getattr(witness, field.name)) is not None]
        sums[field.name] = sum(known) if known else None
        if known and field.name == "frequency_mhz":
            sums[field.name] = sum(known) / len(known)
    return Witness(**sums | {"wall_s": sums["wall_s"] or 0.0})


def disturbances(witness: Witness, threads: int) -> list[str]:
    """What kept the watched process from computing, in words; nothing if nothing notable did.

    Args:
        witness: of one turn, or the `total` of many.
        threads: that compute.
    """
    found = _kept_from_a_core(witness, threads)
    if witness.quota_throttled_s:
        found.append(f"CPU quota throttled {_seconds(witness.quota_throttled_s)}")
    if _notable(witness.steal_s, witness.wall_s * threads):
        found.append(f"the host of this virtual machine took {_seconds(witness.steal_s)} (steal)")
    for direction in ("in", "out"):
        if swapped := getattr(witness, f"swap_{direction}_bytes"):
            found.append(f"the machine swapped {swapped / 2**20:.3g} MiB {direction}")
    if (witness.major_faults or 0) >= NOTABLE_FAULTS:
        found.append(f"{witness.major_faults} pages had to be read from a disk")
    if _notable(witness.memory_pressure_s, witness.wall_s):
        found.append(f"processes waited {_seconds(witness.memory_pressure_s)} for memory")
    if witness.thermal_throttles:
        found.append(f"heat or power slowed the CPU down {witness.thermal_throttles} times")
    return found


def sentence(witnesses: Sequence[Witness], threads: int) -> str:
    """What disturbed these turns, with what it was out of; empty if nothing did."""
    together = total(witnesses)
    found = disturbances(together, threads)
    return f"{'; '.join(found)} (in {_seconds(together.wall_s)} of {len(witnesses)} turns)" if found else ""


def _kept_from_a_core(witness: Witness, threads: int) -> list[str]:
    others = witness.other_cpu_s or 0.0
    if witness.server_wait_s is None:
        share = witness.server_share(threads)
        if share is not None and share < FULL_SHARE and _notable(others, witness.wall_s):
            return [f"another process held a core for up to {_seconds(others)}"]
        return []
    if not _notable(witness.server_wait_s, witness.wall_s * threads):
        return []
    waited = _seconds(witness.server_wait_s)
    if others >= witness.server_wait_s / 2:
        return [f"another process held a core: {waited} waited for one"]
    # a quota, or more threads than cores
    return [] if witness.quota_throttled_s else [f"threads waited {waited} for a core that no other process held"]


def _notable(part: float | None, whole: float) -> bool:
    return part is not None and part > NOTABLE_SHARE * whole


def _seconds(value: float | None) -> str:
    return f"{value or 0:.2g} s" if (value or 0) < 10 else f"{value:.0f} s"


def _of_threads(before: Mapping[int, Number], after: Mapping[int, Number]) -> Number | None:
    """Growth over all threads; None where there are none, or where one ended and took its count with it."""
    if not after or before.keys() - after.keys():
        return None
    return sum(after[thread] - before.get(thread, 0) for thread in after)


def _of_known_threads(before: Mapping[int, int], after: Mapping[int, int]) -> int | None:
    """The same of the threads that were counted before; others may have begun to be looked at, and not to run."""
    return _of_threads(before, {thread: count for thread, count in after.items() if thread in before})
