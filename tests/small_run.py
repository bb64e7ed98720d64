"""A cut-down run in a copy of the project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from conftest import ROOT

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--cores", "2"]

CUT_DOWN = {
    "run_name": "small",
    "trace": {"source": "grid", "grid": {"prefix_tokens": [300, 400, 700], "new_tokens": [48, 96]}},
    "plan": {"bucket_width": 512, "max_steps_per_bucket": 2},
    "measure": {
        "arms": ["baseline", "fake_prefix", "state_restore", "cached_prefix"],
        "repetitions": {"baseline": 2, "fake_prefix": 3, "state_restore": 2, "cached_prefix": 2, "depth_rate": 2},
        "fidelity": {"prefix_tokens": [300, 512], "new_tokens": 32, "cached_up_to": 300, "max_rounds": 10},
        "probe": {"prefix_tokens": 256, "new_tokens": 32},
    },
    # a small machine under test load drifts; that is not what is tested here
    "analysis": {"max_drift": 50.0, "agreement_margin": 50.0, "equivalence_margin": 0.9, "bootstrap": 200},
}


def copy_project(folder: Path) -> Path:
    """The files that git knows or would add, with the built engine and model linked in."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    (folder / "resources").symlink_to(ROOT / "resources")
    return folder


def environment_of_a_user() -> dict[str, str]:
    """Without what a running workflow announces to its jobs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FAKEPREFIX_")}


def snakemake(folder, *arguments, config=CUT_DOWN, check=True, environment=None, timeout_s=900, **options):
    overlay = folder / "overlay.yaml"
    overlay.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [*SNAKEMAKE, *arguments, "--configfile", str(overlay)],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment_of_a_user() | (environment or {}),
        timeout=timeout_s,
        **options,
    )
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done
