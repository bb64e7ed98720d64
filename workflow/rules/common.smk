import sys
from pathlib import Path

WORKFLOW = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from fakeprefix import jobs, runs
from fakeprefix.config import resolve
from fakeprefix.engine.source import engine_folder, load_series
from fakeprefix.errors import FakePrefixError
from fakeprefix.host import this_cpu
from fakeprefix.plan import measured_buckets
from fakeprefix.snakemake_settings import (
    content_decides,
    continue_after_a_crash,
    free_stale_lock,
    one_timing_job,
    remember_main_process,
    rename_targets,
)
from fakeprefix.trace.importing import CONVERSATIONS
from fakeprefix.trace.make_steps import format_of_trace

PACKAGE = WORKFLOW / "fakeprefix"
RESULTS = Path("results")

try:
    CONFIG = resolve(config)
    SERIES = load_series(Path("patches"), CONFIG["engine"]["series"])
    ENGINE = engine_folder(Path(), CONFIG["engine"], this_cpu()).as_posix()
    IDENTITY = runs.identity_of(CONFIG, SERIES.sha256, runs.code_sha256(PACKAGE))
    RUN_NAME = runs.choose(
        RESULTS,
        IDENTITY,
        CONFIG["run"],
        CONFIG["run_name"],
        may_start=workflow.is_main_process,
    )
    TRACE_FORMAT = format_of_trace(CONFIG["trace"])
except FakePrefixError as error:
    raise WorkflowError(str(error))

RUN = f"results/{RUN_NAME}"
SERVER = f"{ENGINE}/build-fast/bin/llama-server"
CONTRACT = str(runs.contract_file(Path(ENGINE), PACKAGE))
MODELS = str(runs.models_folder(Path(), PACKAGE))

jobs.make_importable(WORKFLOW)
one_timing_job(workflow)
content_decides(workflow)
continue_after_a_crash(workflow)
if workflow.is_main_process:
    free_stale_lock(Path(".snakemake"))
rename_targets(
    workflow,
    ["baseline", "fake_prefix", "state_restore", "cached_prefix", "fidelity", "depth_rate"],
)


wildcard_constraints:
    bucket=r"\d+",
    length=r"\d+",
    flavour="fast|checked",
    preset="[a-z0-9-]+",
    seed=r"\d+",


def code(*parts):
    """Digest of the package's modules below these parts: what a script imports is not an input of its rule."""
    return runs.code_sha256(PACKAGE, parts)


def synthetic(preset, seed, file):
    """A file of a generated model."""
    return f"{MODELS}/{preset}-{seed}/{file}"


def model_file():
    """The model that is measured."""
    if CONFIG["model"]["kind"] == "gguf":
        return CONFIG["model"]["path"]
    return synthetic(CONFIG["model"]["preset"], CONFIG["model"]["seed"], "model.gguf")


def mmproj_file():
    """Its projector, or no file."""
    if CONFIG["model"]["kind"] == "gguf":
        return [CONFIG["model"]["mmproj"]] if CONFIG["model"]["mmproj"] else []
    return [synthetic(CONFIG["model"]["preset"], CONFIG["model"]["seed"], "mmproj.gguf")]


def buckets():
    """Buckets of the plan that have something to measure; makes the plan first."""
    return measured_buckets(Path(checkpoints.plan.get().output.plan))


def arm_rows(arm):
    """Raw files of one arm, one a bucket."""
    return [f"{RUN}/raw/{arm}/{bucket}.jsonl" for bucket in buckets()]


def baseline_rows(wildcards):
    """Rows of whole prompts, one file a bucket."""
    return arm_rows("baseline")


def fake_prefix_rows(wildcards):
    """Rows over fabricated prefixes, one file a bucket."""
    return arm_rows("fake_prefix")


def state_restore_rows(wildcards):
    """Rows over restored prefixes, one file a bucket."""
    return arm_rows("state_restore")


def cached_prefix_rows(wildcards):
    """Rows over the engine's own prompt cache, one file a bucket."""
    return arm_rows("cached_prefix")


def fidelity_rows(suffix="jsonl"):
    """Turns of all arms, one file a prefix length."""
    return [f"{RUN}/raw/fidelity/{length}.{suffix}" for length in CONFIG["measure"]["fidelity"]["prefix_tokens"]]


def all_rows(wildcards):
    """Raw files of all arms that the configuration asks for, of the turns, and of the benchmark's probes."""
    rows = [file for arm in CONFIG["measure"]["arms"] for file in arm_rows(arm)]
    samples = [Path(file) for file in depth_rates(wildcards)]
    probes = [str(file.with_suffix(f".{when}.jsonl")) for file in samples for when in ("before", "after")]
    return rows + fidelity_rows() + probes


def depth_rates(wildcards):
    """Results of the independent benchmark, one a bucket; none if it is not to be run."""
    if not CONFIG["measure"]["repetitions"]["depth_rate"]:
        return []
    return [f"{RUN}/raw/depth_rate/{bucket}.json" for bucket in buckets()]


onstart:
    try:
        forced = workflow.dag_settings.forceall or bool(workflow.dag_settings.forcerun)
        packs = set(workflow.dag_settings.targets or ()) == {"archive"}
        runs.begin(RESULTS, RUN_NAME, IDENTITY, CONFIG, forced=forced, packs=packs)
        jobs.announce_run(runs.ENVIRONMENT_KEY, RUN_NAME)
        jobs.announce_main_process()
        remember_main_process(Path(".snakemake"))
    except FakePrefixError as error:
        raise WorkflowError(str(error))
