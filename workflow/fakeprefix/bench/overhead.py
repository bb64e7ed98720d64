"""How much of a measuring job's wall time is ours and not the server's."""

import tempfile
import time
from pathlib import Path
from typing import Any

from fakeprefix.bench.subject import Subject
from fakeprefix.engine.smoke import smoke_test
from fakeprefix.machine.devices import CPU
from fakeprefix.measure.buckets import ServerLife, measure_bucket
from fakeprefix.measure.requests import FAKE_PREFIX
from fakeprefix.measure.session import Probe
from fakeprefix.trace.grid import grid_steps

PREFIXES, NEW, REPETITIONS = (1024, 4096, 16384), (128, 512), 5


def job_overhead(subject: Subject) -> dict[str, Any]:
    """Run one measuring job of the default kind in a temporary run folder."""
    steps = grid_steps(PREFIXES, NEW)
    settings = subject.settings(max(PREFIXES) + max(NEW))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = folder / "engine" / "server_config.json"
        smoke_test(subject.server, settings, subject.model, None, None, "tile", CPU, reference, folder / "smoke.log")
        life = ServerLife(
            run_folder=folder,
            name=f"{FAKE_PREFIX}/1",
            binary=subject.server,
            settings=settings,
            model=subject.model,
            mmproj=None,
            reference=reference,
            final=folder / "raw" / FAKE_PREFIX / "1.jsonl",
            log_path=subject.log,
            fill="tile",
            probe=Probe(1024, 128),
            decode_tokens=1,
            timeout_s=600,
            state_bytes=0,
        )
        started = time.monotonic()
        server_s = measure_bucket(life, FAKE_PREFIX, 1, steps, steps, folder, REPETITIONS)
        wall_s = time.monotonic() - started
    return {
        "repetitions": len(steps) * REPETITIONS,
        "wall_s": wall_s,
        "server_s": server_s,
        "share_outside_server": 1 - server_s / wall_s,
    }
