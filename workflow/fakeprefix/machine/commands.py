"""What commands and small system files say; where there is nothing, the reason instead, never an error."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

COMMAND_TIMEOUT_S = 20.0

# which device a program sees, and by which driver: the same for the snapshot, the check and the engine
DEVICE_VARIABLES = (
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
)


class Absent(TypedDict):
    """An item that could not be had, with the reason."""

    absent: str


def kept_environment(*names: str) -> dict[str, str]:
    """These variables of the environment, where they are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def run_command(*arguments: str) -> str | Absent:
    """Output of a command in the C locale, or why there is none."""
    if not shutil.which(arguments[0]):
        return Absent(absent=f"{arguments[0]} is not installed")
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
        return Absent(absent=f"{arguments[0]}: {error}")
    if done.returncode:
        return Absent(absent=f"{arguments[0]} ended with status {done.returncode}: {done.stderr.strip()[:200]}")
    return done.stdout


def read_file(path: str | Path) -> str | Absent:
    """Content of a small system file, or why there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return Absent(absent=f"{path}: {error.strerror or error}")
