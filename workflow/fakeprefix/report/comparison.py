"""Sealed runs side by side, and whether that is fair."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from fakeprefix.analysis.agreement import write_frame
from fakeprefix.analysis.drift import PROBE
from fakeprefix.analysis.fidelity import JOB_PREFIX
from fakeprefix.analysis.samples import ARMS
from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.analysis.verdict import plain
from fakeprefix.engine.provenance import with_provenance
from fakeprefix.errors import RunError
from fakeprefix.figures import number
from fakeprefix.report.page import ARM_WORDS, pages, svg
from fakeprefix.report.plots import compared_runs, draw
from fakeprefix.runs.folder import require_intact
from fakeprefix.storage import read_json, write_json, write_text

TEMPLATE = Path(__file__).parent / "templates" / "compare.html.jinja"
STEP = ["task_id", "policy", "step", "prefix_tokens", "new_tokens", "image_tokens"]
# a machine whose probe differs by more than this between two runs was not the same machine
SAME_SPEED = 0.1

COMPARISON_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("reference", pa.string()),
        ("arm", pa.string()),
        ("level", pa.string()),
        *[(name, pa.string()) for name in STEP[:2]],
        *[(name, pa.int64()) for name in STEP[2:]],
        ("steps", pa.int32()),
        ("n", pa.int32()),
        ("n_reference", pa.int32()),
        ("prompt_ms", pa.float64()),
        ("reference_ms", pa.float64()),
        *[(f"ratio{part}", pa.float64()) for part in ("", "_low", "_high")],
    ]
)


@dataclass(frozen=True)
class Run:
    """What a comparison needs of one sealed run.

    Attributes:
        name: of its folder.
        summary: ``summary.json``.
        facts: what may differ, by section and dotted name, as text.
        rows: its measurements of steps that registered.
        probes: prefill times of the probe, in ms.
    """

    name: str
    summary: dict[str, Any]
    facts: dict[str, dict[str, str]]
    rows: pd.DataFrame
    probes: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a sealed run.

        Raises:
            RunError: it is not sealed, differs from its seal, or another version of the code wrote it.
        """
        require_intact(folder, "compared")
        try:
            rows = pd.read_parquet(folder / "measurements.parquet")
            counted = rows[rows.status == "ok"]
            return cls(
                name=folder.resolve().name,
                summary=read_json(folder / "summary.json"),
                facts=_facts(folder),
                rows=counted[counted.arm.isin(ARMS) & ~counted.job.str.startswith(JOB_PREFIX)],
                probes=counted[counted.arm == PROBE].prompt_ms.to_numpy(),
            )
        except (OSError, KeyError, AttributeError) as error:
            raise RunError(f"{folder}: cannot be read by this version of the code ({error!r})") from error


def _facts(folder: Path) -> dict[str, dict[str, str]]:
    host = read_json(folder / "host" / "snapshot.json")
    engine = with_provenance(read_json(folder / "engine" / "manifest.json"))
    model = read_json(folder / "pipeline" / "model.json")
    server = read_json(folder / "engine" / "server_config.json")
    config = yaml.safe_load((folder / "pipeline" / "config.yaml").read_text(encoding="utf-8"))
    return {
        "host": _flat(
            {
                "name": host["host"],
                "kernel": host["uname"]["release"],
                "machine": host["uname"]["machine"],
                "cpu": {key: value for key, value in host["cpu"].items() if key != "warnings"},
                "memory": {key: host["memory"][key] for key in ("total_bytes", "swap_bytes", "transparent_hugepages")},
                "gpus": host["gpus"],
            }
        ),
        "engine": _flat(
            {
                **{key: engine[key] for key in ("series", "series_sha256", "base_tree", "compiler", "flags")},
                "source": {key: engine["source"][key] for key in ("kind", "commit")},
                "settled": server["resolved"],
            }
        ),
        "model": {"name": model["preset"] or model["path"], "sha256": " ".join(e["sha256"] for e in model["files"])},
        "config": _flat({key: value for key, value in config.items() if key not in ("run", "run_name", "engine")}),
        "pipeline": {"commit": (folder / "pipeline" / "git_commit.txt").read_text(encoding="utf-8").strip()},
    }


def _flat(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict) and "absent" not in value:
        parts: dict[str, str] = {}
        for key, item in value.items():
            parts |= _flat(item, f"{path}.{key}" if path else str(key))
        return parts
    return {path: "absent" if isinstance(value, dict) else str(value)}


def differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Facts in which the runs differ: `section`, `name`, and `values`, one a run."""
    found = []
    for section in runs[0].facts:
        names = dict.fromkeys(name for run in runs for name in run.facts[section])
        for name in names:
            values = [run.facts[section].get(name, "") for run in runs]
            if len(set(values)) > 1:
                found.append({"section": section, "name": name, "values": values})
    return found


def compare_rows(runs: Sequence[Run], bootstrap: Bootstrap) -> pd.DataFrame:
    """Every run over the first one, by arm: each step that both measured, and the sum over these steps.

    Steps are the same if task, policy, number, prefix, new and image tokens are.

    Returns:
        Rows of `COMPARISON_SCHEMA`; a ratio above 1 means that the run is slower than the reference.
    """
    reference, *others = runs
    rows: list[dict[str, Any]] = []
    for run in others:
        for arm in ARMS:
            mine, theirs = (_samples(one.rows[one.rows.arm == arm]) for one in (run, reference))
            shared = sorted(set(mine) & set(theirs))
            if not shared:
                continue
            common = {"run": run.name, "reference": reference.name, "arm": arm}
            for key in shared:
                ratio = bootstrap.ratio(mine[key], theirs[key])
                rows.append(
                    common
                    | {"level": "step", "steps": 1, "n": len(mine[key]), "n_reference": len(theirs[key])}
                    | dict(zip(STEP, key, strict=True))
                    | {"prompt_ms": float(np.median(mine[key])), "reference_ms": float(np.median(theirs[key]))}
                    | ratio.columns("ratio")
                )
            one, other = [mine[key] for key in shared], [theirs[key] for key in shared]
            rows.append(
                common
                | {"level": "sum", "steps": len(shared)}
                | {"n": min(map(len, one)), "n_reference": min(map(len, other))}
                | {"prompt_ms": float(sum(map(np.median, one))), "reference_ms": float(sum(map(np.median, other)))}
                | bootstrap.ratio_of_sums(one, other).columns("ratio")
            )
    return pd.DataFrame(rows, columns=COMPARISON_SCHEMA.names)


def _samples(rows: pd.DataFrame) -> dict[tuple, np.ndarray]:
    return {key: group.prompt_ms.to_numpy() for key, group in rows.groupby(STEP)}


def warnings(runs: Sequence[Run], compared: pd.DataFrame) -> list[str]:
    """Why the comparison may not be fair, one sentence each; empty if no problem was found."""
    reference, *others = runs
    found = [
        f'{run.name}: its own verdict is "{run.summary["verdict"]}".'
        for run in runs
        if run.summary["verdict"] != "trusted"
    ]
    for run in others:
        pair = f"{run.name} and {reference.name}"
        differing = {(row["section"], row["name"]) for row in differences([reference, run])}
        if ("model", "sha256") in differing:
            found.append(f"{pair}: the models differ, so a ratio says nothing about the machine or the engine.")
        settled = sorted(name.removeprefix("settled.") for section, name in differing if name.startswith("settled."))
        if settled:
            found.append(f"{pair}: the engine settled on other {', '.join(settled)}.")
        flags = sorted(name.removeprefix("flags.") for section, name in differing if name.startswith("flags."))
        if flags or ("engine", "compiler") in differing:
            found.append(f"{pair}: the engine was built otherwise ({', '.join(flags) or 'compiler'}).")
        if ("config", "measure.fill") in differing:
            found.append(f"{pair}: prefixes were fabricated with another fill.")
        found += _unmatched(run, reference, compared)
        found += _speed(run, reference, pair, {name for section, name in differing if section == "host"})
    return found


def _unmatched(run: Run, reference: Run, compared: pd.DataFrame) -> list[str]:
    own, other = (set(_samples(one.rows)) for one in (run, reference))
    shared = own & other
    if not shared:
        return [f"{run.name} and {reference.name}: they have no measured step in common, so no ratio can be given."]
    lines = []
    if left := len(own | other) - len(shared):
        lines.append(f"{run.name} and {reference.name}: {left} steps were measured by one of them only and left out.")
    mine = compared[(compared.run == run.name) & (compared.level == "sum")]
    if len(mine) and mine[["n", "n_reference"]].min().min() < 3:
        lines.append(f"{run.name} and {reference.name}: fewer than 3 repetitions of some steps.")
    return lines


def _speed(run: Run, reference: Run, pair: str, host_differs: set[str]) -> list[str]:
    """The same probe on the same machine shows whether the machine itself was another one that day."""
    if "name" in host_differs or "cpu.model" in host_differs or not len(run.probes) or not len(reference.probes):
        return []
    same_probe = all(
        run.facts["config"].get(f"measure.probe.{name}") == reference.facts["config"].get(f"measure.probe.{name}")
        for name in ("prefix_tokens", "new_tokens")
    )
    ratio = float(np.median(run.probes) / np.median(reference.probes))
    if same_probe and max(ratio, 1 / ratio) > 1 + SAME_SPEED:
        return [f"{pair}: the machine itself was not equally fast, its probe took {number(ratio)} times as long."]
    return []


def write_comparison(folders: Sequence[Path], output: Path) -> list[str]:
    """Write ``compare.html``, ``compare.parquet`` and ``compare.json`` into `output`.

    Returns:
        The warnings.

    Raises:
        RunError: fewer than two runs, the same one twice, or one that cannot be compared.
    """
    if len(folders) < 2:
        raise RunError('a comparison needs at least two runs: make compare RUNS="results/A results/B"')
    runs = [Run.read(folder) for folder in folders]
    if len({run.name for run in runs}) < len(runs):
        raise RunError("the same run is given twice")
    first = yaml.safe_load((folders[0] / "pipeline" / "config.yaml").read_text(encoding="utf-8"))["analysis"]
    bootstrap = Bootstrap(first["confidence"], first["bootstrap"], first["seed"])
    compared = compare_rows(runs, bootstrap)
    found = warnings(runs, compared)
    differing = differences(runs)
    draw(partial(compared_runs, compared), output, "compare")
    write_frame(output / "compare.parquet", compared, COMPARISON_SCHEMA)
    write_json(
        output / "compare.json", {"runs": [run.name for run in runs], "warnings": found, "differences": differing}
    )
    page = pages(TEMPLATE.parent).get_template(TEMPLATE.name)
    write_text(
        output / "compare.html",
        page.render(
            runs=[
                {
                    "name": run.name,
                    "verdict": run.summary["verdict"],
                    "facts": run.facts,
                    "probe_ms": float(np.median(run.probes)) if len(run.probes) else None,
                    "n_probes": len(run.probes),
                    "rows": len(run.rows),
                }
                for run in runs
            ],
            warnings=found,
            differences=differing,
            sums=plain(compared[compared.level == "sum"]),
            steps=plain(compared[compared.level == "step"]),
            confidence=first["confidence"],
            words={"baseline": "whole prompt"} | {arm: f"over a {word} prefix" for arm, word in ARM_WORDS.items()},
            plot=svg(output / "compare.svg"),
        ),
    )
    return found
