"""Timing jobs: one life of the server, warmed up, its repetitions in turn, every one recorded."""

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakeprefix.errors import MeasureError
from fakeprefix.machine.cpu import this_cpu
from fakeprefix.machine.devices import listed_devices
from fakeprefix.measure.records import RecordWriter
from fakeprefix.measure.requests import BASELINE, CACHED_PREFIX, STATE_RESTORE, arm_request, image_loader
from fakeprefix.measure.session import Probe, Session, Subject, check_resolved
from fakeprefix.measure.timing_lock import timing_slot
from fakeprefix.progress import Progress
from fakeprefix.runs.superseded import supersede
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import Image, Segment
from fakeprefix.server.process import running_server
from fakeprefix.storage import read_json
from fakeprefix.trace.desktop import mark, screenshot
from fakeprefix.trace.steps import Step

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerLife:
    """One server of a run and where its rows go.

    Attributes:
        run_folder: the run; rows of an earlier attempt move to its ``raw/superseded``.
        name: of the job, ``<arm>/<bucket>``.
        binary, settings, model, mmproj: what is started and how.
        reference: ``server_config.json`` of the run; the server must have settled on the same.
        final: the file of rows.
        log_path: the server's log.
        fill: content of fabricated cells.
        probe: the fixed request that every job repeats.
        decode_tokens: tokens to decode, the first included.
        timeout_s: longest time for one request.
        state_bytes: room for one kept state, in bytes.
    """

    run_folder: Path
    name: str
    binary: Path
    settings: EngineSettings
    model: Path
    mmproj: Path | None
    reference: Path
    final: Path
    log_path: Path
    fill: str
    probe: Probe
    decode_tokens: int
    timeout_s: float
    state_bytes: int

    @classmethod
    def of_job(cls, final: Path, inputs: Any, params: Any, log: str) -> "ServerLife":
        """From what the rules of timing jobs have in common.

        Args:
            final: ``<run folder>/raw/<arm>/<bucket or length>[.<part>].jsonl``; says the job's name.
            inputs: `host` (``host/snapshot.json``), `engine` (``engine/manifest.json``), `summary`
                (``trace/plan.json``), `model`, `mmproj` (or nothing) and `server_config`.
            params: `server`, and the sections `run` and `measure` of the configuration.
            log: of the rule; the server's goes beside it.

        Raises:
            MeasureError: this is another kind of machine than that of the snapshot or the engine.
        """
        require_same_machine(Path(inputs.host), Path(inputs.engine))
        plan, measure = read_json(inputs.summary), params.measure
        if params.run["n_gpu_layers"]:
            require_same_devices(Path(params.server), Path(inputs.server_config))
        return cls(
            run_folder=final.parents[2],
            name=f"{final.parent.name}/{final.name.split('.')[0]}",
            binary=Path(params.server),
            settings=EngineSettings.from_config(params.run, plan["n_ctx"]),
            model=Path(inputs.model),
            mmproj=Path(inputs.mmproj[0]) if inputs.mmproj else None,
            reference=Path(inputs.server_config),
            final=final,
            log_path=Path(log).with_suffix(".server.log"),
            fill=measure["fill"],
            probe=Probe(measure["probe"]["prefix_tokens"], measure["probe"]["new_tokens"]),
            decode_tokens=measure["decode_tokens"],
            timeout_s=measure["timeout_s"],
            state_bytes=plan["estimate"]["memory_bytes"]["state"],
        )

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Start the server, yield a session, and give the rows their final name if all went well.

        Rows are kept as they come in a file beside the final one; those of an earlier attempt are moved
        to ``raw/superseded`` first, never lost and never mixed in.

        Raises:
            MeasureError: the server settled on other settings than the rest of the run.
            ServerError: the server could not be started or died; the last row says where.
        """
        partial = self.final.with_name(f".{self.final.stem}.partial.jsonl")
        kept = self.final.with_name(f".{self.final.stem}.kept.jsonl")
        for earlier in (partial, kept):
            if moved := supersede(self.run_folder, earlier):
                log.info("rows of an earlier attempt are in %s", moved)
        with timing_slot():
            writer = RecordWriter(partial)
            try:
                with running_server(
                    self.binary,
                    self.settings,
                    self.model,
                    self.mmproj,
                    self.log_path,
                    timeout_s=self.timeout_s,
                    extra_environment={"LLAMA_PREFIX_STATE_CAP": str(self.state_bytes // 2**20 + 16)},
                ) as server:
                    props = server.client.props()
                    check_resolved(self.reference, props["resolved"])
                    yield Session(
                        self.name,
                        self.run_folder.name,
                        server,
                        props,
                        writer,
                        self.fill,
                        self.probe,
                        self.decode_tokens,
                        self.timeout_s,
                    )
            finally:
                writer.close()
        # Snakemake deletes the output before it reruns a rule; the link keeps the rows until they are moved
        writer.finish(self.final)
        kept.hardlink_to(self.final)


def require_same_machine(snapshot: Path, engine: Path) -> None:
    """Raise MeasureError if this is another kind of CPU than that of the snapshot, or than the engine is made for.

    On a cluster jobs may land on nodes of another kind; their times must not be mixed.
    """
    cpu = this_cpu()
    taken = read_json(snapshot)["cpu"].get("model")
    if str(taken) != cpu:
        raise MeasureError(
            f"this node has {cpu!r}, the run's snapshot is of {taken!r}; send all jobs to one kind of node"
        )
    made_for = read_json(engine)["compiled_for"]
    if made_for not in (None, cpu):
        raise MeasureError(
            f"this node has {cpu!r}, the engine was compiled for {made_for!r}; remove it, or send all "
            "jobs to one kind of node"
        )


def require_same_devices(server: Path, reference: Path) -> None:
    """Raise MeasureError if the engine sees other devices than in the run's smoke request."""
    seen, known = listed_devices(server), read_json(reference)["devices"]
    if seen != known:
        raise MeasureError(f"the engine sees {seen or 'no device'}, in this run's smoke request it saw {known}")


def measure_bucket(
    life: ServerLife,
    arm: str,
    bucket: int,
    steps: Sequence[Step],
    history: Sequence[Step],
    images: Path,
    repetitions: int,
) -> float:
    """Measure the steps of one bucket with one arm.

    Args:
        steps: the measured steps of the bucket.
        history: all steps of the trace, to rebuild prefixes.
        images: folder with the trace's images.
        repetitions: of every step.

    Returns:
        Seconds in which the server worked, see `Session`.
    """
    load = image_loader(images)
    weights = {id(step): step.total_tokens if arm in (BASELINE, CACHED_PREFIX) else step.new_tokens for step in steps}
    progress = Progress(f"{arm}, bucket {bucket}", repetitions * sum(weights.values()))
    with life.session() as session, progress.ticking():
        session.warm_up(warm_up_image(steps))
        for number, (step, repetition) in enumerate(schedule(arm, bucket, steps, repetitions)):
            if number % len(steps) == 0:
                session.measure_probe(number // len(steps), bucket)
            earlier = [other for other in history if other.task_id == step.task_id]
            request = arm_request(arm, step, earlier, repetition, life.fill, load)
            session.measure(subject_of(step, bucket), arm, request, repetition)
            progress.advance(weights[id(step)], f"repetition {repetition + 1}/{repetitions}")
    return session.server_s


def schedule(arm: str, bucket: int, steps: Sequence[Step], repetitions: int) -> list[tuple[Step, int]]:
    """Steps and repetitions in the order in which they run: all steps in turn, shuffled in every repetition.

    A state is computed once for each prefix length and only one is kept at a time, so there the
    repetitions of one length follow each other.
    """
    rng = random.Random(f"{arm}/{bucket}")
    order = []
    for repetition in range(repetitions):
        turn = list(steps)
        rng.shuffle(turn)
        order += [(step, repetition) for step in turn]
    if arm == STATE_RESTORE:
        # steps of one length that differ in their images have prefixes of different tokens
        order.sort(key=lambda item: (item[0].prefix_tokens, bool(item[0].images)))
    return order


def subject_of(step: Step, bucket: int) -> Subject:
    """What the records of a step's repetitions say about it."""
    return Subject(step.task_id, step.step, bucket, step.policy, step.prefix_tokens, step.new_tokens, step.image_tokens)


def warm_up_image(steps: Sequence[Step]) -> Segment | None:
    """An image of the size of the steps' images that none of them has; None without images."""
    image = next((image for step in steps for image in step.images), None)
    if image is None:
        return None
    picture = screenshot(image.width, image.height, "warm-up")
    return Segment(16, "warm-up/text", Image(mark(picture, "warm-up"), image.tokens))
