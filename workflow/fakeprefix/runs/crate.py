"""A run as a research object: RO-Crate metadata of its inputs, engine, parameters, machine and outputs."""

import mimetypes
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from fakeprefix.storage import read_json

ENGINE_URL = "https://github.com/ggml-org/llama.cpp"
LICENSE = "https://spdx.org/licenses/MIT"
MEDIA_TYPES = {".jsonl": "application/jsonl", ".parquet": "application/vnd.apache.parquet", ".patch": "text/x-diff"}

LICENSE_TEXT = "A short permissive licence that keeps the copyright notice."

# the first pattern that matches says what a file is
DESCRIPTIONS = (
    ("report.html", "The report: verdict, plots, tables, method and limits."),
    ("summary.json", "The verdict and its figures."),
    ("manifest.json", "The seal: sha256 of every file."),
    ("measurements.parquet", "Every repetition, error rows too."),
    ("replay.*", "One row a step: its prefill with a perfect cache, measured or fitted."),
    ("analysis/agreement.*", "Measured against estimated prefill, by step, kind and bucket."),
    ("analysis/fidelity.parquet", "Fabricated, restored and cached prefixes against each other, by length."),
    ("analysis/tasks.parquet", "Sums over every task and policy."),
    ("analysis/*", "A plot of the report."),
    ("raw/superseded/*", "Rows of an attempt that was interrupted or repeated."),
    ("raw/depth_rate/*", "Samples and probes of the independent benchmark for one bucket."),
    ("raw/fidelity/*.logits.json", "Log probabilities behind real prefixes of one length."),
    ("raw/*", "Repetitions of one server life, in the order in which they ran."),
    ("engine/git_diff.patch", "The exact change to the engine."),
    ("engine/*", "The engine: source, build, contract tests, and what the server settled on."),
    ("host/*", "The machine at the start of the run."),
    ("trace/steps.parquet", "The steps that were given or imported."),
    ("trace/images/*", "A screenshot of the trace."),
    ("trace/*", "The import and the plan of the steps."),
    ("pipeline/config.yaml", "The resolved configuration."),
    ("pipeline/*", "The pipeline: commit, changes, and the model's digests and facts."),
    ("logs/*", "The log of a rule."),
    ("*", "A file of the run."),
)


def run_crate(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """RO-Crate 1.3 metadata of a sealed run, the same for the same run.

    Args:
        names: files that belong to it, relative.
    """
    sealed = read_json(folder / "manifest.json")
    engine, host = read_json(folder / "engine" / "manifest.json"), read_json(folder / "host" / "snapshot.json")
    summary, model = read_json(folder / "summary.json"), read_json(folder / "pipeline" / "model.json")
    crate = ROCrate()
    crate.name = f"Fake-prefix prefill: {folder.name}"
    crate.description = (
        "What the prefill of agent steps costs when everything before them is in the cache, measured over prefixes "
        f"that were never computed. Verdict: {summary['verdict']}."
    )
    crate.datePublished = sealed["sealed_at"]
    crate.root_dataset["license"] = crate.add(
        ContextEntity(crate, LICENSE, {"@type": "CreativeWork", "name": "MIT License", "description": LICENSE_TEXT})
    )
    files = [_add_file(crate, folder, name, sealed["files"].get(name)) for name in names]
    machine = crate.add(
        ContextEntity(
            crate,
            "#machine",
            {
                "@type": "Thing",
                "name": host["host"],
                "description": f"{host['uname']['machine']}, {host['cpu']['model']}",
            },
        )
    )
    software = crate.add(
        ContextEntity(
            crate,
            "#engine",
            {
                "@type": "SoftwareApplication",
                "name": "llama.cpp, patched",
                "url": engine["source"].get("url") or ENGINE_URL,
                "version": engine["source"].get("commit") or engine["series"],
                "softwareVersion": f"{engine['series']} (series sha256 {engine['series_sha256']})",
            },
        )
    )
    weights = crate.add(
        ContextEntity(crate, "#model", {"@type": "CreativeWork", "name": "model", "description": _plain(model)})
    )
    parameters = [
        crate.add(ContextEntity(crate, f"#parameter-{name}", {"@type": "PropertyValue", "name": name, "value": value}))
        for name, value in _parameters(folder)
    ]
    action = crate.add(
        ContextEntity(
            crate, "#measurement", {"@type": "CreateAction", "name": "measurement", "endTime": sealed["sealed_at"]}
        )
    )
    action["instrument"] = software
    action["object"] = [weights, machine, *parameters]
    action["result"] = files
    crate.root_dataset["mentions"] = action
    return crate.metadata.generate()


def _add_file(crate: ROCrate, folder: Path, name: str, sealed: dict[str, Any] | None) -> Any:
    kind = MEDIA_TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    properties = {
        "name": name,
        "encodingFormat": kind,
        "description": next(text for pattern, text in DESCRIPTIONS if fnmatch(name, pattern)),
        "contentSize": str(sealed["bytes"] if sealed else (folder / name).stat().st_size),
    }
    if sealed:
        properties["sha256"] = sealed["sha256"]
    return crate.add_file(dest_path=name, properties=properties, validate_url=False)


def _parameters(folder: Path) -> list[tuple[str, str]]:
    config = yaml.safe_load((folder / "pipeline" / "config.yaml").read_text(encoding="utf-8"))
    found: list[tuple[str, str]] = []

    def walk(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, (*path, str(key)))
        else:
            found.append((".".join(path), _plain(value)))

    walk(config, ())
    return sorted(found)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_plain(item)}" for key, item in sorted(value.items()))
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return str(value)
