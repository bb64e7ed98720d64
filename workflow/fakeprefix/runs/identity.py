"""What makes two calls the same experiment, and what makes them the same analysis of it."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fakeprefix.storage import read_json, sha256_file, write_json

log = logging.getLogger(__name__)

IDENTITY_FILE = Path("pipeline", "identity.json")
CONFIG_FILE = Path("pipeline", "config.yaml")

MEASUREMENT_SECTIONS = ("engine", "model", "trace", "plan", "measure", "node_type")
ANALYSIS_SECTIONS = ("analysis",)

# below this a digest takes less than the line that would announce it
LARGE_BYTES = 1 << 30


@dataclass(frozen=True)
class Identity:
    """Everything that a run depends on, by dotted key: values of settings, digests of files and code."""

    measurement: dict[str, Any]
    analysis: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the measurement identity, 16 hex digits: what decides which run folder a call belongs to."""
        text = json.dumps(self.measurement, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """What `IDENTITY_FILE` holds."""
        return {"identity": self.name, "measurement": self.measurement, "analysis": self.analysis}


def identity_of(
    config: Mapping[str, Any],
    series_sha256: str,
    contents: Mapping[str, str],
    measuring_code: str,
    analysis_code: str,
) -> Identity:
    """The identities of a call.

    Args:
        config: resolved settings as plain values.
        series_sha256: digest of the patch series.
        contents: digests by path of the trace's and the model's files, from `content_digests`.
        measuring_code: digest of the code that makes raw rows.
        analysis_code: digest of the code of analysis and report.
    """
    digests = {f"content of {path}": digest for path, digest in contents.items()}
    others = {"patch series": series_sha256, "code that measures": measuring_code}
    return Identity(
        {**flattened(config, MEASUREMENT_SECTIONS), **digests, **others},
        {**flattened(config, ANALYSIS_SECTIONS), "code of analysis and report": analysis_code},
    )


def flattened(config: Mapping[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """Values of some sections by dotted key, as JSON gives them back; a list is one value."""
    found: dict[str, Any] = {}

    def add(key: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                add(f"{key}.{name}", inner)
        else:
            found[key] = value

    for section in sections:
        if section in config:
            add(section, config[section])
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Keys that are missing in one of both or have another value there, sorted."""
    missing = object()
    return sorted(key for key in {*one, *other} if one.get(key, missing) != other.get(key, missing))


def measured_otherwise(folder: Path, identity: Identity) -> list[str]:
    """Keys in which the run in `folder` was measured otherwise than `identity` says, sorted.

    An older run recorded its settings only; its content and code cannot be compared.
    """
    if (folder / IDENTITY_FILE).is_file():
        return differing_keys(read_json(folder / IDENTITY_FILE)["measurement"], identity.measurement)
    if not (folder / CONFIG_FILE).is_file():
        return []
    config = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    earlier = flattened(config, MEASUREMENT_SECTIONS)
    # values only, without digests: those keys have no dotted section in front
    settings = {key: value for key, value in identity.measurement.items() if key.split(".")[0] in MEASUREMENT_SECTIONS}
    return differing_keys(earlier, settings)


def analysed_otherwise(folder: Path, identity: Identity) -> list[str]:
    """Keys in which the run in `folder` was analysed otherwise, sorted; none for a run that recorded nothing."""
    if not (folder / IDENTITY_FILE).is_file():
        return []
    return differing_keys(read_json(folder / IDENTITY_FILE)["analysis"], identity.analysis)


def content_digests(paths: Iterable[str | Path], cache: Path) -> dict[str, str]:
    """The sha256 of files by path; a file of known size and modification time is not read again.

    Args:
        paths: existing files; others are left out, it is not for an identity to refuse them.
        cache: JSON file with what was read before; not being able to write it is no error.
    """
    try:
        known = read_json(cache)
    except (OSError, ValueError):
        known = {}
    found, read = {}, False
    for path in map(Path, paths):
        if not path.is_file():
            continue
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        entry = known.get(str(path.resolve()))
        if entry is None or entry["stamp"] != stamp:
            if status.st_size >= LARGE_BYTES:
                log.warning("reading %s once for its digest (%.1f GiB)", path, status.st_size / 2**30)
            entry, read = {"stamp": stamp, "sha256": sha256_file(path)}, True
            known[str(path.resolve())] = entry
        found[str(path)] = entry["sha256"]
    if read:
        try:
            write_json(cache, known)
        except OSError as error:
            log.warning("%s: %s; digests are taken again next time", cache, error.strerror)
    return found
