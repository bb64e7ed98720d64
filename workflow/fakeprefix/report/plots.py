"""The plots, drawn once for the report and once as files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fakeprefix.analysis.agreement import Analysis
from fakeprefix.analysis.fidelity import PREFILL, QUANTITIES, of_quantity
from fakeprefix.figures import exact
from fakeprefix.storage import replacing

# Okabe and Ito, Color Universal Design (2008): told apart with every kind of colour blindness
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F"
# name of the arm, its label, colour and marker; a marker of its own for print in black and white
ARMS = (
    ("baseline", "whole prompt", ORANGE, "s"),
    ("fake_prefix", "over a fabricated prefix", BLUE, "o"),
    ("state_restore", "over a restored prefix", GREEN, "^"),
    ("cached_prefix", "over a cached prefix", PURPLE, "D"),
)
FILLS = (("zero", ORANGE, "s"), ("random", GREEN, "^"), ("tile", BLUE, "o"))
SIZE_INCHES = (7.2, 4.4)
# tasks that are drawn, the longest ones
MAX_PANELS = 3
# more bars than these cannot be told apart
MAX_WATERFALL_STEPS = 40
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "path",
    # the same data give the same bytes
    "svg.hashsalt": "fakeprefix",
}


def _error_bars(axes: Axes, x: pd.Series, frame: pd.DataFrame, name: str, scale: float, **style: object) -> None:
    value, low, high = (frame[name + part] * scale for part in ("", "_low", "_high"))
    axes.errorbar(x, value, yerr=[(value - low).clip(lower=0), (high - value).clip(lower=0)], capsize=3, **style)


def _plainly(name: object) -> str:
    """A name from a trace as a text; a dollar would begin a formula."""
    return str(name).replace("$", r"\$")


def _longest_tasks(replay: pd.DataFrame) -> list[str]:
    """The tasks that have a panel, in the order of their names."""
    longest = replay.groupby("task_id", sort=True).step.max().sort_values(ascending=False, kind="stable")
    return sorted(longest.index[:MAX_PANELS])


def _log_seconds(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: exact(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def prefill_against_depth(analysis: Analysis) -> Figure:
    """Prefill time of the measured steps against the prefix length, for every arm, with intervals."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    ordered = analysis.steps.sort_values("prefix_tokens")
    for arm, label, colour, marker in ARMS:
        shown = ordered[ordered[f"{arm}_prompt_ms"].notna()]
        if len(shown):
            n = f"n = {int(shown[f'n_{arm}'].min())} a step"
            style = {"label": f"{label}, {n}", "color": colour, "marker": marker, "linestyle": "none"}
            _error_bars(axes, shown.prefix_tokens, shown, f"{arm}_prompt_ms", 1e-3, **style)
    _log_seconds(axes)
    axes.set_xlabel("prefix length L, tokens")
    axes.set_ylabel("prefill of whole prompt or new tokens, s\n(median, interval)")
    figure.legend(loc="outside upper left", ncols=1)
    return figure


def measured_against_estimate(analysis: Analysis) -> Figure:
    """Measured prefill without image encoding against new tokens divided by the benchmark's rate."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    steps = analysis.steps
    shown = steps[steps.measured_over_estimate.notna()]
    measured = shown.copy()
    for part in ("", "_low", "_high"):
        measured[f"computed_ms{part}"] = shown.estimate_ms * shown[f"measured_over_estimate{part}"]
    if len(shown):
        top = max(measured.computed_ms_high.max(), shown.estimate_ms.max()) * 1.08e-3
        axes.plot([0, top], [0, top], color=GREY, linewidth=1, label="equal")
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
    for has_image, label, marker, colour in ((False, "text only", "o", BLUE), (True, "with a screenshot", "s", ORANGE)):
        part = measured[(measured.image_tokens > 0) == has_image]
        if len(part):
            _error_bars(
                axes,
                part.estimate_ms * 1e-3,
                part,
                "computed_ms",
                1e-3,
                label=label,
                color=colour,
                marker=marker,
                linestyle="none",
            )
    axes.set_xlabel("estimate: new tokens / rate of llama-bench at the same depth, s")
    axes.set_ylabel("measured without image encoding, s")
    if len(shown):
        axes.legend(loc="upper left")
    return figure


def fidelity(analysis: Analysis) -> Figure:
    """Ratio of every fill to a restored prefix against its length, with the margin and the noise floor."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    table = of_quantity(analysis.fidelity, PREFILL)
    lengths = sorted(table.prefix_tokens.unique())
    places = {length: place for place, length in enumerate(lengths)}
    margin = 100 * analysis.summary["equivalence_margin"]
    axes.axhspan(-margin, margin, color="#EEEEEE", label=f"margin, {exact(margin)} %", zorder=0)
    axes.axhline(0, color=GREY, linewidth=1)
    floor = table[table.subject == "restored again"]
    for number, row in enumerate(floor.itertuples()):
        low, high = (100 * (bound - 1) for bound in (row.paired_ratio_low, row.paired_ratio_high))
        place = places[row.prefix_tokens]
        label = "noise floor (restored against restored)" if number == 0 else None
        axes.fill_between([place - 0.4, place + 0.4], low, high, color="#C8C8C8", label=label, zorder=1)
    for number, (fill, colour, marker) in enumerate(FILLS):
        shown = table[(table.subject == fill) & (table.reference == "restored")]
        if len(shown):
            x = pd.Series([places[length] + 0.22 * (number - 1) for length in shown.prefix_tokens], index=shown.index)
            percent = shown[["paired_ratio", "paired_ratio_low", "paired_ratio_high"]].sub(1)
            rounds = sorted({int(shown.rounds.min()), int(shown.rounds.max())})
            label = f"fill {fill}, n = {' to '.join(map(str, rounds))} rounds"
            style = {"label": label, "color": colour, "marker": marker, "linestyle": "none"}
            _error_bars(axes, x, percent, "paired_ratio", 100, **style)
    if not lengths:
        axes.text(0.5, 0.5, "not measured in this run", transform=axes.transAxes, ha="center", va="center")
    axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axes.set_xlabel("prefix length L, tokens")
    axes.set_ylabel("fabricated against restored, %\n(paired median, interval)")
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def running_order(analysis: Analysis) -> Figure:
    """Every repetition in the order in which it ran, each relative to the median of its equals."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    rows = analysis.rows[(analysis.rows.status == "ok") & (analysis.rows.arm != "prime")]
    rows = rows.sort_values("started_at", kind="stable").reset_index(drop=True)
    equals = [rows[name].fillna("") for name in ("arm", "fill", "task_id", "step", "prefix_tokens")]
    relative = 100 * (rows.prompt_ms / rows.prompt_ms.groupby(equals).transform("median") - 1)
    for start in rows.index[rows.job != rows.job.shift()][1:]:
        axes.axvline(start - 0.5, color="#DDDDDD", linewidth=0.8)
    for arm, label, colour, marker in (*ARMS, ("probe", "probe", "#000000", "x")):
        mine = rows.arm == arm
        if mine.any():
            axes.plot(
                rows.index[mine] + 1,
                relative[mine],
                label=f"{label}, n = {int(mine.sum())}",
                color=colour,
                marker=marker,
                markersize=3.5,
                linestyle="none",
            )
    axes.axhline(0, color=GREY, linewidth=1)
    axes.set_xlabel("running number of the repetition (lines: a new server)")
    axes.set_ylabel("prefill time against the median\nof equal repetitions, %")
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def residuals(analysis: Analysis) -> Figure:
    """How far the fitted cost is from every measured step, against the prefix length."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    axes.axhline(0, color=GREY, linewidth=1)
    if analysis.model is not None:
        axes.plot(
            analysis.model.prefix,
            100 * analysis.model.relative_residuals,
            color=BLUE,
            marker="o",
            markersize=4,
            linestyle="none",
            label=f"repetitions, n = {len(analysis.model.relative_residuals)}",
        )
        figure.legend(loc="outside upper left")
    axes.set_xlabel("prefix length L, tokens")
    axes.set_ylabel("measured against fitted, %")
    return figure


def depth_curve(analysis: Analysis) -> Figure:
    """Cost of one token against depth with the fitted lines, and how far measurements are from them."""
    curve = analysis.curve
    shown = [quantity for quantity in QUANTITIES if (curve.quantity == quantity).any()] or [PREFILL]
    size = (SIZE_INCHES[0], 1.4 + 2.4 * (len(shown) + 1))
    figure, panels = plt.subplots(len(shown) + 1, 1, figsize=size, layout="constrained", sharex=True)
    below = panels[-1]
    below.axhline(0, color=GREY, linewidth=1)
    colours = (BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", "#000000")
    lines = curve.groupby(["quantity", "new_tokens"], sort=False, dropna=False)
    for number, ((quantity, new_tokens), group) in enumerate(lines):
        above = panels[shown.index(quantity)]
        what = f"prefill of {int(new_tokens):,} tokens" if quantity == PREFILL else "decode"
        colour = colours[number % len(colours)]
        style = {"color": colour, "marker": "o" if quantity == PREFILL else "s", "linestyle": "none"}
        _error_bars(above, group.depth, group, "token_ms", 1, label=f"{what}, n = {int(group.n.min())}", **style)
        depths = np.geomspace(group.depth.min(), group.depth.max(), 100)
        line = group.a_ms.iloc[0] + group.b_ms_per_1000_cells.iloc[0] * depths / 1000
        above.plot(depths, line, color=colour, linewidth=1)
        first = number == 0
        below.plot(group.depth, 100 * group.residual, label="against the line" if first else None, **style)
        foretold = group[group.measured_over_foretold.notna()]
        if len(foretold):
            percent = foretold[[f"measured_over_foretold{part}" for part in ("", "_low", "_high")]].sub(1)
            hollow = {**style, "markerfacecolor": "none", "markersize": 9}
            label = "against a line through depths of at most half" if first else None
            _error_bars(below, foretold.depth, percent, "measured_over_foretold", 100, label=label, **hollow)
    for quantity, axes in zip(shown, panels, strict=False):
        axes.set_ylabel(f"{quantity}, ms a token\n(median, interval)")
        axes.set_ylim(bottom=0)
    below.set_ylabel("measured against\nline, %")
    below.set_xlabel("cells in front, tokens")
    if len(curve):
        below.set_xscale("log", base=2)
        below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        figure.legend(loc="outside upper left", ncols=2)
    else:
        panels[0].text(
            0.5, 0.5, "needs three depths with as many new tokens", transform=panels[0].transAxes, ha="center"
        )
    return figure


def cumulative(analysis: Analysis) -> Figure:
    """Prefill time summed over the steps of tasks, with a perfect cache and without any, for every policy."""
    replay = analysis.replay[analysis.replay.source != "missing"]
    shown = _longest_tasks(replay)
    n = max(1, len(shown))
    size = (SIZE_INCHES[0], 0.8 + 2.9 * n)
    figure, panels = plt.subplots(n, 1, figsize=size, layout="constrained", squeeze=False)
    for axes, task in zip(panels[:, 0], shown, strict=False):
        for policy, group in replay[replay.task_id == task].groupby("policy", sort=True):
            ordered = group.sort_values("step")
            colour = BLUE if policy == "keep_all" else ORANGE
            step = ordered.step + 1
            label = _plainly(policy).replace("_", " ")
            marker = {"color": colour, "marker": "o", "markersize": 3}
            axes.plot(step, ordered.measured_opt_prefill_s.cumsum(), label=f"{label}, perfect cache", **marker)
            axes.plot(step, ordered.full_prefill_s.cumsum(), label=f"{label}, no cache", linestyle="--", **marker)
        axes.set_title(_plainly(task), loc="left", fontsize=11)
        _log_seconds(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("step")
        axes.set_ylabel("prefill so far, s")
    if shown:
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure


def waterfall(analysis: Analysis) -> Figure:
    """The steps of the longest tasks one after another: prefill, decode and execution, and what was recorded.

    Each step has two bars: above what it takes with a perfect cache, below what the trace recorded, or,
    where it recorded no wall time, what the step takes without any cache.
    """
    replay = analysis.replay.merge(analysis.recorded, on=["task_id", "policy", "step"], how="left")
    replay = replay[(replay.source != "missing") & (replay.policy == "keep_all")]
    shown = _longest_tasks(replay)
    counts = [min(MAX_WATERFALL_STEPS, int((replay.task_id == task).sum())) for task in shown] or [1]
    figure, panels = plt.subplots(
        len(counts),
        1,
        figsize=(SIZE_INCHES[0], 1.2 + sum(1.0 + 0.24 * count for count in counts)),
        layout="constrained",
        squeeze=False,
        height_ratios=[3 + count for count in counts],
    )
    handles: dict[str, object] = {}
    for axes, task in zip(panels[:, 0], shown, strict=False):
        ordered = replay[replay.task_id == task].sort_values("step").head(MAX_WATERFALL_STEPS)
        decode, execution = (ordered[name].fillna(0.0).to_numpy() for name in ("decode_s", "exec_s"))
        perfect = [
            ("prefill, perfect cache", BLUE, ordered.measured_opt_prefill_s.to_numpy()),
            ("decode (recorded)", PURPLE, decode),
            ("execution (recorded)", GREEN, execution),
        ]
        if ordered.recorded_wall_s.notna().all():
            other = [("recorded wall time", GREY, ordered.recorded_wall_s.to_numpy())]
        else:
            full = ordered.full_prefill_s.fillna(0.0).to_numpy()
            other = [("prefill, no cache", ORANGE, full), *perfect[1:]]
        for offset, parts in ((-0.2, perfect), (0.2, other)):
            start = np.concatenate([[0.0], np.cumsum(sum(values for _, _, values in parts))[:-1]])
            for label, colour, values in parts:
                if values.any():
                    bars = axes.barh(ordered.step + 1 + offset, values, 0.36, left=start, color=colour)
                    handles.setdefault(label, bars)
                start = start + values
        axes.set_axisbelow(True)
        axes.set_ylim(ordered.step.max() + 1.6, ordered.step.min() + 0.4)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("step")
        cut = f", its first {MAX_WATERFALL_STEPS} steps" if (replay.task_id == task).sum() > len(ordered) else ""
        axes.set_title(f"{_plainly(task)}{cut}", loc="left", fontsize=11)
        axes.set_xlabel("time since the start of the task, s")
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=2)
    else:
        panels[0, 0].text(0.5, 0.5, "no step has a cost", transform=panels[0, 0].transAxes, ha="center")
    return figure


PLOTS: dict[str, Callable[[Analysis], Figure]] = {
    "prefill_against_depth": prefill_against_depth,
    "measured_against_estimate": measured_against_estimate,
    "waterfall": waterfall,
    "cumulative": cumulative,
    "fidelity": fidelity,
    "depth_curve": depth_curve,
    "residuals": residuals,
    "running_order": running_order,
}


def compared_runs(compared: pd.DataFrame) -> Figure:
    """Ratio of every run to the reference for each step that both measured, against the prefix length.

    Args:
        compared: rows of `fakeprefix.report.comparison.COMPARISON_SCHEMA`.
    """
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    steps = compared[compared.level == "step"]
    axes.axhline(1, color=GREY, linewidth=1)
    colours = (BLUE, ORANGE, GREEN, PURPLE, "#000000", "#56B4E9")
    for number, (run, group) in enumerate(steps.groupby("run", sort=False)):
        for arm, label, _, marker in ARMS:
            shown = group[group.arm == arm]
            if len(shown):
                style = {"color": colours[number % len(colours)], "marker": marker, "linestyle": "none"}
                n = f"n = {int(shown[['n', 'n_reference']].min().min())}"
                _error_bars(
                    axes, shown.prefix_tokens, shown, "ratio", 1, label=f"{_plainly(run)}, {label}, {n}", **style
                )
    if len(steps):
        figure.legend(loc="outside upper left", ncols=1)
    else:
        axes.text(0.5, 0.5, "no step in common", transform=axes.transAxes, ha="center", va="center")
    axes.set_xlabel("prefix length L, tokens")
    axes.set_ylabel("prefill time over that of the\nreference (ratio of medians, interval)")
    return figure


def draw(plot: Callable[[], Figure], folder: Path, name: str) -> None:
    """Draw a plot in the common style, as SVG and PNG into `folder`."""
    with plt.rc_context(STYLE):
        figure = plot()
        for suffix in ("svg", "png"):
            with replacing(folder / f"{name}.{suffix}") as temporary:
                metadata = {"Date": None} if suffix == "svg" else {}
                figure.savefig(temporary, format=suffix, dpi=144, metadata=metadata)
        plt.close(figure)


def draw_all(analysis: Analysis, folder: Path) -> None:
    """Draw every plot as SVG and PNG into `folder`."""
    for name, plot in PLOTS.items():
        draw(partial(plot, analysis), folder, name)
