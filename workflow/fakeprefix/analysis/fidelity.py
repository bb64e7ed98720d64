"""Fabricated against restored and cached prefixes: paired ratios, equivalence, and the noise floor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import stats

from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.storage import read_json

JOB_PREFIX = "fidelity/"
RESTORED, CACHED, FAKE = "state_restore", "cached_prefix", "fake_prefix"
PREFILL, DECODE = "prefill", "decode"
# and the column of `turns` that has it, in ms
QUANTITIES = {PREFILL: "prompt_ms", DECODE: "decode_token_ms"}
LOGIT_PAIRS = (("cached", "restored"), ("whole", "restored"), ("whole", "cached"))
# names of really computed prefixes in the table; the others are fills
REAL = ("restored", "restored again", "cached")
EQUIVALENT, DIFFERENT, NOT_SHOWN = "equivalent", "different", "not shown"

FIDELITY_SCHEMA = pa.schema(
    [
        ("quantity", pa.string()),
        ("prefix_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("subject", pa.string()),
        ("reference", pa.string()),
        ("rounds", pa.int32()),
        *[
            (f"{name}{part}", pa.float64())
            for name in ("paired_ratio", "median_ratio")
            for part in ("", "_low", "_high")
        ],
        ("subject_ms", pa.float64()),
        ("reference_ms", pa.float64()),
        ("install_ms", pa.float64()),
        ("install_bytes", pa.int64()),
        ("tost_p", pa.float64()),
        ("margin", pa.float64()),
        ("verdict", pa.string()),
        ("statement", pa.string()),
    ]
)


@dataclass(frozen=True)
class Comparison:
    """Which arms are divided by which.

    Attributes:
        subject, reference: names as in the table: a fill, ``restored``, ``restored again`` or ``cached``.
    """

    subject: str
    reference: str


def tost_p(log_ratios: Sequence[float], margin: float) -> float:
    """p of two one-sided tests that a ratio lies within ``1 / (1 + margin)`` and ``1 + margin``.

    Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987), with Wilcoxon's signed-rank test in
    place of the t test, since a machine's disturbances are outliers and never normal.
    """
    logs, bound = np.asarray(log_ratios, dtype=float), np.log1p(margin)
    above = stats.wilcoxon(logs + bound, alternative="greater").pvalue
    below = stats.wilcoxon(logs - bound, alternative="less").pvalue
    return float(max(above, below))


def of_quantity(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The rows of one quantity."""
    return table[table.quantity == quantity]


def of_decode(table: pd.DataFrame, fill: str) -> pd.DataFrame:
    """Decode over cells of one fill against decode over a restored prefix, one row a length."""
    decode = of_quantity(table, DECODE)
    return decode[(decode.subject == fill) & (decode.reference == "restored")]


def judge(ratio: float, low: float, high: float, p: float, alpha: float) -> tuple[str, str]:
    """A verdict and the words for it.

    Equivalent if both one-sided tests reject; different if the interval excludes 1; else the rounds
    do not suffice to tell, which is never the same as equal.
    """
    if p < alpha:
        return EQUIVALENT, EQUIVALENT
    if low > 1 or high < 1:
        return DIFFERENT, f"different (by {100 * (ratio - 1):+.1f} %)"
    return NOT_SHOWN, "not shown (n too small)"


def turns(rows: pd.DataFrame) -> pd.DataFrame:
    """The turns among all rows, with the arms named as in the table; error rows left out."""
    mine = rows[rows.job.str.startswith(JOB_PREFIX) & (rows.status == "ok")]
    mine = mine[mine.arm.isin([RESTORED, CACHED, FAKE])].copy()
    names = {RESTORED: "restored", CACHED: "cached"}
    again = (mine.arm == RESTORED) & (mine.twin == 1)
    mine["name"] = mine.arm.map(names).fillna(mine.fill)
    mine.loc[again, "name"] = "restored again"
    mine["decode_token_ms"] = mine.decode_ms / mine.decode_n.where(mine.decode_n > 0)
    return mine


def comparisons(names: Iterable[str]) -> list[Comparison]:
    """Every fill with both real prefixes, these two with each other, and the noise floor."""
    present = list(names)
    fills = [name for name in present if name not in REAL]
    found = [Comparison(fill, "restored") for fill in fills]
    if "cached" in present:
        found += [Comparison(fill, "cached") for fill in fills] + [Comparison("cached", "restored")]
    return [*found, Comparison("restored again", "restored")] if "restored again" in present else found


def compare(rows: pd.DataFrame, bootstrap: Bootstrap, margin: float) -> pd.DataFrame:
    """One row for each quantity, prefix length and comparison, with the columns of `FIDELITY_SCHEMA`.

    Quantities are the prefill of the new tokens and, where tokens were decoded, the decode of one of them.

    Args:
        rows: all measurements.
        margin: largest relative difference that counts as none.
    """
    found = []
    groups = turns(rows).groupby("prefix_tokens", sort=True)
    for (quantity, column), (prefix, group) in product(QUANTITIES.items(), groups):
        times = group.pivot_table(index="repetition", columns="name", values=column)
        if "restored" not in times:
            continue
        both = times[[name for name in ("restored", "restored again") if name in times]]
        for comparison in comparisons(times.columns):
            # a fill is held against both restored turns of its round, their geometric mean has less noise
            twins = comparison.reference == "restored" and comparison.subject != "restored again"
            reference = np.exp(np.log(both).mean(axis=1)) if twins else times[comparison.reference]
            pairs = pd.DataFrame({"subject": times[comparison.subject], "reference": reference}).dropna()
            if len(pairs) < 2:
                continue
            row = _row(prefix, group, comparison, pairs, bootstrap, margin)
            found.append({"quantity": quantity, **row})
    return pd.DataFrame(found, columns=FIDELITY_SCHEMA.names)


def _row(
    prefix: int, group: pd.DataFrame, comparison: Comparison, pairs: pd.DataFrame, bootstrap: Bootstrap, margin: float
) -> dict[str, Any]:
    logs = np.log(pairs.subject / pairs.reference).to_numpy()
    paired = bootstrap.median(np.exp(logs))
    medians = bootstrap.ratio(pairs.subject.to_numpy(), pairs.reference.to_numpy())
    p = tost_p(logs, margin)
    verdict, statement = judge(paired.value, paired.low, paired.high, p, 1 - bootstrap.confidence)
    mine = group[group.name == comparison.subject]
    return {
        "prefix_tokens": prefix,
        "new_tokens": int(group.new_tokens.iloc[0]),
        "subject": comparison.subject,
        "reference": comparison.reference,
        "rounds": len(pairs),
        **paired.columns("paired_ratio"),
        **medians.columns("median_ratio"),
        "subject_ms": float(pairs.subject.median()),
        "reference_ms": float(pairs.reference.median()),
        "install_ms": float(mine.install_ms.median()),
        "install_bytes": int(mine.install_bytes.median()),
        "tost_p": p,
        "margin": margin,
        "verdict": verdict,
        "statement": statement,
    }


def compare_logits(files: Iterable[Path]) -> list[dict[str, Any]]:
    """How far the first token's log probabilities are apart, by how the prefix came to be.

    Returns:
        For each prefix length and pair of ways `difference`, the largest one over the top tokens that both
        have, and `shared` of `top` tokens; None for a pair of which one was not computed.
    """
    found = []
    for file in files:
        content = read_json(file)
        logits = {name: {int(token): value for token, value in top} for name, top in content["logits"].items()}
        pairs = {f"{one}_{other}": _distance(logits, one, other) for one, other in LOGIT_PAIRS}
        found.append({"prefix_tokens": content["prefix_tokens"], "new_tokens": content["new_tokens"], **pairs})
    return sorted(found, key=lambda row: row["prefix_tokens"])


def _distance(logits: dict[str, dict[int, float]], one: str, other: str) -> dict[str, Any] | None:
    if one not in logits or other not in logits:
        return None
    shared = logits[one].keys() & logits[other].keys()
    differences = [abs(logits[one][token] - logits[other][token]) for token in shared]
    return {"difference": max(differences, default=None), "shared": len(shared), "top": len(logits[one])}


def summarize(table: pd.DataFrame, fill: str) -> dict[str, Any]:
    """Which fill is least biased, what the others would have done, and where the run's own stands, in prefill.

    Args:
        table: as made by `compare`.
        fill: the fill that the run's other rows were measured with.
    """
    table = of_quantity(table, PREFILL)
    restored = table[(table.reference == "restored") & ~table.subject.isin(REAL)]
    if not (restored.subject == fill).any():
        return {"measured": False, "fill": fill, "fills": {}, "least_biased": None, "verdict": None, "exceeds": False}
    worst = {
        str(name): float(np.abs(group.paired_ratio - 1).max()) for name, group in restored.groupby("subject", sort=True)
    }
    mine = restored[restored.subject == fill]
    verdicts = mine.verdict.tolist()
    differs = mine[mine.verdict == DIFFERENT]
    return {
        "measured": True,
        "fill": fill,
        "fills": worst,
        "least_biased": min(worst, key=worst.__getitem__),
        "verdict": next((name for name in (DIFFERENT, NOT_SHOWN) if name in verdicts), EQUIVALENT),
        "exceeds": bool((np.abs(differs.paired_ratio - 1) > differs.margin).any()),
        "worst": worst[fill],
        "rounds_min": int(mine.rounds.min()),
        "rounds_max": int(mine.rounds.max()),
        "noise_floor": noise_floor(table),
    }


def noise_floor(table: pd.DataFrame) -> float | None:
    """How far from 1 the interval of two equal arms reaches, at worst over all lengths."""
    twins = table[table.subject == "restored again"]
    if twins.empty:
        return None
    return float(np.abs(twins[["paired_ratio_low", "paired_ratio_high"]] - 1).to_numpy().max())
