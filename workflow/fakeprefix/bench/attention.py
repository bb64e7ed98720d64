"""What the attention kernel costs by what the cells hold: why zeros are cheaper than real rows."""

import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.bench.subject import Subject
from fakeprefix.errors import EngineError
from fakeprefix.measure.timing_lock import timing_slot

REFERENCE = "random"
# of the tiny model, at a depth whose cells stay in the last-level cache
N_CELLS, N_TOKENS, N_HEAD, N_HEAD_KV, HEAD_DIM = 4096, 128, 4, 2, 64


def attention_by_content(subject: Subject, rounds: int, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Compile the series' experiment against the timing build, run it, and compare with random rows.

    Contents take turns in random order; the ratio is that of medians, since a round takes milliseconds
    and a machine's disturbances last longer.

    Raises:
        EngineError: it does not compile, or it failed.
    """
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "attention_content"
        _checked(compile_command(subject, program))
        sizes = (N_CELLS, N_TOKENS, N_HEAD, N_HEAD_KV, HEAD_DIM, subject.run["threads"], rounds, 1)
        with timing_slot():
            output = _checked([str(program), *map(str, sizes)])
    samples: dict[str, list[float]] = defaultdict(list)
    for line in output.splitlines():
        content, nanoseconds = line.split("\t")
        samples[content].append(int(nanoseconds) / 1e6)
    rows = []
    for content, times in samples.items():
        ratio = bootstrap.ratio(times, samples[REFERENCE])
        rows.append(
            {
                "content": content,
                "rounds": rounds,
                "median_ms": bootstrap.median(times).value,
                **ratio.columns("over_random"),
            }
        )
    return sorted(rows, key=lambda row: row["over_random"])


def compile_command(subject: Subject, program: Path) -> list[str]:
    """Compile the experiment and link it with the timing build's libraries."""
    build = subject.engine / "build-fast" / "ggml" / "src"
    return [
        *("c++", "-std=c++17", "-O2", f"-I{subject.engine / 'source' / 'ggml' / 'include'}"),
        *(str(subject.experiments / "attention_content.cpp"), "-o", str(program)),
        *(str(build / f"lib{name}.a") for name in ("ggml", "ggml-cpu", "ggml-base")),
        *("-fopenmp", "-lpthread", "-ldl"),
    ]


def _checked(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"{Path(command[0]).name} failed with status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout
