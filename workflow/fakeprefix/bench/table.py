"""The figures of `make bench` for a terminal and a readme."""

from typing import Any

# as far apart as measured and estimated may be in a run, `analysis.agreement_margin`
MARGIN = 0.2


def describe(found: dict[str, Any]) -> str:
    """Tables in Markdown, with what each figure is and its bound where there is one."""
    parts = []
    if sweep := found.get("sweep"):
        parts += [
            f"Depth sweep, {sweep['new_tokens']} new tokens, n = {sweep['repetitions']}, whole processes "
            f"(aim: 10 times cheaper for the list, 20 for the deepest): {sweep['times_cheaper']:.1f} times for the "
            f"list, {sweep['times_cheaper_deepest']:.1f} for the deepest.",
            _table(
                [
                    "depth",
                    "llama-bench, s",
                    "fake prefix, s",
                    "times cheaper",
                    "ours / llama-bench, one block each",
                ],
                [
                    [
                        f"{row['depth']:,}",
                        f"{row['bench_wall_s']:.1f}",
                        f"{row['our_wall_s']:.1f}",
                        f"{row['times_cheaper']:.1f}",
                        _interval(row, "answer_ratio"),
                    ]
                    for row in sweep["rows"]
                ],
            ),
        ]
    if answers := found.get("answers"):
        parts += [
            "The same prefill by both programs in turn (paired with the requests before and after every call, median "
            "over rounds, interval); the noise floor is the requests after it over those before it.",
            _table(
                ["depth", "rounds", "ours / llama-bench", "noise floor", f"within {MARGIN:.0%}"],
                [
                    [
                        f"{row['depth']:,}",
                        str(row["rounds"]),
                        _interval(row, "answer_ratio"),
                        _interval(row, "noise_floor"),
                        _within(row, "answer_ratio"),
                    ]
                    for row in answers
                ],
            ),
        ]
    if installs := found.get("installs"):
        parts += [
            "What a fill changes, and what counting the install as prefill would (paired medians, intervals).",
            _table(
                ["depth", "fill", "prefill, ms", "install, ms", "MB", "n", "prefill / tile", "with install / without"],
                [
                    [
                        f"{row['depth']:,}",
                        row["fill"],
                        f"{row['prompt_ms']:.1f}",
                        f"{row['install_ms']:.2f}",
                        f"{row['install_bytes'] / 1e6:.1f}",
                        str(row["rounds"]),
                        _interval(row, "over_tile"),
                        _interval(row, "with_install_inside"),
                    ]
                    for row in installs
                ],
            ),
        ]
    if overhead := found.get("overhead"):
        parts.append(
            f"Of a measuring job's {overhead['wall_s']:.1f} s ({overhead['repetitions']} repetitions), "
            f"{100 * overhead['share_outside_server']:.1f} % were not spent in the server (aim: at most 10 %)."
        )
    if planning := found.get("planning"):
        parts.append(
            f"Planning {planning['steps']:,} steps: {planning['wall_s']:.1f} s, "
            f"{planning['peak_bytes'] / 2**30:.2f} GiB at most (aim: 20 s, 2 GiB)."
        )
    if attention := found.get("attention"):
        parts += [
            "The attention kernel alone, by content of its cells (ratio of medians to random rows, interval).",
            _table(
                ["content of K (V is random unless said)", "median, ms", "n", "over random"],
                [
                    [row["content"], f"{row['median_ms']:.2f}", str(row["rounds"]), _interval(row, "over_random")]
                    for row in attention
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def _within(row: dict[str, Any], name: str) -> str:
    low, high = 1 / (1 + MARGIN), 1 + MARGIN
    if low <= row[f"{name}_low"] and row[f"{name}_high"] <= high:
        return "yes"
    return "no" if row[f"{name}_low"] > high or row[f"{name}_high"] < low else "not shown"


def _interval(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.4f} [{row[f'{name}_low']:.4f}, {row[f'{name}_high']:.4f}]"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
