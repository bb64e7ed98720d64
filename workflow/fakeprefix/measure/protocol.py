"""One timing job: one life of the server, warmed up, its repetitions in turn, every one recorded."""

import logging
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fakeprefix.errors import FakePrefixError, MeasureError, RequestRefused, ServerError
from fakeprefix.measure.arms import BASELINE, PROBE, ArmRequest, arm_request, image_loader, probe_request
from fakeprefix.measure.guard import timing_slot
from fakeprefix.measure.records import (
    ERROR,
    MAX_CLOCK_DIFFERENCE_S,
    OK,
    Record,
    RecordWriter,
    expected_counts,
    mismatch,
)
from fakeprefix.progress import Progress
from fakeprefix.runs import supersede
from fakeprefix.server.client import Client, Timings
from fakeprefix.server.process import Server, running_server
from fakeprefix.server.prompts import Image, PromptBuilder, Segment
from fakeprefix.server.settings import EngineSettings
from fakeprefix.storage import read_json
from fakeprefix.trace.desktop import mark, screenshot
from fakeprefix.trace.steps import Step

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 256


@dataclass(frozen=True)
class TimingJob:
    """Everything that one timing job needs.

    Attributes:
        run_folder: the run; rows of an earlier attempt move to its ``raw/superseded``.
        arm, bucket: what is measured.
        steps: the measured steps of the bucket.
        history: all steps of the trace, to rebuild prefixes.
        images: folder with the trace's images.
        repetitions: of every step.
        fill: content of fabricated cells.
        probe_prefix, probe_new: tokens of the probe.
        decode_tokens: tokens to decode, the first included.
        timeout_s: longest time for one request.
        reference: ``server_config.json`` of the run; the server must have settled on the same.
    """

    run_folder: Path
    arm: str
    bucket: int
    steps: tuple[Step, ...]
    history: tuple[Step, ...]
    images: Path
    repetitions: int
    fill: str
    probe_prefix: int
    probe_new: int
    decode_tokens: int
    timeout_s: float
    reference: Path

    @property
    def name(self) -> str:
        return f"{self.arm}/{self.bucket}"


def run_timing_job(
    job: TimingJob,
    binary: Path,
    settings: EngineSettings,
    model: Path,
    mmproj: Path | None,
    final: Path,
    log_path: Path,
) -> None:
    """Measure one bucket with one arm and write its rows to `final`.

    Rows are kept as they come in a file beside it; those of an earlier attempt are moved to
    ``raw/superseded`` first, never lost and never mixed in.

    Raises:
        MeasureError: the server settled on other settings than the rest of the run.
        ServerError: the server could not be started or died; the last row says where.
    """
    partial = final.with_name(f".{final.stem}.partial.jsonl")
    kept = final.with_name(f".{final.stem}.kept.jsonl")
    for earlier in (partial, kept):
        if moved := supersede(job.run_folder, earlier):
            log.info("rows of an earlier attempt are in %s", moved)
    with timing_slot():
        writer = RecordWriter(partial)
        try:
            with running_server(binary, settings, model, mmproj, log_path, timeout_s=job.timeout_s) as server:
                props = server.client.props()
                check_resolved(job.reference, props["resolved"])
                _Session(job, server, props, writer).run()
        finally:
            writer.close()
    # Snakemake deletes the output before it reruns a rule; the link keeps the rows until they are moved
    writer.finish(final)
    kept.hardlink_to(final)


def check_resolved(reference: Path, resolved: dict[str, Any]) -> None:
    """Raise MeasureError if the server settled on other settings than `reference` says."""
    known = read_json(reference)["resolved"]
    differing = [f"{key}: {known.get(key)} -> {value}" for key, value in resolved.items() if known.get(key) != value]
    if differing:
        raise MeasureError(f"the server settled on other settings than the run's first one: {'; '.join(differing)}")


class _Session:
    def __init__(self, job: TimingJob, server: Server, props: dict[str, Any], writer: RecordWriter) -> None:
        self.job, self.server, self.writer = job, server, writer
        self.client: Client = server.client
        self.builder = PromptBuilder(server.client, props["media_marker"])
        self.has_vision = props["modalities"]["vision"]
        self.memory_type = props["resolved"]["memory_type"]
        self.load = image_loader(job.images)
        self.order = 0

    def run(self) -> None:
        job = self.job
        self._warm_up()
        weights = {id(step): step.total_tokens if job.arm == BASELINE else step.new_tokens for step in job.steps}
        progress = Progress(f"{job.arm}, bucket {job.bucket}", job.repetitions * sum(weights.values()))
        for repetition in range(job.repetitions):
            self._measure(self._probe_step(), PROBE, repetition)
            order = list(job.steps)
            random.Random(f"{job.name}/{repetition}").shuffle(order)
            for step in order:
                self._measure(step, job.arm, repetition)
                progress.advance(weights[id(step)], f"repetition {repetition + 1}/{job.repetitions}")

    def _warm_up(self) -> None:
        """Text, an image that no step has, and the first use of the fill (which computes the tile)."""
        segments = [Segment(WARM_UP_TOKENS, "warm-up")]
        images = [image for step in self.job.steps for image in step.images]
        if images and self.has_vision:
            width, height = images[0].width, images[0].height
            picture = screenshot(width, height, "warm-up")
            segments.append(Segment(16, "warm-up/text", Image(mark(picture, "warm-up"), images[0].tokens)))
        options = {"timeout_s": self.job.timeout_s, **self.builder.one_word_answer}
        self.client.complete(self.builder.prompt(segments), **options)
        request = probe_request(self.job.probe_prefix, self.job.probe_new, -1, self.job.fill)
        self.client.complete(self.builder.prompt(request.segments), **options, **request.options)

    def _probe_step(self) -> Step:
        return Step("(probe)", 0, self.job.probe_prefix, self.job.probe_new)

    def _request(self, step: Step, arm: str, repetition: int) -> ArmRequest:
        if arm == PROBE:
            return probe_request(step.prefix_tokens, step.new_tokens, repetition, self.job.fill)
        history = [other for other in self.job.history if other.task_id == step.task_id]
        return arm_request(arm, step, history, repetition, self.job.fill, self.load)

    def _measure(self, step: Step, arm: str, repetition: int) -> None:
        request = self._request(step, arm, repetition)
        prompt = self.builder.prompt(request.segments)
        record = Record(
            run=self.job.run_folder.name,
            host=socket.gethostname(),
            job=self.job.name,
            task_id=step.task_id,
            step=step.step,
            bucket=self.job.bucket,
            arm=arm,
            fill=self.job.fill if request.prefix_source == "fake" else None,
            policy=step.policy,
            history=request.history,
            repetition=repetition,
            order=self.order,
            started_at=datetime.now().astimezone().isoformat(),
            prefix_tokens=step.prefix_tokens,
            new_tokens=step.new_tokens,
            image_tokens=step.image_tokens,
            server_pid=self.server.pid,
        )
        self.order += 1
        clocks = Clocks.now()
        try:
            answer = self.client.complete(
                prompt,
                timeout_s=self.job.timeout_s,
                n_predict=self.job.decode_tokens,
                **self.builder.one_word_answer,
                **request.options,
            )
            timings = Timings.from_answer(answer)
        except RequestRefused as error:
            self.writer.append(replace(record, error=str(error), wall_s=clocks.elapsed_s()))
            return
        except FakePrefixError as error:
            self.writer.append(replace(record, error=str(error), wall_s=clocks.elapsed_s()))
            raise ServerError(f"{self.job.name}: {error}; the server's log is {self.server.log_path}") from error
        self.writer.append(self._completed(record, timings, request, clocks))

    def _completed(self, record: Record, timings: Timings, request: ArmRequest, clocks: "Clocks") -> Record:
        expected = expected_counts(record.prefix_tokens, record.new_tokens, request.prefix_source, self.memory_type)
        problem = mismatch(expected, timings) or clocks.problem()
        return replace(
            record,
            cache_n=timings.cache_n,
            prompt_n=timings.prompt_n,
            prompt_ms=timings.prompt_ms,
            install_ms=timings.install_ms,
            install_bytes=timings.install_bytes,
            image_encode_ms=timings.image_encode_ms,
            n_kv=timings.n_kv,
            seq_pos_max_attn=timings.seq_pos_max_attn,
            seq_pos_max_recr=timings.seq_pos_max_recr,
            # the first token is sampled from the prompt's own logits and belongs to the prefill
            decode_n=timings.predicted_n - 1,
            decode_ms=timings.predicted_ms if timings.predicted_n > 1 else 0.0,
            wall_s=clocks.elapsed_s(),
            status=ERROR if problem else OK,
            error=problem,
        )


@dataclass(frozen=True)
class Clocks:
    """Both clocks at one moment; if they disagree later, the machine slept or the time was set."""

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> "Clocks":
        return cls(time.monotonic(), time.time())

    def elapsed_s(self) -> float:
        return time.monotonic() - self.monotonic

    def problem(self) -> str | None:
        difference = (time.time() - self.wall) - self.elapsed_s()
        if abs(difference) > MAX_CLOCK_DIFFERENCE_S:
            return f"wall clock and monotonic clock differ by {difference:.1f} s: the machine slept or its time was set"
        return None


def steps_of_bucket(planned: Sequence[Any], bucket: int, status: str) -> tuple[Step, ...]:
    """The steps of a plan with this bucket and status."""
    return tuple(item.step for item in planned if item.bucket == bucket and item.status == status)
