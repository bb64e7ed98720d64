"""The independent witness: ``llama-bench`` at the depths and chunk sizes of the measured steps."""

import json
import logging
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fakeprefix.errors import MeasureError
from fakeprefix.machine.commands import kept_environment
from fakeprefix.measure.buckets import ServerLife
from fakeprefix.measure.requests import texts_behind_images
from fakeprefix.measure.timing_lock import timing_slot
from fakeprefix.planning.steps import N_PROBES, NAIVE_TOKENS
from fakeprefix.progress import Progress
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.process import ENVIRONMENT_KEPT
from fakeprefix.storage import write_json
from fakeprefix.trace.steps import Step

log = logging.getLogger(__name__)


def chunks(step: Step) -> list[int]:
    """The pieces in which the engine computes a step's new tokens.

    An image is a batch of its own; the marks around it belong to the text on either side. A rate
    from another chunk size is another regime, so the benchmark is asked for exactly these.
    """
    if not step.images:
        return [step.new_tokens]
    pieces, text = [], 0
    for image, behind in zip(step.images, texts_behind_images(step), strict=True):
        pieces += [text + 1, image.tokens - 2]
        text = 1 + behind
    return [*pieces, text]


def bench_depths(
    steps: Sequence[Step],
    life: ServerLife,
    probes: tuple[Path, Path],
    binary: Path,
    repetitions: int,
    output: Path,
    bucket: int,
) -> None:
    """One call of the benchmark for each distinct prefix length, and one for the naive rate.

    If the run decodes, one more for each length that a context has when decoding begins. The server's
    probe runs in front of them and behind them, so that drift against the jobs that are compared with
    the rates is seen.

    Args:
        life: the server that probes.
        probes: the files of rows of both.
        binary: ``llama-bench``.
        output: gets the calls with the benchmark's own JSON, all samples kept.

    Raises:
        MeasureError: the benchmark failed or answered something else than was asked.
    """
    depths = sorted({step.prefix_tokens for step in steps})
    # the first token belongs to the prefill
    n_decode = life.decode_tokens - 1
    decode_depths = sorted({step.total_tokens for step in steps}) if n_decode else []
    progress = Progress("depth rate", sum(depths) + sum(decode_depths) + NAIVE_TOKENS)
    log_path = life.log_path.with_suffix(".bench.log")
    calls = []
    _probe(life, probes[0], bucket)
    with timing_slot(), progress.ticking():
        bench = partial(call_bench, binary, life.settings, life.model, repetitions=repetitions, log_path=log_path)
        calls.append(bench(0, [NAIVE_TOKENS], purpose="naive"))
        progress.advance(NAIVE_TOKENS, "depth 0")
        for depth in depths:
            sizes = sorted({piece for step in steps if step.prefix_tokens == depth for piece in chunks(step)})
            calls.append(bench(depth, sizes, purpose="matched"))
            progress.advance(depth, f"depth {depth}")
        for depth in decode_depths:
            calls.append(bench(depth, [], purpose="decode", n_decode=n_decode))
            progress.advance(depth, f"decode at depth {depth}")
    _probe(life, probes[1], bucket)
    pieces = [
        {"task_id": step.task_id, "policy": step.policy, "step": step.step, "chunks": chunks(step)} for step in steps
    ]
    write_json(output, {"settings": life.settings.as_dict(), "steps": pieces, "calls": calls})


def _probe(life: ServerLife, final: Path, bucket: int) -> None:
    with replace(life, final=final).session() as session:
        session.warm_up()
        for number in range(N_PROBES):
            session.measure_probe(number, bucket)


def call_bench(
    binary: Path,
    settings: EngineSettings,
    model: Path,
    depth: int,
    sizes: Sequence[int],
    repetitions: int,
    log_path: Path,
    purpose: str,
    n_decode: int = 0,
) -> dict[str, Any]:
    """One call of ``llama-bench``: prefill of `sizes` tokens each over `depth` cells that it computes first.

    Args:
        n_decode: tokens to decode over these cells, one after another; 0 for none.

    Returns:
        What was asked, the command, and its JSON with all samples, in ns.

    Raises:
        MeasureError: it failed or answered something else than was asked.
    """
    command = [str(binary), "--model", str(model), *settings.bench_arguments()]
    command += ["--n-prompt", ",".join(map(str, sizes)) or "0", "--n-gen", str(n_decode), "--n-depth", str(depth)]
    command += ["--repetitions", str(repetitions), "--output", "json"]
    environment = kept_environment(*ENVIRONMENT_KEPT)
    environment["OMP_NUM_THREADS"] = str(settings.threads)
    with log_path.open("ab") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise MeasureError(f"llama-bench ended with status {done.returncode} at depth {depth}, see {log_path}")
    try:
        results = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise MeasureError(f"llama-bench at depth {depth}: its output is not JSON ({error.msg})") from None
    answered = {(result["n_prompt"], result["n_gen"], result["n_depth"]) for result in results}
    asked = [(size, 0, depth) for size in sizes] + [(0, n_decode, depth)] * bool(n_decode)
    if missing := [what for what in asked if what not in answered]:
        raise MeasureError(f"llama-bench at depth {depth} did not measure {sum(missing[0][:2])} tokens")
    return {"purpose": purpose, "depth": depth, "sizes": list(sizes), "command": command[1:], "results": results}
