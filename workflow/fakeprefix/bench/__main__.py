"""``python -m fakeprefix.bench``: measure, print a table, write ``bench.json`` and ``bench.md``."""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.bench.attention import attention_by_content
from fakeprefix.bench.overhead import job_overhead
from fakeprefix.bench.planning import plan_million
from fakeprefix.bench.subject import subject_of
from fakeprefix.bench.sweep import depth_sweep, install_errors, same_answers
from fakeprefix.bench.table import describe
from fakeprefix.errors import FakePrefixError
from fakeprefix.storage import write_json, write_text

ROOT = Path(__file__).parents[3]
DEPTHS, NEW_TOKENS = (1024, 4096, 16384, 65536), 256


def main(arguments: list[str] | None = None) -> int:
    """Measure the parts asked for, one after another; 0 if all succeeded."""
    parser = argparse.ArgumentParser(prog="python -m fakeprefix.bench", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "bench" / time.strftime("%Y-%m-%d_%H%M%S"))
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20, help="of the fills")
    parser.add_argument("--answers-budget-s", type=float, default=120.0, help="for each depth")
    parser.add_argument("--attention-rounds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1_000_000, help="to plan")
    parts = ("planning", "overhead", "attention", "installs", "sweep", "answers")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        subject = subject_of(ROOT, options.output / "programs.log")
        bootstrap = Bootstrap(0.95, 2000, 1)
        depths = sorted(options.depths)
        measures: dict[str, Callable[[], Any]] = {
            "planning": lambda: plan_million(options.steps),
            "overhead": lambda: job_overhead(subject),
            "attention": lambda: attention_by_content(subject, options.attention_rounds, bootstrap),
            "installs": lambda: install_errors(subject, depths, NEW_TOKENS, options.rounds, bootstrap),
            "sweep": lambda: depth_sweep(subject, depths, NEW_TOKENS, options.repetitions, bootstrap),
            "answers": lambda: same_answers(
                subject, depths, NEW_TOKENS, options.repetitions, options.answers_budget_s, bootstrap
            ),
        }
        found = {name: measures[name]() for name in parts if name in options.parts}
    except FakePrefixError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    write_json(options.output / "bench.json", found)
    write_text(options.output / "bench.md", describe(found))
    sys.stdout.write(f"\n{describe(found)}\n{options.output / 'bench.json'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
