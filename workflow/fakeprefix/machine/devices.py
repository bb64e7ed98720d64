"""What a build for a GPU needs: the device itself, its driver, and the compiler of its kernels."""

import os
import re
import shutil
from pathlib import Path

from fakeprefix.errors import EngineError
from fakeprefix.machine.commands import Absent, run_command

CPU, CUDA, VULKAN = "cpu", "cuda", "vulkan"
# variables by which CMake is told, and the program that compiles the kernels
BACKEND_FLAGS: dict[str, dict[str, str]] = {CPU: {}, CUDA: {"GGML_CUDA": "ON"}, VULKAN: {"GGML_VULKAN": "ON"}}
KERNEL_COMPILER = {CUDA: "nvcc", VULKAN: "glslc"}
# the engine takes a device that only emulates a GPU if it is named here, and else passes over it
VULKAN_CHOICE = "GGML_VK_VISIBLE_DEVICES"
GPU_MEMORY = re.compile(r", (\d+) MiB(?:,|$)")
# a GPU that has no memory of its own but the machine's
SHARED_MEMORY = re.compile(r", \[(?:N/A|Not Supported)\](?:,|$)")
LISTED_DEVICE = re.compile(r"^\s+(\w+): (.+?)(?: \((\d+) MiB, (\d+) MiB free\))?$")


def nvidia_gpus(only: str = "") -> list[str] | Absent:
    """Name, driver, memory and compute capability of each, as one line.

    Args:
        only: numbers or UUIDs, with commas between; empty for all.
    """
    query = "name,driver_version,memory.total,compute_cap"
    chosen = [f"--id={only}"] if only else []
    listing = run_command("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", *chosen)
    if isinstance(listing, dict):
        return listing
    return listing.strip().splitlines() or Absent(absent="nvidia-smi lists none")


def vulkan_devices() -> list[str] | Absent:
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
    found = [", ".join(device.get(key, "?") for key in keys) for device in devices]
    return found or Absent(absent="vulkaninfo lists none")


def require_device(backend: str) -> list[str]:
    """The devices that a backend would use, as their drivers name them; nothing for the CPU.

    Raises:
        EngineError: this machine has no such device, or no compiler for it.
    """
    if backend == CPU:
        return []
    found = nvidia_gpus() if backend == CUDA else vulkan_devices()
    if isinstance(found, dict):
        raise EngineError(
            f"engine.build.backend: {backend} needs a GPU, and this machine shows none: {found['absent']}"
        )
    if backend == VULKAN and VULKAN_CHOICE not in os.environ:
        found = [name for name in found if "TYPE_CPU" not in name]
        if not found:
            raise EngineError(
                f"engine.build.backend: {backend} finds only a device that emulates a GPU on the CPU; "
                f"set {VULKAN_CHOICE}=0 if that is meant"
            )
    compiler = KERNEL_COMPILER[backend]
    if not shutil.which(compiler):
        raise EngineError(f"engine.build.backend: {backend} needs {compiler} on the PATH, and it is not there")
    return found


def gpu_memory(backend: str) -> int | None:
    """Bytes that the GPUs of a backend have together, of their own.

    Of NVIDIA's those count that ``CUDA_VISIBLE_DEVICES`` names, if it is set. Vulkan's summary has no sizes.

    Returns:
        None where no driver tells, without a GPU, and where one of them has the machine's memory
        (see `unified_memory`), which is no memory to be added.
    """
    found = _chosen_gpus(backend)
    if any(SHARED_MEMORY.search(line) for line in found):
        return None
    return sum(int(match[1]) * 2**20 for line in found if (match := GPU_MEMORY.search(line))) or None


def unified_memory(backend: str) -> bool:
    """True if a GPU of the backend computes in the machine's own memory: its driver reports ``[N/A]`` for a size.

    Everything that lies on such a GPU counts against `fakeprefix.machine.limits.available_memory`, together with
    what lies on the host.
    """
    return any(SHARED_MEMORY.search(line) for line in _chosen_gpus(backend))


def _chosen_gpus(backend: str) -> list[str]:
    found = nvidia_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", "")) if backend == CUDA else []
    return found if isinstance(found, list) else []


def listed_devices(binary: Path) -> dict[str, str]:
    """Devices besides the CPU that a build of the engine sees: its own names and descriptions.

    Args:
        binary: ``llama-server``.
    """
    listing = run_command(str(binary), "--list-devices")
    if isinstance(listing, dict):
        raise EngineError(f"{binary}: {listing['absent']}")
    return {match[1]: match[2] for line in listing.splitlines() if (match := LISTED_DEVICE.match(line))}
