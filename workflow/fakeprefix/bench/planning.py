"""Planning a million steps: wall time and peak memory of a process that does nothing else."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fakeprefix.errors import MeasureError
from fakeprefix.planning.steps import PlanRules, plan_file
from fakeprefix.storage import table_writer
from fakeprefix.trace.steps import STEP_SCHEMA

N_STEPS = 1_000_000
STEPS_PER_TASK = 50
BATCH = 100_000


def plan_million(n_steps: int = N_STEPS) -> dict[str, Any]:
    """Plan generated steps in a child process.

    Raises:
        MeasureError: the child failed.
    """
    with tempfile.TemporaryDirectory() as name:
        steps = Path(name) / "steps.parquet"
        write_generated_steps(steps, n_steps)
        started = time.monotonic()
        arguments = [sys.executable, "-m", "fakeprefix.bench.planning", str(steps)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        child = os.posix_spawn(sys.executable, arguments, environment)
        _, status, usage = os.wait4(child, 0)
        wall_s = time.monotonic() - started
    if status:
        raise MeasureError(f"planning {n_steps} steps ended with status {os.waitstatus_to_exitcode(status)}")
    # Linux gives ru_maxrss in KiB
    return {"steps": n_steps, "wall_s": wall_s, "peak_bytes": usage.ru_maxrss * 1024}


def write_generated_steps(path: Path, n_steps: int) -> None:
    """Tasks of 50 steps with growing histories; one step in a hundred has a hole in it."""
    rng = np.random.default_rng(1)
    with table_writer(path, STEP_SCHEMA) as writer:
        for start in range(0, n_steps, BATCH):
            index = np.arange(start, min(start + BATCH, n_steps))
            new = rng.integers(100, 2000, len(index))
            prefix = 500 + (index % STEPS_PER_TASK) * 1000
            holed = index % 100 == 99
            visible = [
                [[0, 99], [200, last]] if hole else [[0, last]]
                for hole, last in zip(holed.tolist(), (prefix - 1).tolist(), strict=True)
            ]
            columns: dict[str, Any] = {
                "task_id": [f"task-{number}" for number in (index // STEPS_PER_TASK).tolist()],
                "step": index % STEPS_PER_TASK,
                "prefix_tokens": prefix,
                "prefix_positions": prefix,
                "new_tokens": new,
                "image_tokens": np.zeros_like(new),
                "images": [[]] * len(index),
                "visible": visible,
                "behind_hole": [[]] * len(index),
                "policy": ["keep_all"] * len(index),
                "decode_s": rng.uniform(0.5, 5, len(index)),
                "exec_s": rng.uniform(0.1, 3, len(index)),
                "recorded_wall_s": rng.uniform(1, 9, len(index)),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in STEP_SCHEMA]
            writer.write_table(pa.Table.from_arrays(arrays, schema=STEP_SCHEMA))


if __name__ == "__main__":
    source = Path(sys.argv[1])
    rules = PlanRules("reject", 1_000_000, 4096, 2)
    plan_file(source, rules, source.with_name("plan.parquet"), source.with_name("rejected.parquet"))
