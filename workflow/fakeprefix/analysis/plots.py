"""The plots, drawn once for the report and once as files."""

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fakeprefix.storage import replacing

# Okabe and Ito, Color Universal Design (2008): told apart with every kind of colour blindness
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#7F7F7F"
SIZE_INCHES = (7.2, 4.4)
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


def prefill_against_depth(steps: pd.DataFrame) -> Figure:
    """Prefill time of the measured steps against the prefix length, for both arms, with intervals."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    ordered = steps.sort_values("prefix_tokens")
    arms = (
        ("baseline_prompt_ms", "n_baseline", "whole prompt (baseline)", ORANGE, "s"),
        ("fake_prompt_ms", "n_fake", "new tokens over a fabricated prefix", BLUE, "o"),
    )
    for name, count, label, colour, marker in arms:
        shown = ordered[ordered[name].notna()]
        if len(shown):
            n = f"n = {int(shown[count].min())} a step"
            _error_bars(
                axes,
                shown.prefix_tokens,
                shown,
                name,
                1e-3,
                label=f"{label}, {n}",
                color=colour,
                marker=marker,
                linestyle="none",
            )
    axes.set_yscale("log")
    axes.set_xlabel("prefix length L, tokens")
    axes.set_ylabel("prefill time, s (median, interval)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=1)
    return figure


def measured_against_estimate(steps: pd.DataFrame) -> Figure:
    """Measured prefill without image encoding against new tokens divided by the benchmark's rate."""
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
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
    axes.legend(loc="upper left")
    return figure


PLOTS: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "prefill_against_depth": prefill_against_depth,
    "measured_against_estimate": measured_against_estimate,
}


def draw_all(steps: pd.DataFrame, folder: Path) -> None:
    """Draw every plot as SVG and PNG into `folder`."""
    with plt.rc_context(STYLE):
        for name, plot in PLOTS.items():
            figure = plot(steps)
            for suffix in ("svg", "png"):
                with replacing(folder / f"{name}.{suffix}") as temporary:
                    metadata = {"Date": None} if suffix == "svg" else {}
                    figure.savefig(temporary, format=suffix, dpi=144, metadata=metadata)
            plt.close(figure)
