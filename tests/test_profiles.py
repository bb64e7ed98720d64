"""The profile that is found by itself, and what of it the others have to repeat."""

import re
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml
from conftest import ROOT

PROFILES = ROOT / "workflow" / "profiles"
DEFAULT = yaml.safe_load((PROFILES / "default" / "profile.yaml").read_text())
RULES = [
    block
    for path in (ROOT / "workflow" / "rules").glob("*.smk")
    for block in re.split(r"^(?=(?:use )?rule |checkpoint )", path.read_text(), flags=re.MULTILINE)
]


def test_the_default_profile_is_where_snakemake_looks_for_it():
    assert (ROOT / "profiles" / "default").samefile(PROFILES / "default")


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_a_profile_given_by_name_repeats_the_default_one(name):
    profile = yaml.safe_load((PROFILES / name / "config.yaml").read_text())
    assert {key: profile.get(key) for key in DEFAULT} == DEFAULT


def test_timing_jobs_take_all_cores_so_that_they_do_not_rest_on_the_profile():
    timing = [block for block in RULES if "timing=1" in block]
    assert {_name(block) for block in timing} == {
        "smoke",
        "measure_baseline",
        "measure_fidelity",
        "measure_depth_rate",
    }
    assert all("threads: workflow.cores" in block for block in timing)


def _name(block: str) -> str | None:
    found = re.match(r"(?:use rule \w+ as|rule|checkpoint) (\w+)", block)
    return found and found.group(1)


def test_two_timing_jobs_do_not_overlap_though_the_limit_is_lifted_on_the_command_line(tmp_path):
    (tmp_path / "Snakefile").write_text(
        "rule all:\n    input: expand('{i}.txt', i=range(3))\n"
        "rule timed:\n    output: '{i}.txt'\n    threads: workflow.cores\n    resources: timing=1\n"
        "    shell: 'date +%s.%N > {output}; sleep 0.5; date +%s.%N >> {output}'\n"
    )
    (tmp_path / "profiles").symlink_to(PROFILES)
    command = [sys.executable, "-m", "snakemake", "--cores", "4", "--resources", "other=1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    intervals = sorted(tuple(map(float, (tmp_path / f"{i}.txt").read_text().split())) for i in range(3))
    assert all(one[1] <= other[0] for one, other in pairwise(intervals))
