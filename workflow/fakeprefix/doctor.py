"""What this machine can do for a run, before anything is installed, built or measured."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fakeprefix.figures import gibibytes, number
from fakeprefix.machine.commands import Absent
from fakeprefix.machine.cpu import cpu
from fakeprefix.machine.limits import available_memory, usable_cores
from fakeprefix.machine.snapshot import compilers, gpus
from fakeprefix.model.gguf_file import facts_of_preset
from fakeprefix.model.presets import PRESETS

PREFLIGHT = Path(__file__).parents[1] / "preflight.sh"
PREFLIGHT_TIMEOUT_S = 60.0
# two builds of the engine, their objects, and the small generated models
ENGINE_DISK_BYTES = 4 * 2**30
# somebody else computes on at least half a core
BUSY_LOAD = 0.5


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: its name.
        found: what it is here.
        remedy: what to do about it; empty if nothing has to be done.
        required: without it nothing runs.
    """

    what: str
    found: str
    remedy: str = ""
    required: bool = False

    @property
    def fails(self) -> bool:
        return self.required and bool(self.remedy)


def examine(checkout: Path) -> list[Finding]:
    """Look at processor, load, memory, disk, tools, devices and what is built already.

    Args:
        checkout: folder in which the workflow would run.
    """
    return [_processor(), _load(), _memory(), _disk(checkout), _tools(), *_devices(), _engine(checkout)]


def _processor() -> Finding:
    found = cpu()
    model = found["model"] if isinstance(found["model"], str) else found["architecture"]
    return Finding("CPU", f"{model}, {usable_cores()} usable cores", "; ".join(found["warnings"]))


def _load() -> Finding:
    load = os.getloadavg()[0]
    remedy = "times are of a busy machine; measure when it is quiet" if load > BUSY_LOAD else ""
    return Finding("load", f"{number(load)} processes in the last minute", remedy)


def _memory() -> Finding:
    available = available_memory()
    fits = [name for name in PRESETS if facts_of_preset(name).weight_bytes < available]
    large = [name for name in PRESETS if name not in fits]
    more = f"; too large: {', '.join(large)}" if large else ""
    return Finding("memory", f"{gibibytes(available)} available, weights that fit: {', '.join(fits)}{more}")


def _disk(checkout: Path) -> Finding:
    free = shutil.disk_usage(checkout).free
    remedy = "" if free > ENGINE_DISK_BYTES else f"the engine needs about {gibibytes(ENGINE_DISK_BYTES)}; make room"
    return Finding("disk", f"{gibibytes(free)} free", remedy, required=True)


def _tools() -> Finding:
    found = compilers()
    # ninja says its number only
    versions = {name: text for name, text in found.items() if isinstance(text, str)}
    named = "; ".join(text if name in text else f"{name} {text}" for name, text in versions.items())
    problem = _preflight_problem()
    if not problem and not isinstance(found["ccache"], str):
        return Finding("tools", named, "ccache is not installed; with it a second build takes seconds (Debian: ccache)")
    return Finding("tools", named or "none", problem, required=bool(problem))


def _preflight_problem() -> str:
    if not PREFLIGHT.is_file():
        return ""
    done = subprocess.run(["sh", PREFLIGHT], capture_output=True, text=True, timeout=PREFLIGHT_TIMEOUT_S)
    return done.stderr.strip().removeprefix("error: ") if done.returncode else ""


def _devices() -> list[Finding]:
    named: dict[str, list[str] | Absent] = {"CUDA": gpus()["nvidia"], "Vulkan": gpus()["vulkan"]}
    return [
        Finding(what, "; ".join(found) if isinstance(found, list) else f"none ({found['absent']})")
        for what, found in named.items()
    ]


def _engine(checkout: Path) -> Finding:
    built = sorted(path.parent.name for path in (checkout / "resources" / "engine").glob("*/fast.json"))
    if built:
        return Finding("engine", f"built: {', '.join(built)}")
    return Finding("engine", "not built; the first run builds it")
