"""Which CPU this machine has."""

import platform
from pathlib import Path
from typing import TypedDict

import psutil

from fakeprefix.machine.cgroups import ROOT
from fakeprefix.machine.commands import Absent, read_file
from fakeprefix.machine.limits import cpu_quota, no_limit, visible_cores

CPU_DIR = Path("/sys/devices/system/cpu")


class Cpu(TypedDict):
    """What the snapshot says of the CPU."""

    model: str | Absent
    architecture: str
    logical_cores: int | None
    physical_cores: int | Absent
    visible_cores: int
    cgroup_quota_cpus: float | str | Absent
    governor: str | Absent
    max_frequency_khz: str | Absent
    smt: str | Absent
    warnings: list[str]


def cpu(root: Path = ROOT) -> Cpu:
    """Model, cores, governor and the smallest quota; a warning where quota and cores disagree.

    Args:
        root: that the control groups are below.
    """
    visible = visible_cores()
    quota = cpu_quota(root)
    warnings = []
    if quota is not None and quota < visible:
        warnings.append(
            f"the control group may use {quota:g} CPUs, {visible} are visible: more threads than that throttle"
        )
    return Cpu(
        model=cpu_model(read_file("/proc/cpuinfo")),
        architecture=platform.machine(),
        logical_cores=psutil.cpu_count(),
        physical_cores=psutil.cpu_count(logical=False) or Absent(absent="not reported"),
        visible_cores=visible,
        cgroup_quota_cpus=no_limit("cpu", root) if quota is None else quota,
        governor=read_file(CPU_DIR / "cpu0" / "cpufreq" / "scaling_governor"),
        max_frequency_khz=read_file(CPU_DIR / "cpu0" / "cpufreq" / "cpuinfo_max_freq"),
        smt=read_file(CPU_DIR / "smt" / "control"),
        warnings=warnings,
    )


def cpu_model(cpuinfo: str | Absent) -> str | Absent:
    """The ``model name`` of ``/proc/cpuinfo``; Arm has none and gives implementer and part instead."""
    if isinstance(cpuinfo, dict):
        return cpuinfo
    entries: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            # of the first core
            entries.setdefault(name.strip(), value.strip())
    if entries.get("model name"):
        return entries["model name"]
    if "CPU part" in entries:
        return f"implementer {entries.get('CPU implementer', '?')}, part {entries['CPU part']}"
    return Absent(absent="/proc/cpuinfo has no model name")


def this_cpu() -> str:
    """The model of this machine's CPU, or why it is unknown."""
    return str(cpu_model(read_file("/proc/cpuinfo")))
