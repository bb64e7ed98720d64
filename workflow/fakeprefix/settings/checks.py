"""What a single setting cannot say: combinations that make no sense, and files that are not there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakeprefix.arms import FAKE_PREFIX
from fakeprefix.engine_facts import COLUMN_WIDTH
from fakeprefix.errors import ConfigError
from fakeprefix.settings.sections import Settings


def check_combinations(settings: Settings) -> None:
    """Raise ConfigError for the first combination that makes no sense."""
    for problem in (_source_problem(settings), _measure_problem(settings), _engine_problem(settings)):
        if problem:
            raise ConfigError(f"config: {problem}")


def _source_problem(settings: Settings) -> str | None:
    model, trace, source = settings.model, settings.trace, settings.engine.source
    if model.kind == "gguf" and not model.path:
        return "model.path is empty, and model.kind is gguf; name the file of your model"
    if trace.source == "file" and not trace.path:
        return "trace.path is empty, and trace.source is file; name the file of your trace"
    if source.kind == "path" and not source.path:
        return "engine.source.path is empty, and engine.source.kind is path; name a checkout of the engine"
    return None


def _measure_problem(settings: Settings) -> str | None:
    plan, measure, fidelity = settings.plan, settings.measure, settings.measure.fidelity
    if plan.bucket_width % COLUMN_WIDTH:
        return f"plan.bucket_width = {plan.bucket_width}: is not a multiple of {COLUMN_WIDTH}"
    for name, values in {
        "measure.arms": measure.arms,
        "measure.fidelity.prefix_tokens": fidelity.prefix_tokens,
        "measure.fidelity.fills": fidelity.fills,
    }.items():
        if len(set(values)) < len(values):
            return f"{name} = {list(values)}: an entry stands there twice"
    if fidelity.max_rounds < fidelity.min_rounds:
        return f"measure.fidelity.max_rounds = {fidelity.max_rounds} is less than min_rounds = {fidelity.min_rounds}"
    if fidelity.prefix_tokens and measure.fill not in fidelity.fills:
        return f"measure.fidelity.fills lacks {measure.fill!r}, the fill that is measured"
    if plan.real_prefix_up_to and FAKE_PREFIX not in measure.arms:
        return "plan.real_prefix_up_to leaves longer prefixes to fake_prefix, which is not in measure.arms"
    return None


def _engine_problem(settings: Settings) -> str | None:
    run, backend = settings.engine.run, settings.engine.build.backend
    if run.n_gpu_layers > 0 and backend == "cpu":
        return f"engine.run.n_gpu_layers = {run.n_gpu_layers} needs engine.build.backend: cuda or vulkan"
    if run.n_gpu_layers == 0 and backend != "cpu":
        return (
            "engine.run.n_gpu_layers = 0 keeps no layer on the GPU, and large batches would go there all the same; "
            "measure the CPU with engine.build.backend: cpu"
        )
    if run.n_ubatch > run.n_batch:
        return f"engine.run.n_ubatch = {run.n_ubatch} is more than n_batch = {run.n_batch}"
    return None


def require_files(settings: Settings) -> None:
    """Check that the files exist which the settings name.

    Raises:
        ConfigError: one of them does not.
    """
    named = {}
    if settings.model.kind == "gguf":
        named |= {"model.path": settings.model.path, "model.mmproj": settings.model.mmproj}
    if settings.trace.source == "file":
        named["trace.path"] = settings.trace.path
    for key, path in named.items():
        if path and not Path(path).exists():
            raise ConfigError(f"config: {key} = {path!r}: there is no such file; fill in where yours is")


def require_node_settings(config: Mapping[str, Any]) -> None:
    """Check what only a run on a cluster has to say, since this machine is not the one that is measured.

    Args:
        config: as given, before `fakeprefix.settings.resolve`.

    Raises:
        ConfigError: the kind of node or its number of threads is left open.
    """
    if not config.get("node_type"):
        raise ConfigError("config: node_type is empty; name the kind of node that these jobs are sent to")
    if int(config.get("engine", {}).get("run", {}).get("threads", 0)) == 0:
        raise ConfigError(
            "config: engine.run.threads is 0, one a physical core of this machine; give the number for the nodes"
        )
