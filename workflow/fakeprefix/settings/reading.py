"""From what Snakemake read to frozen settings; the first thing that is wrong becomes one line with a remedy."""

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from fakeprefix.errors import ConfigError, nearest_name
from fakeprefix.machine.limits import usable_cores
from fakeprefix.settings.checks import check_combinations
from fakeprefix.settings.sections import ALL_LAYERS, EngineRun, Section, Settings

# what a value must be, by pydantic's name of what was wrong with it
WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a set of keys and values",
    "model_type": "a set of keys and values",
}


def resolve(config: Mapping[str, Any]) -> Settings:
    """Read a configuration: defaults filled in, strings of the command line read, everything checked.

    Raises:
        ConfigError: an unknown key (with the nearest known one, or its new name), a wrong type or value, or a
            combination that makes no sense.
    """
    try:
        settings = Settings.model_validate(dict(config))
    except ValidationError as error:
        first: Mapping[str, Any] = min(error.errors(), key=lambda item: [str(part) for part in item["loc"]])
        raise ConfigError(f"config: {describe(first)}") from None
    check_combinations(settings)
    return settings.model_copy(
        update={"engine": settings.engine.model_copy(update={"run": _filled_in(settings)})},
    )


def _filled_in(settings: Settings) -> EngineRun:
    """Threads and layers, where they were left to this machine."""
    run = settings.engine.run
    layers = 0 if settings.engine.build.backend == "cpu" else ALL_LAYERS
    return run.model_copy(
        update={
            "threads": run.threads or usable_cores(),
            "n_gpu_layers": layers if run.n_gpu_layers == -1 else run.n_gpu_layers,
        }
    )


def describe(error: Mapping[str, Any]) -> str:
    """What is wrong with which key, what it is and what it must be, in one line."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _describe_unknown([str(part) for part in error["loc"]])
    value = error["input"]
    shown = repr(list(value)) if isinstance(value, tuple) else repr(value)
    wanted = WANTED.get(error["type"])
    reason = f"must be {wanted}" if wanted else error["msg"].removeprefix("Input ").removeprefix("should ")
    if wanted and (unit := _unit_of(error["loc"])):
        reason += f", in {unit}"
    elif not wanted and error["msg"].startswith("Input should "):
        reason = f"must {reason}"
    return f"{where or 'the configuration'} = {shown}: {reason}"


def _describe_unknown(path: list[str]) -> str:
    section = section_at(path[:-1])
    if new := section.renamed.get(path[-1]):
        return f"{'.'.join(path)} is now {new}; use that name"
    return f"{'.'.join(path)} is not a key; {nearest_name(path[-1], list(section.model_fields))}"


def section_at(path: Iterable[str | int]) -> type[Section]:
    """The section that a path of keys leads to, or the last one on the way."""
    section: type[Section] = Settings
    for part in path:
        field = section.model_fields.get(str(part))
        kind = field.annotation if field else None
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            break
        section = kind
    return section


def _unit_of(path: tuple[str | int, ...]) -> str:
    names = [part for part in path if isinstance(part, str)]
    field = section_at(names).model_fields.get(names[-1]) if names else None
    extra = field.json_schema_extra if field else None
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def choices(annotation: Any) -> list[str]:
    """The words that a setting can be, empty if it is no choice between words."""
    return [value for value in get_args(annotation) if isinstance(value, str)]
