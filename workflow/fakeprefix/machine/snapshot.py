"""A snapshot of the machine. Every item has a fallback, and a reason where it is absent."""

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import git
import psutil

from fakeprefix.storage import write_json, write_text

COMMAND_TIMEOUT_S = 20.0

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

# which device a program sees, and by which driver: the same for the snapshot, the check and the engine
DEVICE_VARIABLES = (
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
)

CPU_DIR = Path("/sys/devices/system/cpu")


def absent(reason: str) -> dict[str, str]:
    """An item that could not be had, with the reason."""
    return {"absent": reason}


def kept_environment(*names: str) -> dict[str, str]:
    """These variables of the environment, where they are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def run_command(*arguments: str) -> str | dict[str, str]:
    """Output of a command in the C locale, or why there is none."""
    if not shutil.which(arguments[0]):
        return absent(f"{arguments[0]} is not installed")
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            env=kept_environment("PATH", *DEVICE_VARIABLES) | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return absent(f"{arguments[0]}: {error}")
    if done.returncode:
        return absent(f"{arguments[0]} ended with status {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout


def read_file(path: str | Path) -> str | dict[str, str]:
    """Content of a small system file, or why there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return absent(f"{path}: {error.strerror or error}")


def guarded(item: Callable[[], Any]) -> Any:
    """The item, or the error that kept it from being taken; a snapshot never aborts a run."""
    try:
        return item()
    except Exception as error:
        return absent(f"{type(error).__name__}: {error}")


def cpu() -> dict[str, Any]:
    """Model, cores, governor and the container's quota; a warning where quota and cores disagree."""
    visible = len(os.sched_getaffinity(0))
    quota = cgroup_quota(read_file("/sys/fs/cgroup/cpu.max"))
    warnings = []
    if isinstance(quota, float) and quota < visible:
        warnings.append(
            f"the container may use {quota:g} CPUs (cpu.max), {visible} are visible: more threads than that throttle"
        )
    return {
        "model": cpu_model(read_file("/proc/cpuinfo")),
        "architecture": platform.machine(),
        "logical_cores": psutil.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False) or absent("not reported"),
        "visible_cores": visible,
        "cgroup_quota_cpus": quota,
        "governor": read_file(CPU_DIR / "cpu0" / "cpufreq" / "scaling_governor"),
        "max_frequency_khz": read_file(CPU_DIR / "cpu0" / "cpufreq" / "cpuinfo_max_freq"),
        "smt": read_file(CPU_DIR / "smt" / "control"),
        "warnings": warnings,
    }


def cpu_model(cpuinfo: str | dict[str, str]) -> str | dict[str, str]:
    """The ``model name`` of ``/proc/cpuinfo``; Arm has none and gives implementer and part instead."""
    if isinstance(cpuinfo, dict):
        return cpuinfo
    entries = dict(
        (part.strip() for part in line.split(":", 1)) for line in reversed(cpuinfo.splitlines()) if ":" in line
    )
    if name := entries.get("model name"):
        return name
    if "CPU part" in entries:
        return f"implementer {entries.get('CPU implementer', '?')}, part {entries['CPU part']}"
    return absent("/proc/cpuinfo has no model name")


def this_cpu() -> str:
    """The model of this machine's CPU, or why it is unknown."""
    return str(cpu_model(read_file("/proc/cpuinfo")))


def cgroup_quota(cpu_max: str | dict[str, str]) -> float | str | dict[str, str]:
    """CPUs that ``cpu.max`` (cgroup v2: quota and period in microseconds) allows, or ``unlimited``."""
    if isinstance(cpu_max, dict):
        return cpu_max
    try:
        quota, period = cpu_max.split()
        return "unlimited" if quota == "max" else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return absent(f"cpu.max is {cpu_max!r}")


def memory() -> dict[str, Any]:
    virtual, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "total_bytes": virtual.total,
        "available_bytes": virtual.available,
        "swap_bytes": swap.total,
        "cgroup_limit": read_file("/sys/fs/cgroup/memory.max"),
        "transparent_hugepages": read_file("/sys/kernel/mm/transparent_hugepage/enabled"),
        "numa_nodes": [node.name for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))]
        or absent("no NUMA information"),
    }


def compilers() -> dict[str, Any]:
    found = {name: run_command(name, "--version") for name in ("cc", "c++", "cmake", "ninja", "ccache")}
    return {name: text.splitlines()[0] if isinstance(text, str) and text else text for name, text in found.items()}


def nvidia_gpus(only: str = "") -> list[str] | dict[str, str]:
    """Name, driver, memory and compute capability of each, as one line.

    Args:
        only: numbers or UUIDs, with commas between; empty for all.
    """
    query = "name,driver_version,memory.total,compute_cap"
    chosen = [f"--id={only}"] if only else []
    listing = run_command("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", *chosen)
    if isinstance(listing, dict):
        return listing
    return listing.strip().splitlines() or absent("nvidia-smi lists none")


def vulkan_devices() -> list[str] | dict[str, str]:
    """Name, kind and driver of each, as one line; a software device is of TYPE_CPU."""
    listing = run_command("vulkaninfo", "--summary")
    if isinstance(listing, dict):
        return listing
    devices: list[dict[str, str]] = []
    for line in listing.splitlines():
        if re.fullmatch(r"GPU\d+:", line.strip()):
            devices.append({})
        elif devices and "=" in line:
            name, _, value = line.partition("=")
            devices[-1][name.strip()] = value.strip()
    keys = ("deviceName", "deviceType", "driverName", "driverInfo")
    return [", ".join(device.get(key, "?") for key in keys) for device in devices] or absent("vulkaninfo lists none")


def gpus() -> dict[str, Any]:
    """Devices and drivers, by the interface that sees them."""
    return {"nvidia": guarded(nvidia_gpus), "vulkan": guarded(vulkan_devices)}


def packages() -> dict[str, str]:
    """Installed Python distributions and their versions."""
    return dict(sorted((d.metadata["Name"], d.version) for d in metadata.distributions() if d.metadata["Name"]))


def repository(path: Path) -> dict[str, Any]:
    """State of a git work tree: commit, dirty state, untracked files and submodules counted apart.

    Returns a reason instead where `path` is no repository, belongs to somebody else, or has no
    commit yet; never raises.
    """
    try:
        repo = git.Repo(path, search_parent_directories=False)
        commit = repo.head.commit.hexsha
        changed = repo.git.diff("--name-only", "--ignore-submodules", "HEAD").splitlines()
        return {
            "commit": commit,
            "branch": absent("detached") if repo.head.is_detached else repo.active_branch.name,
            "dirty": bool(changed),
            "changed_files": len(changed),
            "untracked_files": len(repo.untracked_files),
            "submodules": len(repo.submodules),
        }
    except git.InvalidGitRepositoryError:
        return absent(f"{path.name} is not a git repository")
    except git.NoSuchPathError:
        return absent(f"{path.name} does not exist")
    except (git.GitCommandError, ValueError) as error:
        message = str(error).strip()
        if "dubious ownership" in message:
            return absent("dubious ownership: the repository belongs to another user")
        return absent(message.splitlines()[0] if message else type(error).__name__)


def repository_diff(path: Path) -> str:
    """Uncommitted changes of tracked files as a patch; empty where there is no repository."""
    try:
        return git.Repo(path).git.diff("--ignore-submodules", "HEAD") + "\n"
    except (git.InvalidGitRepositoryError, git.NoSuchPathError, git.GitCommandError, ValueError):
        return ""


def snapshot(repositories: dict[str, Path]) -> dict[str, Any]:
    """Everything about this machine that can explain a timing.

    Args:
        repositories: work trees to describe, by name.
    """
    return {
        "taken_at": datetime.now().astimezone().isoformat(),
        "host": socket.gethostname(),
        "uname": platform.uname()._asdict(),
        "python": sys.version,
        "load_average": guarded(lambda: list(os.getloadavg())),
        "cpu": guarded(cpu),
        "memory": guarded(memory),
        "compilers": guarded(compilers),
        "gpus": guarded(gpus),
        "environment": {name: os.environ[name] for name in ENVIRONMENT_ALLOWED if name in os.environ},
        "repositories": {name: guarded(lambda path=path: repository(path)) for name, path in repositories.items()},
    }


def write_snapshot(folder: Path, repositories: dict[str, Path]) -> dict[str, Any]:
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
