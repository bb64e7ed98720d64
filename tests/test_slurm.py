"""The default workflow on a real SLURM of one node; ``make test-slurm`` starts it, nothing else does."""

import os
import re
import subprocess
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT
from fakeprefix.runs.folder import verify
from fakeprefix.storage import read_json
from small_run import copy_project, snakemake

pytestmark = pytest.mark.slurm

CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
TIMING = {"smoke", "measure_baseline", "measure_fake_prefix", "measure_fidelity", "measure_depth_rate"}
ON_THE_NODE = TIMING | {"host", "engine_build", "contract", "synthetic_model", "model_facts", "plan", "model", "trace"}
LOCAL = {"engine_source", "engine", "measurements", "analysis", "report", "seal"}
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Job:
    """A finished job in SLURM's own record, at a resolution of seconds."""

    number: int
    start: datetime
    end: datetime
    state: str

    def beside(self, other: "Job") -> bool:
        return self.start < other.end and other.start < self.end


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if not os.environ.get("SLURM_REQUIRED"):
        pytest.skip("make test-slurm starts a SLURM of its own")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([CLUSTER, "start", folder], check=True)
    yield folder
    subprocess.run([CLUSTER, "stop", folder], check=True)


def finished_jobs(cluster: Path) -> list[Job]:
    jobs = []
    for line in (cluster / "jobs.txt").read_text().splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        start, end = (datetime.fromisoformat(fields[name]) for name in ("StartTime", "EndTime"))
        jobs.append(Job(int(fields["JobId"]), start, end, fields["JobState"]))
    return jobs


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    """The run folder, the rule of each of its jobs, and the numbers of jobs that somebody else submitted."""
    project = copy_project(tmp_path_factory.mktemp("project"))
    environment = {"SLURM_CONF": str(cluster / "slurm.conf")}
    over, others = threading.Event(), []

    def somebody_else():
        # a small job all the time: it would fit beside a timing job that did not have its node for itself
        command = ["sbatch", "--wait", "--parsable", "--ntasks=1", "--output=/dev/null", "--wrap=sleep 2"]
        while not over.wait(5):
            done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
            others.append(int(done.stdout))

    thread = threading.Thread(target=somebody_else)
    thread.start()
    try:
        options = ["--profile", "workflow/profiles/slurm", "--cores", str(CORES), "--slurm-no-account"]
        options += ["--slurm-status-command", "squeue", "--slurm-keep-successful-logs"]
        options += ["--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "3"]
        config = {"run_name": "slurm", "node_type": "one-node", "engine": {"run": {"threads": CORES}}}
        done = snakemake(project, *options, config=config, environment=environment, timeout_s=3600)
    finally:
        over.set()
        thread.join()
    assert "verdict:" in done.stderr
    rules = {}
    for log in (project / ".snakemake" / "slurm_logs").rglob("*.log"):
        rules[int(log.stem)] = log.relative_to(project / ".snakemake" / "slurm_logs").parts[0].removeprefix("rule_")
    return (project / "results" / "current").resolve(), rules, others


def test_it_goes_from_start_to_a_sealed_report(run):
    folder, rules, _ = run
    assert folder.name.endswith("_one-node_slurm")
    assert verify(folder) == []
    assert (folder / "report.html").is_file()
    rows = pd.read_parquet(folder / "measurements.parquet")
    assert (rows.status == "ok").all(), rows.error.dropna().tolist()
    assert read_json(folder / "summary.json")["registered"]
    assert set(rules.values()) >= ON_THE_NODE
    assert not set(rules.values()) & LOCAL


def test_nothing_runs_beside_a_timing_job(run, cluster):
    _, rules, others = run
    jobs = {job.number: job for job in finished_jobs(cluster)}
    timing = [jobs[number] for number, rule in rules.items() if rule in TIMING]
    assert len(timing) >= 10
    assert all(job.state == "COMPLETED" for job in timing)
    assert len(set(others) & jobs.keys()) >= 10
    beside = [
        (one.number, other.number) for one in timing for other in jobs.values() if one != other and one.beside(other)
    ]
    assert beside == []
    first, last = min(job.start for job in jobs.values()), max(job.end for job in jobs.values())
    mine = [job for job in jobs.values() if job.number in rules]
    print(
        f"\n{len(mine)} jobs, {len(timing)} of them timing, {len(others)} of somebody else; "
        f"{(last - first).total_seconds():.0f} s in all, none beside a timing job"
    )


def test_what_only_a_cluster_has_to_say_is_asked_for(tmp_path):
    project = copy_project(tmp_path)
    options = ["--profile", "workflow/profiles/slurm", "--slurm-no-account"]
    done = snakemake(project, *options, config={}, check=False)
    assert done.returncode != 0
    assert "node_type is empty; name the kind of node" in done.stderr
    done = snakemake(project, *options, config={"node_type": "x"}, check=False)
    assert "engine.run.threads is 0" in done.stderr
    assert sorted(path.name for path in (project / "results").iterdir()) == [".gitkeep"]


def test_the_kubernetes_profile_passes_a_dry_run(tmp_path):
    project = copy_project(tmp_path)
    config = {"node_type": "x", "engine": {"run": {"threads": 8}}}
    environment = {"FAKEPREFIX_RUN": "2026-01-02_030405_x_default"}
    profile = ["--profile", "workflow/profiles/kubernetes"]
    done = snakemake(project, *profile, "-n", config=config, environment=environment)
    assert {"host", "engine_build", "plan", "smoke", "analysis", "seal"} <= set(done.stdout.split())
