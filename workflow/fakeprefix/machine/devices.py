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
    """Bytes that the GPUs of a backend have together; None where no driver tells, and without a GPU.

    Of NVIDIA's those count that ``CUDA_VISIBLE_DEVICES`` names, if it is set. Vulkan's summary has no sizes.
    """
    found = nvidia_gpus(os.environ.get("CUDA_VISIBLE_DEVICES", "")) if backend == CUDA else []
    if isinstance(found, dict):
        return None
    return sum(int(match[1]) * 2**20 for line in found if (match := GPU_MEMORY.search(line))) or None


def listed_devices(binary: Path) -> dict[str, str]:
    """Devices besides the CPU that a build of the engine sees: its own names and descriptions.

    Args:
        binary: ``llama-server``.
    """
    listing = run_command(str(binary), "--list-devices")
    if isinstance(listing, dict):
        raise EngineError(f"{binary}: {listing['absent']}")
    return {match[1]: match[2] for line in listing.splitlines() if (match := LISTED_DEVICE.match(line))}
