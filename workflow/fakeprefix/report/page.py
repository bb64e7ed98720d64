"""``report.html``: one file, opens offline, says first what can be trusted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from fakeprefix import __version__
from fakeprefix.analysis.fidelity import DECODE
from fakeprefix.analysis.verdict import plain
from fakeprefix.engine.provenance import with_provenance
from fakeprefix.figures import NOTHING, exact, number, p_value, percent
from fakeprefix.report.plots import PLOTS
from fakeprefix.storage import read_json, write_text

SHOWN_TASKS = 50

ARM_WORDS = {"fake_prefix": "fabricated", "state_restore": "restored", "cached_prefix": "cached"}


def interval(row: Mapping[str, Any], name: str, suffix: str = "") -> str:
    """A value with its interval, from ``name + suffix``, ``name_low`` and ``name_high`` of a row."""
    value = row.get(name + suffix)
    if value is None or pd.isna(value):
        return NOTHING
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if low == high:
        # one repetition has no interval
        return number(value)
    # a line breaks before the bracket, not inside of it
    return f"{number(value)} [{number(low)},\N{NO-BREAK SPACE}{number(high)}]"


def pages(folder: Path) -> jinja2.Environment:
    """Where pages are made from the templates of a folder: everything escaped, a misspelt name an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "exact": exact, "p_value": p_value}
    environment.globals["interval"] = interval
    environment.globals["arm_words"] = ARM_WORDS
    return environment


def write_report(folder: Path, template: Path) -> None:
    """Write ``report.html`` from the files of a run folder.

    Args:
        folder: the run folder, with the analysis in it.
        template: a Jinja template.
    """
    environment = pages(template.parent)
    agreement = pd.read_parquet(folder / "analysis" / "agreement.parquet")
    summary = read_json(folder / "summary.json")
    arms = [arm for arm in ("baseline", *ARM_WORDS) if agreement[f"n_{arm}"].fillna(0).max() > 0]
    rejected = pd.read_parquet(folder / "trace" / "rejected.parquet")
    curve = pd.read_parquet(folder / "analysis" / "depth.parquet")
    shown = {"fidelity": summary["fidelity"]["measured"], "depth_curve": len(curve) > 0}
    plots = [
        {"name": name, "caption": _caption(template.parent, name), "svg": svg(folder / "analysis" / f"{name}.svg")}
        for name in PLOTS
        if shown.get(name, True)
    ]
    write_text(
        folder / "report.html",
        environment.get_template(template.name).render(
            run=folder.name,
            version=__version__,
            commit=(folder / "pipeline" / "git_commit.txt").read_text(encoding="utf-8").strip(),
            summary=summary,
            fidelity_statement=fidelity_statement(summary["fidelity"]),
            fill_statement=fill_statement(summary["fidelity"]),
            logits_statement=logits_statement(summary["fidelity"]["logits"]),
            policy_statements=[policy_statement(entry) for entry in summary["policies"]],
            imported=read_json(folder / "trace" / "import.json"),
            naive_statement=naive_statement(summary["buckets"]),
            arms=arms,
            shown_tasks=SHOWN_TASKS,
            host=read_json(folder / "host" / "snapshot.json"),
            engine=with_provenance(read_json(folder / "engine" / "manifest.json")),
            contract=read_json(folder / "engine" / "contract.json"),
            server=read_json(folder / "engine" / "server_config.json"),
            model=read_json(folder / "pipeline" / "model.json"),
            facts=read_json(folder / "pipeline" / "model_facts.json"),
            config_text=(folder / "pipeline" / "config.yaml").read_text(encoding="utf-8"),
            steps=plain(agreement[agreement.level == "step"].sort_values("prefix_tokens")),
            kinds=plain(agreement[agreement.level == "kind"]),
            buckets=plain(agreement[agreement.level == "bucket"]),
            curve=plain(curve),
            curve_statements=[curve_statement(line) for line in summary["depth_curves"]],
            decoded=bool((agreement[f"{summary['arm']}_decode_token_ms"].notna()).any()),
            decode_statement=decode_statement(summary),
            fidelity=plain(pd.read_parquet(folder / "analysis" / "fidelity.parquet")),
            tasks=plain(pd.read_parquet(folder / "analysis" / "tasks.parquet")),
            rejected=plain(rejected),
            plots=plots,
        ),
    )


def fidelity_statement(fidelity: dict[str, Any]) -> str:
    """One sentence for the first screen."""
    if not fidelity["measured"]:
        return "Whether a fabricated prefix costs what a real one does was not measured in this run."
    words = {
        "equivalent": "shown to cost the same as a really computed one",
        "different": "found to cost something else than a really computed one",
        "not shown": "not shown to cost the same as a really computed one (too few rounds)",
    }
    rounds = sorted({fidelity["rounds_min"], fidelity["rounds_max"]})
    return (
        f"Fidelity, in prefill: a prefix fabricated with {fidelity['fill']} was {words[fidelity['verdict']]}; "
        f"largest deviation {percent(fidelity['worst'])}, noise floor "
        f"\N{PLUS-MINUS SIGN}{percent(fidelity['noise_floor'])}, n = {' to '.join(map(str, rounds))} rounds a length."
    )


def fill_statement(fidelity: dict[str, Any]) -> str:
    """Which fill is least biased, and what the others would have done."""
    if not fidelity["measured"]:
        return ""
    ordered = sorted(fidelity["fills"].items(), key=lambda item: item[1])
    others = "; ".join(f"{name} would have been off by up to {percent(worst)}" for name, worst in ordered[1:])
    own = (
        "the one this run used" if fidelity["least_biased"] == fidelity["fill"] else f"this run used {fidelity['fill']}"
    )
    return (
        f"Least biased over all lengths was {ordered[0][0]}, off by at most {percent(ordered[0][1])} ({own})"
        f"{'; ' + others if others else ''}. Differences below the noise floor of "
        f"\N{PLUS-MINUS SIGN}{percent(fidelity['noise_floor'])} do not rank fills."
    )


def logits_statement(logits: list[dict[str, Any]]) -> str:
    """Whether real prefixes, however they came to be, give the same log probabilities."""
    parts = []
    for name in ("cached_restored", "whole_restored", "whole_cached"):
        pairs = [(row["prefix_tokens"], row[name]) for row in logits if row[name] is not None]
        if not pairs:
            continue
        differing = [
            f"{number(pair['difference'])} apart with {pair['shared']} of {pair['top']} top tokens in common "
            f"at L = {prefix:,}"
            for prefix, pair in pairs
            if pair["difference"] != 0 or pair["shared"] != pair["top"]
        ]
        same = [f"{prefix:,}" for prefix, pair in pairs if pair["difference"] == 0 and pair["shared"] == pair["top"]]
        found = ([f"exactly the same at L = {', '.join(same)}"] if same else []) + differing
        parts.append(f"{name.capitalize().replace('_', ' and ')} prefix: {'; '.join(found)}")
    if not parts:
        return "Logits of cached and whole prefixes were not compared at these lengths (measure.fidelity.cached_up_to)."
    return (
        f"Log probabilities of the first token behind a real prefix. {'. '.join(parts)}. A whole prompt is "
        "cut into batches elsewhere than a prefix with new tokens behind it, which changes the order of additions."
    )


def curve_statement(line: dict[str, Any]) -> str:
    """What the cost of one token is at any depth, how far measurements are from it, and how well it predicts."""
    what = "Decode" if line["quantity"] == DECODE else f"Prefill of {line['new_tokens']:,} tokens"
    foretold = ""
    if line["foretold_from"] is not None:
        foretold = (
            f" The deepest took {interval(line, 'measured_over_foretold')} times what a line through depths up to "
            f"{line['foretold_from']:,} predicts."
        )
    spread = (
        ""
        if line["probe_spread"] is None
        else (f" Between the jobs behind it the same probe differed by {percent(line['probe_spread'])}.")
    )
    return (
        f"{what}: a token costs {interval(line, 'a_ms')} ms and {interval(line, 'b_ms_per_1000_cells')} ms for every "
        f"1,000 cells, over {line['lengths']} depths from {line['from_depth']:,} to {line['to_depth']:,} "
        f"(n = {line['n']}); medians lie within {percent(line['max_residual'])} of the line.{foretold}{spread}"
    )


def decode_statement(summary: dict[str, Any]) -> str:
    """One sentence on decode for the first screen; nothing if nothing was decoded."""
    if not summary["decoded_per_repetition"]:
        return ""
    words = []
    for key, what in (
        ("decode_over_estimate", "times the estimate"),
        ("decode_over_baseline", "times that behind whole prompts"),
    ):
        ratios = [row[key] for row in summary["buckets"] if row.get(key) is not None]
        if ratios:
            words.append(f"{span(ratios)} {what}")
    compared = summary["fidelity"]["decode"]
    if compared:
        worst = max(compared, key=lambda row: abs(row["paired_ratio"] - 1))
        words.append(
            f"{interval(worst, 'paired_ratio')} times that over a restored prefix at L = {worst['prefix_tokens']:,}"
        )
    return f"Decode, which the verdict is not about, was {', '.join(words) or 'not compared'} (by bucket)."


def naive_statement(buckets: list[dict[str, Any]]) -> str:
    """How far off an estimate from the rate at depth 0 is."""
    ratios = [row["measured_over_naive"] for row in buckets if row.get("measured_over_naive") is not None]
    if not ratios:
        return ""
    return (
        "The naive estimate divides by the rate at depth 0 with 512 tokens, as most people would; the measurement "
        f"is {span(ratios)} times that."
    )


def policy_statement(entry: dict[str, Any]) -> str:
    """Which policy wins for one task, with and without a cache, and from which depth on."""
    policies = entry["policies"]
    costs = ", ".join(
        f"{name.replace('_', ' ')} {number(values['with_cache_s'])} s with a perfect cache and "
        f"{number(values['without_cache_s'])} s without"
        if values["complete"]
        else f"{name.replace('_', ' ')} not summed ({values['reason']})"
        for name, values in policies.items()
    )
    parts = [f"Task {entry['task_id']}, prefill of all steps: {costs}."]
    for name, words in (("with_cache", "With a perfect cache"), ("without_cache", "Without a cache")):
        leaders = entry[name]
        if leaders is None or leaders["winner"] is None:
            continue
        *earlier, last = leaders["changes"]
        since = f" from L = {last['L']:,} on" if earlier or last["step"] else ""
        before = f", before that {earlier[-1]['policy'].replace('_', ' ')}" if earlier else ""
        parts.append(f"{words} {last['policy'].replace('_', ' ')} costs less{since}{before}.")
    return " ".join(parts)


def span(values: Sequence[float]) -> str:
    """The smallest and the largest of some values, or the one number that both are."""
    ends = [number(min(values)), number(max(values))]
    return " to ".join(dict.fromkeys(ends))


def svg(path: Path) -> str:
    """The picture without the XML declaration, so that it can stand inside of a page."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def _caption(folder: Path, name: str) -> str:
    """What a plot shows; ``snakemake --report`` uses the same file."""
    return " ".join((folder / "captions" / f"{name}.rst").read_text(encoding="utf-8").split())
