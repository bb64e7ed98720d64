"""A snapshot of the machine. Every item has a fallback, and a reason where it is absent."""

import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TypedDict, TypeVar

import psutil

from fakeprefix.machine.commands import Absent, kept_environment, read_file, run_command
from fakeprefix.machine.cpu import Cpu, cpu
from fakeprefix.machine.devices import nvidia_gpus, vulkan_devices
from fakeprefix.machine.limits import memory_limit, no_limit
from fakeprefix.machine.repositories import Repository, repository
from fakeprefix.storage import write_json, write_text

# what can change a timing and holds no secret
ENVIRONMENT_ALLOWED = (
    "CUDA_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "LANG",
    "LC_ALL",
    "MALLOC_ARENA_MAX",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_PARTITION",
)

Item = TypeVar("Item")


class Memory(TypedDict):
    """What the snapshot says of the memory, sizes in bytes."""

    total_bytes: int
    available_bytes: int
    swap_bytes: int
    cgroup_limit: int | str | Absent
    transparent_hugepages: str | Absent
    numa_nodes: list[str] | Absent


class Gpus(TypedDict):
    """Devices and drivers, by the interface that sees them."""

    nvidia: list[str] | Absent
    vulkan: list[str] | Absent


class Snapshot(TypedDict):
    """Everything about a machine that can explain a timing, as ``host/snapshot.json`` holds it."""

    taken_at: str
    host: str
    uname: dict[str, str]
    python: str
    load_average: list[float] | Absent
    cpu: Cpu | Absent
    memory: Memory | Absent
    compilers: dict[str, str | Absent] | Absent
    gpus: Gpus | Absent
    environment: dict[str, str]
    repositories: dict[str, Repository | Absent]


def guarded(item: Callable[[], Item]) -> Item | Absent:
    """The item, or the error that kept it from being taken; a snapshot never aborts a run."""
    try:
        return item()
    except Exception as error:
        return Absent(absent=f"{type(error).__name__}: {error}")


def memory() -> Memory:
    """Sizes, the smallest limit of the control groups, huge pages and NUMA nodes."""
    virtual, swap, limit = psutil.virtual_memory(), psutil.swap_memory(), memory_limit()
    nodes = [node.name for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))]
    return Memory(
        total_bytes=virtual.total,
        available_bytes=virtual.available,
        swap_bytes=swap.total,
        cgroup_limit=no_limit("memory") if limit is None else limit,
        transparent_hugepages=read_file("/sys/kernel/mm/transparent_hugepage/enabled"),
        numa_nodes=nodes or Absent(absent="no NUMA information"),
    )


def compilers() -> dict[str, str | Absent]:
    """The first line of what each says of its version."""
    found = {name: run_command(name, "--version") for name in ("cc", "c++", "cmake", "ninja", "ccache")}
    return {name: text.splitlines()[0] if isinstance(text, str) and text else text for name, text in found.items()}


def gpus() -> Gpus:
    """Devices and drivers, by the interface that sees them."""
    return Gpus(nvidia=guarded(nvidia_gpus), vulkan=guarded(vulkan_devices))


def packages() -> dict[str, str]:
    """Installed Python distributions and their versions."""
    return dict(sorted((d.metadata["Name"], d.version) for d in metadata.distributions() if d.metadata["Name"]))


def snapshot(repositories: Mapping[str, Path]) -> Snapshot:
    """Everything about this machine that can explain a timing.

    Args:
        repositories: work trees to describe, by name.
    """
    return Snapshot(
        taken_at=datetime.now().astimezone().isoformat(),
        host=socket.gethostname(),
        uname=platform.uname()._asdict(),
        python=sys.version,
        load_average=guarded(lambda: list(os.getloadavg())),
        cpu=guarded(cpu),
        memory=guarded(memory),
        compilers=guarded(compilers),
        gpus=guarded(gpus),
        environment=kept_environment(*ENVIRONMENT_ALLOWED),
        repositories={name: guarded(partial(repository, path)) for name, path in repositories.items()},
    )


def write_snapshot(folder: Path, repositories: Mapping[str, Path]) -> Snapshot:
    """Write ``snapshot.json`` and the plain outputs of the usual commands into `folder`."""
    taken = snapshot(repositories)
    write_json(folder / "snapshot.json", taken)
    for name, command in {
        "uname.txt": ("uname", "-a"),
        "lscpu.txt": ("lscpu",),
        "free.txt": ("free", "-b"),
        "df.txt": ("df", "-P", "."),
    }.items():
        output = run_command(*command)
        write_text(folder / name, output if isinstance(output, str) else f"# absent: {output['absent']}\n")
    write_text(folder / "packages.txt", "".join(f"{name}=={version}\n" for name, version in packages().items()))
    return taken
