"""Write the parts of these pages that are made of code, and with ``--run`` those that show a run's output.

A part stands between ``<!-- generated: NAME -->`` or ``<!-- from a run: NAME -->`` and ``<!-- end -->``.
"""

import argparse
import importlib
import pkgutil
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
import yaml

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "workflow"))

import fakeprefix  # noqa: E402
from fakeprefix.storage import read_json, write_text  # noqa: E402

PART = re.compile(r"(<!-- (generated|from a run): ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
# file of a run, name in columns.yaml, schema
TABLES = (
    ("trace/steps.parquet", "steps", "STEP_SCHEMA"),
    ("trace/rejected.parquet", "rejected", "REJECTED_SCHEMA"),
    ("trace/plan.parquet", "plan", "PLAN_SCHEMA"),
    ("measurements.parquet", "measurements", "RECORD_SCHEMA"),
    ("analysis/agreement.parquet", "agreement", "AGREEMENT_SCHEMA"),
    ("analysis/fidelity.parquet", "fidelity", "FIDELITY_SCHEMA"),
    ("analysis/depth.parquet", "depth", "CURVE_SCHEMA"),
    ("analysis/tasks.parquet", "tasks", "TASKS_SCHEMA"),
    ("replay.parquet", "replay", "REPLAY_SCHEMA"),
    ("compare.parquet", "comparison", "COMPARISON_SCHEMA"),
)
PICTURES = {"prefill_against_depth.png": "report-example.png"}


@cache
def schemas() -> dict[str, pa.Schema]:
    """Every schema of the package by its name."""
    found: dict[str, pa.Schema] = {}
    for module in pkgutil.walk_packages(fakeprefix.__path__, "fakeprefix."):
        if not module.name.endswith("__main__"):
            names = vars(importlib.import_module(module.name))
            found |= {name: value for name, value in names.items() if isinstance(value, pa.Schema)}
    return found


def columns() -> str:
    """A table of columns for each table of a run.

    Raises:
        KeyError: a schema is not in `TABLES`, or a column has no meaning in ``columns.yaml``.
    """
    meanings = yaml.safe_load((DOCS / "columns.yaml").read_text(encoding="utf-8"))
    if missing := sorted(set(schemas()) - {schema for _, _, schema in TABLES}):
        raise KeyError(f"docs/generate.py: TABLES lacks {', '.join(missing)}")
    parts, used = [], set()
    for file, table, schema in TABLES:
        parts += [f"## `{file}`", "", "| column | type | what it is |", "|---|---|---|"]
        for names, field in _families(schemas()[schema]):
            place = table if field.name in meanings.get(table, {}) else "everywhere"
            if field.name not in meanings[place]:
                raise KeyError(f"docs/columns.yaml lacks {field.name!r} of {file}")
            used.add((place, field.name))
            parts.append(f"| {names} | {_type(field)} | {meanings[place][field.name]} |")
        parts.append("")
    parts.pop()
    unused = {(place, name) for place, entries in meanings.items() for name in entries} - used
    if unused:
        raise KeyError(f"docs/columns.yaml has columns that are in no table: {sorted(unused)}")
    return "\n".join(parts) + "\n"


def _families(schema: pa.Schema) -> Iterator[tuple[str, pa.Field]]:
    """Columns, those of an interval with the value that they belong to."""
    names = set(schema.names)
    for field in schema:
        if field.name.endswith(("_low", "_high")) and field.name.rsplit("_", 1)[0] in names:
            continue
        with_interval = f"{field.name}_low" in names
        yield f"`{field.name}`" + (", `_low`, `_high`" if with_interval else ""), field


def _type(field: pa.Field) -> str:
    kind = field.type
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if kind is not field.type:
        return "list of objects" if pa.types.is_struct(kind) else f"list of ranges, {kind}"
    return str(kind)


def make_targets() -> str:
    """The targets that the head of the Makefile describes."""
    rows = ["| command | what it does |", "|---|---|"]
    for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines():
        if not line.startswith("# make "):
            break
        target, words = re.fullmatch(r"# make ([\w-]+)\s+(.+)", line).groups()
        argument = re.match(r'([A-Z]+=(?:"[^"]*"|[^\s:]+)):? *(.*)', words)
        command, words = (f"{target} {argument[1]}", argument[2]) if argument else (target, words)
        rows.append(f"| `make {command}` | {words} |")
    return "\n".join(rows) + "\n"


def rules() -> str:
    """Every rule of the workflow with its docstring, by stage."""
    rows = ["| rule | stage | what it takes and gives |", "|---|---|---|"]
    pattern = re.compile(r'^(?:rule|checkpoint) (\w+):\n    """(.+?)"""', re.MULTILINE | re.DOTALL)
    for file in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        for name, words in pattern.findall(file.read_text(encoding="utf-8")):
            rows.append(f"| `{name}` | {file.stem} | {' '.join(words.split())} |")
    return "\n".join(rows) + "\n"


GENERATED: dict[str, Callable[[], str]] = {"columns": columns, "make targets": make_targets, "rules": rules}


def run_plan(run: Path) -> str:
    """What the plan says on a terminal."""
    text = (run / "logs" / "plan" / "plan.log").read_text(encoding="utf-8")
    return _fenced(text[text.rindex(".plan: ") + len(".plan: ") :])


def run_end(run: Path) -> str:
    """The last lines of a run."""
    verdict = read_json(run / "summary.json")["verdict"]
    folder = Path("results") / run.name
    return _fenced(f"run folder: {folder}\nreport:     {folder / 'report.html'}\nverdict:    {verdict}\n")


def run_about(run: Path) -> str:
    """Which run it is and where it was measured."""
    host, server = read_json(run / "host" / "snapshot.json"), read_json(run / "engine" / "server_config.json")
    threads = server["requested"]["threads"]
    return f'*Run `{run.name}`: {host["cpu"]["model"]}, {threads} threads, verdict "{_verdict(run)}".*\n'


def _verdict(run: Path) -> str:
    return str(read_json(run / "summary.json")["verdict"])


def run_buckets(run: Path) -> str:
    """The table by bucket."""
    table = pd.read_parquet(run / "analysis" / "agreement.parquet")
    rows = [
        "| bucket | prefix, tokens (median) | n | speedup | measured / estimate | measured / naive |",
        "|" + "---|" * 6,
    ]
    for row in table[table.level == "bucket"].itertuples():
        n = int(min(row.n_fake_prefix, row.n_baseline))
        ratios = [_interval(row, name) for name in ("speedup", "measured_over_estimate", "measured_over_naive")]
        rows.append(f"| {row.bucket:.0f} | {row.prefix_tokens:,.0f} | {n} | {' | '.join(ratios)} |")
    return "\n".join(rows) + "\n"


def run_fidelity(run: Path) -> str:
    """The fidelity of prefill."""
    table = pd.read_parquet(run / "analysis" / "fidelity.parquet")
    rows = ["| prefix L, tokens | prefix | against | rounds | paired ratio | p | verdict |", "|" + "---|" * 7]
    for row in table[table.quantity == "prefill"].itertuples():
        ratio = _interval(row, "paired_ratio", 4)
        rows.append(
            f"| {row.prefix_tokens:,} | {row.subject} | {row.reference} | {row.rounds} | {ratio} | "
            f"{row.tost_p:.2g} | {row.statement} |"
        )
    return "\n".join(rows) + "\n"


def _interval(row: object, name: str, digits: int = 3) -> str:
    value, low, high = (getattr(row, f"{name}{part}") for part in ("", "_low", "_high"))
    return "-" if pd.isna(value) else f"{value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


FROM_RUN: dict[str, Callable[[Path], str]] = {
    "plan": run_plan,
    "end": run_end,
    "about": run_about,
    "buckets": run_buckets,
    "fidelity": run_fidelity,
}


def renewed(text: str, run: Path | None) -> str:
    """A page with its parts made anew; those of a run only if there is one."""

    def part(found: re.Match[str]) -> str:
        head, kind, name, old, end = found.groups()
        if kind == "generated":
            return f"{head}\n{GENERATED[name]()}\n{end}"
        return f"{head}\n{FROM_RUN[name](run)}\n{end}" if run else f"{head}{old}{end}"

    return PART.sub(part, text)


def main() -> int:
    """0 if all pages are written, or with ``--check`` are as they would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a finished run folder whose output and picture the pages show")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is not current")
    options = parser.parse_args()
    run = options.run.resolve() if options.run else None
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md"))}
    new = {page: renewed(text, run) for page, text in pages.items()}
    stale = [page for page, text in pages.items() if new[page] != text]
    if options.check:
        for page in stale:
            sys.stderr.write(f"{page.relative_to(ROOT)} is not current; run python docs/generate.py\n")
        return 1 if stale else 0
    for page in stale:
        write_text(page, new[page])
    if run:
        for source, target in PICTURES.items():
            shutil.copyfile(run / "analysis" / source, DOCS / "images" / target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
