import sys
from pathlib import Path
from socket import gethostname

WORKFLOW = Path(workflow.basedir) / "workflow"
sys.path.insert(0, str(WORKFLOW))

from snakemake.exceptions import WorkflowError

from fakeprefix import jobs
from fakeprefix.runs import folder as runs
from fakeprefix.engine.build import settings_of_flavour
from fakeprefix.engine.source import engine_folder, load_series
from fakeprefix.arms import ARMS
from fakeprefix.errors import FakePrefixError, RunError
from fakeprefix.last_words import collect_errors, say_last
from fakeprefix.machine.cpu import this_cpu
from fakeprefix.model.presets import takes_images, variant
from fakeprefix.planning.steps import measured_buckets, prefix_bound
from fakeprefix.runs.code import code_sha256
from fakeprefix.runs.identity import content_digests, identity_of
from fakeprefix.runs.shared import contract_file, models_folder
from fakeprefix.settings import require_files, require_node_settings, resolve
from fakeprefix.stale_lock import free_stale_lock, remember_main_process
from fakeprefix.storage import sha256_files
from fakeprefix.trace.importing import CONVERSATIONS
from fakeprefix.trace.make_steps import format_of_trace

PACKAGE = WORKFLOW / "fakeprefix"
RESULTS = Path("results")
TEMPLATES = PACKAGE / "report" / "templates"
TEMPLATES_SHA256 = sha256_files([file for file in TEMPLATES.rglob("*") if file.is_file()], TEMPLATES)
MEASURED_TARGETS = {*ARMS, "fidelity", "depth_rate"}


def code(*scripts):
    """Digest of these scripts and all that they import: what a script imports is not an input of its rule."""
    return code_sha256([WORKFLOW / "scripts" / f"{script}.py" for script in scripts], WORKFLOW)


def measured_files():
    """Files of the user's that are measured with: their content counts, whatever they are called."""
    files = [CONFIG["trace"]["path"]] if CONFIG["trace"]["source"] == "file" else []
    if CONFIG["model"]["kind"] == "gguf":
        files += [CONFIG["model"]["path"], *([CONFIG["model"]["mmproj"]] if CONFIG["model"]["mmproj"] else [])]
    return files


try:
    SETTINGS = resolve(config)
    require_files(SETTINGS)
    # a rule hands its script the sections that it needs, as plain values
    CONFIG = SETTINGS.as_params()
    SERIES = load_series(Path("patches"), CONFIG["engine"]["series"])
    ENGINE = engine_folder(Path(), CONFIG["engine"], CONFIG["node_type"] or this_cpu()).as_posix()
    IDENTITY = identity_of(
        CONFIG,
        SERIES.sha256,
        content_digests(measured_files(), Path("resources", "digests.json")),
        code("model_facts", "trace", "plan", "measure", "fidelity", "depth_rate", "measurements", "smoke", "host"),
        code("analysis", "report") + TEMPLATES_SHA256,
    )
    RUN_NAME = runs.choose(
        RESULTS,
        IDENTITY,
        CONFIG["run"],
        CONFIG["run_name"],
        CONFIG["node_type"] or gethostname(),
        may_start=workflow.is_main_process,
        reserved=Path(".snakemake", "fakeprefix_names"),
    )
    if workflow.is_main_process:
        runs.require_undamaged(RESULTS, RUN_NAME, sys.argv[1:])
    SYNTHETIC = (CONFIG["model"]["preset"], CONFIG["model"]["seed"], CONFIG["model"]["shape"])
    TRACE_FORMAT = format_of_trace(SETTINGS.trace)
except FakePrefixError as error:
    # one line, without Snakemake's trace of where it was raised
    sys.exit(f"error: {error}")

RUN = f"results/{RUN_NAME}"
SERVER = f"{ENGINE}/build-fast/bin/llama-server"
CONTRACT = str(contract_file(Path(ENGINE), Path()))
MODELS = str(models_folder(Path()))

jobs.make_importable(WORKFLOW)
if workflow.is_main_process:
    free_stale_lock(Path(".snakemake"))


# small, or in need of a network: on a cluster they stay with the main process
localrules:
    engine_source,
    engine,
    measurements,
    analysis,
    report,
    seal,
    archive,


wildcard_constraints:
    bucket=r"\d+",
    length=r"\d+",
    flavour="fast|checked",
    preset="[a-z0-9-]+",
    seed=r"\d+",
    variant=r"(\+[0-9a-f]{8})?",


def synthetic(preset, seed, shape, file):
    """A file of a generated model; one of other dimensions than the preset's has a folder of its own."""
    return f"{MODELS}/{preset}-{seed}{variant(shape)}/{file}"


def build_settings(wildcards):
    """How a flavour is compiled."""
    return settings_of_flavour(wildcards.flavour, CONFIG["engine"]["build"])


def shape_of(wildcards):
    """Dimensions of a generated model that differ from its preset's."""
    return CONFIG["model"]["shape"] if wildcards.variant else {}


def model_file():
    """The model that is measured."""
    if CONFIG["model"]["kind"] == "gguf":
        return CONFIG["model"]["path"]
    return synthetic(*SYNTHETIC, "model.gguf")


def mmproj_file():
    """Its projector, or no file."""
    if CONFIG["model"]["kind"] == "gguf":
        return [CONFIG["model"]["mmproj"]] if CONFIG["model"]["mmproj"] else []
    return [synthetic(*SYNTHETIC, "mmproj.gguf")] if takes_images(CONFIG["model"]["preset"]) else []


def buckets(arm):
    """Buckets of the plan in which an arm, or the benchmark, has something to measure; makes the plan first."""
    return measured_buckets(
        Path(checkpoints.plan.get().output.plan), prefix_bound(arm, SETTINGS.plan.real_prefix_up_to)
    )


def require_measuring_rules(forced):
    """Refuse ``-R fake_prefix``: that target only collects rows, and nothing would be measured again."""
    for target in sorted(MEASURED_TARGETS & set(forced)):
        raise RunError(f"-R {target}: {target} is a target, the rule that measures is -R measure_{target}")


def arm_rows(arm):
    """Raw files of one arm, one a bucket."""
    return [f"{RUN}/raw/{arm}/{bucket}.jsonl" for bucket in buckets(arm)]


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
    return [f"{RUN}/raw/depth_rate/{bucket}.json" for bucket in buckets("depth_rate")]


onstart:
    collect_errors(Path(".snakemake"))
    try:
        if workflow.non_local_exec:
            require_node_settings(config)
        require_measuring_rules(workflow.dag_settings.forcerun)
        forced = workflow.dag_settings.forceall or bool(workflow.dag_settings.forcerun)
        packs = set(workflow.dag_settings.targets or ()) == {"archive"}
        runs.begin(RESULTS, RUN_NAME, IDENTITY, CONFIG, forced=forced, packs=packs)
        jobs.announce_run(runs.ENVIRONMENT_KEY, RUN_NAME)
        jobs.announce_main_process()
        remember_main_process(Path(".snakemake"))
    except FakePrefixError as error:
        say_last(str(error))
        raise WorkflowError(str(error))
