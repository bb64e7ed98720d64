"""The configuration: defaults, validation with a remedy, and what the rest of the package gets from it."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import yaml
from jsonschema import Draft202012Validator

from fakeprefix.errors import ConfigError, nearest_name

SCHEMA_PATH = Path(__file__).parents[1] / "schemas" / "config.schema.yaml"

# more than any model has
ALL_LAYERS = 999

# they choose a run folder, they do not change what is measured
NOT_IDENTITY = ("run", "run_name")


def load_schema() -> dict[str, Any]:
    """The JSON Schema of the configuration."""
    return yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))


def resolve(config: dict[str, Any], schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """A copy of `config` with strings of the command line coerced, defaults filled in, and checked.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a wrong type or value, or a
            combination that makes no sense.
    """
    schema = schema or load_schema()
    resolved = _coerce(deepcopy(config), schema)
    resolved = _with_defaults(resolved, schema)
    validator = Draft202012Validator(schema)
    errors = sorted(validator.iter_errors(resolved), key=lambda error: [str(part) for part in error.absolute_path])
    if errors:
        raise ConfigError(_describe(errors[0], schema))
    _check_combinations(resolved)
    if resolved["engine"]["run"]["threads"] == 0:
        resolved["engine"]["run"]["threads"] = usable_cores()
    if resolved["engine"]["run"]["n_gpu_layers"] == -1:
        on_cpu = resolved["engine"]["build"]["backend"] == "cpu"
        resolved["engine"]["run"]["n_gpu_layers"] = 0 if on_cpu else ALL_LAYERS
    return resolved


def require_files(config: dict[str, Any]) -> None:
    """Check that the files exist which a resolved configuration names.

    Raises:
        ConfigError: one of them does not.
    """
    model, trace = config["model"], config["trace"]
    named = {}
    if model["kind"] == "gguf":
        named |= {"model.path": model["path"], "model.mmproj": model["mmproj"]}
    if trace["source"] == "file":
        named["trace.path"] = trace["path"]
    for key, path in named.items():
        if path and not Path(path).exists():
            raise ConfigError(f"config: {key} = {path!r}: there is no such file; fill in where yours is")


def require_node_settings(config: dict[str, Any]) -> None:
    """Check what only a run on a cluster has to say, since this machine is not the one that is measured.

    Args:
        config: as given, before `resolve`.

    Raises:
        ConfigError: the kind of node or its number of threads is left open.
    """
    if not config.get("node_type"):
        raise ConfigError("config: node_type is empty; name the kind of node that these jobs are sent to")
    if int(config.get("engine", {}).get("run", {}).get("threads", 0)) == 0:
        raise ConfigError(
            "config: engine.run.threads is 0, one a physical core of this machine; give the number for the nodes"
        )


def usable_cores() -> int:
    """Physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _coerce(value: Any, schema: dict[str, Any]) -> Any:
    """``--config a='[1, 2]'`` arrives as a string; read it as YAML where the schema wants something else."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if isinstance(value, str) and "string" not in kinds and kinds != [None]:
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            return value
        value = parsed if not isinstance(parsed, str) else value
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return {key: _coerce(item, properties.get(key, {})) for key, item in value.items()}
    if isinstance(value, list):
        return [_coerce(item, schema.get("items", {})) for item in value]
    return value


def _with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    if schema.get("type") != "object" or not isinstance(value, dict):
        return value
    filled = dict(value)
    for key, sub in schema.get("properties", {}).items():
        if key not in filled:
            if "default" in sub:
                filled[key] = deepcopy(sub["default"])
            elif sub.get("type") == "object":
                filled[key] = {}
        if key in filled:
            filled[key] = _with_defaults(filled[key], sub)
    return filled


def _describe(error: Any, schema: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        name = f"{where}.{unknown}" if where else unknown
        return f"config: {name} is not a key; {nearest_name(str(unknown), known)}"
    reason = error.message.removeprefix(repr(error.instance)).strip()
    return f"config: {where or 'the configuration'} = {error.instance!r}: {reason}"


def _check_combinations(config: dict[str, Any]) -> None:
    model, trace = config["model"], config["trace"]
    if model["kind"] == "gguf" and not model["path"]:
        raise ConfigError("config: model.path is empty, and model.kind is gguf; name the file of your model")
    if trace["source"] == "file" and not trace["path"]:
        raise ConfigError("config: trace.path is empty, and trace.source is file; name the file of your trace")
    source = config["engine"]["source"]
    if source["kind"] == "path" and not source["path"]:
        raise ConfigError(
            "config: engine.source.path is empty, and engine.source.kind is path; name a checkout of the engine"
        )
    if config["plan"]["bucket_width"] % 256:
        raise ConfigError(f"config: plan.bucket_width = {config['plan']['bucket_width']}: is not a multiple of 256")
    fidelity = config["measure"]["fidelity"]
    if fidelity["max_rounds"] < fidelity["min_rounds"]:
        raise ConfigError(
            f"config: measure.fidelity.max_rounds = {fidelity['max_rounds']} is less than min_rounds = "
            f"{fidelity['min_rounds']}"
        )
    if fidelity["prefix_tokens"] and config["measure"]["fill"] not in fidelity["fills"]:
        raise ConfigError(
            f"config: measure.fidelity.fills lacks {config['measure']['fill']!r}, the fill that is measured"
        )
    if config["measure"]["real_prefix_up_to"] and "fake_prefix" not in config["measure"]["arms"]:
        raise ConfigError(
            "config: measure.real_prefix_up_to leaves longer prefixes to fake_prefix, which is not in measure.arms"
        )
    run = config["engine"]["run"]
    if run["n_gpu_layers"] > 0 and config["engine"]["build"]["backend"] == "cpu":
        raise ConfigError(
            f"config: engine.run.n_gpu_layers = {run['n_gpu_layers']} needs engine.build.backend: cuda or vulkan"
        )
    if run["n_gpu_layers"] == 0 and config["engine"]["build"]["backend"] != "cpu":
        raise ConfigError(
            "config: engine.run.n_gpu_layers = 0 keeps no layer on the GPU, and large batches would go there all the "
            "same; measure the CPU with engine.build.backend: cpu"
        )
    if run["n_ubatch"] > run["n_batch"]:
        raise ConfigError(f"config: engine.run.n_ubatch = {run['n_ubatch']} is more than n_batch = {run['n_batch']}")
