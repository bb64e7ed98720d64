"""``report.html``: one file, opens offline, says first what can be trusted."""

from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from fakeprefix.analysis.plots import PLOTS
from fakeprefix.storage import read_json, write_text

NOTHING = "\N{EN DASH}"

CAPTIONS = {
    "prefill_against_depth": "Prefill time of every measured step against the length of its prefix, with intervals. "
    "The whole prompt is what the step costs without a cache, the new tokens are what it costs with a perfect one.",
    "measured_against_estimate": "Measured prefill (image encoding left out on both sides) against the new tokens "
    "divided by the rate that llama-bench measures at the same depth and chunk size.",
}


def number(value: Any, digits: int = 3) -> str:
    """A number with so many significant digits, or a dash."""
    if value is None or pd.isna(value):
        return NOTHING
    if float(value) == 0:
        return "0"
    text = f"{float(value):.{digits}g}"
    return f"{float(text):,.0f}" if abs(float(value)) >= 1000 else text


def interval(row: Any, name: str, digits: int = 3) -> str:
    """A value with its interval, from columns ``name``, ``name_low`` and ``name_high``."""
    value = getattr(row, name, None)
    if value is None or pd.isna(value):
        return NOTHING
    low, high = getattr(row, f"{name}_low"), getattr(row, f"{name}_high")
    return f"{number(value, digits)} [{number(low, digits)}, {number(high, digits)}]"


def write_report(folder: Path, template: Path) -> None:
    """Write ``report.html`` from the files of a run folder.

    Args:
        folder: the run folder, with the analysis in it.
        template: a Jinja template.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.globals["interval"] = interval
    agreement = pd.read_parquet(folder / "analysis" / "agreement.parquet")
    rejected = pd.read_parquet(folder / "trace" / "rejected.parquet")
    plots = [
        {"name": name, "caption": CAPTIONS[name], "svg": _svg(folder / "analysis" / f"{name}.svg")} for name in PLOTS
    ]
    write_text(
        folder / "report.html",
        environment.get_template(template.name).render(
            run=folder.name,
            summary=read_json(folder / "summary.json"),
            host=read_json(folder / "host" / "snapshot.json"),
            engine=read_json(folder / "engine" / "manifest.json"),
            contract=read_json(folder / "engine" / "contract.json"),
            server=read_json(folder / "engine" / "server_config.json"),
            model=read_json(folder / "pipeline" / "model.json"),
            facts=read_json(folder / "pipeline" / "model_facts.json"),
            config_text=(folder / "pipeline" / "config.yaml").read_text(encoding="utf-8"),
            steps=list(agreement[agreement.level == "step"].sort_values("prefix_tokens").itertuples(index=False)),
            buckets=list(agreement[agreement.level == "bucket"].itertuples(index=False)),
            tasks=list(pd.read_parquet(folder / "analysis" / "tasks.parquet").itertuples(index=False)),
            rejected=list(rejected.itertuples(index=False)),
            plots=plots,
        ),
    )


def _svg(path: Path) -> str:
    """The picture without the XML declaration, so that it can stand inside of a page."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]
