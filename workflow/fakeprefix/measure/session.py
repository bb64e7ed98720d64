"""One life of the server: its repetitions one after another, every one a record, failures too."""

import socket
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from fakeprefix.errors import FakePrefixError, MeasureError, RequestRefused, ServerError
from fakeprefix.measure.records import (
    ERROR,
    MAX_CLOCK_DIFFERENCE_S,
    OK,
    Record,
    RecordWriter,
)
from fakeprefix.measure.requests import PRIME, PROBE, ArmRequest, probe_request
from fakeprefix.planning.steps import WARM_UP_TOKENS
from fakeprefix.server.answers import Props, Resolved
from fakeprefix.server.client import Client, Timings
from fakeprefix.server.exact_prompts import PromptBuilder, Segment
from fakeprefix.server.process import Server
from fakeprefix.server.registered import expected_counts, mismatch
from fakeprefix.storage import read_json


@dataclass(frozen=True)
class Probe:
    """The fixed request that every job repeats, in tokens."""

    prefix_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class Subject:
    """What a repetition is of; the fields are those of `Record`."""

    task_id: str
    step: int
    bucket: int
    policy: str
    prefix_tokens: int
    new_tokens: int
    image_tokens: int = 0


class Session:
    """Sends requests to one server and writes a record of each.

    Args:
        name: of the job, ``<arm>/<bucket>``.
        run: name of the run folder.
        server: the running server.
        props: its ``/props``.
        writer: gets the records.
        fill: content of fabricated cells.
        probe: the fixed request.
        decode_tokens: tokens to decode, the first included.
        timeout_s: longest time for one request.

    Attributes:
        server_s: seconds in which the server worked: its start, the warm-up, and by its own clocks
            every repetition; the rest of a job's time is ours.
    """

    def __init__(
        self,
        name: str,
        run: str,
        server: Server,
        props: Props,
        writer: RecordWriter,
        fill: str,
        probe: Probe,
        decode_tokens: int,
        timeout_s: float,
    ) -> None:
        self.name, self.run, self.server, self.writer = name, run, server, writer
        self.client: Client = server.client
        self.builder = PromptBuilder(server.client, props["media_marker"])
        self.has_vision: bool = props["modalities"]["vision"]
        self.memory_type: str = props["resolved"]["memory_type"]
        self.fill = None if props["fake_prefix_unsupported"] else fill
        self.probe, self.decode_tokens, self.timeout_s = probe, decode_tokens, timeout_s
        self.server_s = server.start_s
        self._order = 0
        self._saved: tuple[tuple[Segment, ...], bool] | None = None

    def warm_up(self, image_segment: Segment | None = None) -> None:
        """Text, an image that no step has, and the first use of the fill (which computes the tile)."""
        segments = [Segment(WARM_UP_TOKENS, "warm-up")]
        if image_segment is not None and self.has_vision:
            segments.append(image_segment)
        options = {"timeout_s": self.timeout_s, **self.builder.one_word_answer}
        started = time.monotonic()
        self.client.complete(self.builder.prompt(segments), **options)
        request = self._probe_request(-1)
        self.client.complete(self.builder.prompt(request.segments), **options, **request.options)
        self.server_s += time.monotonic() - started

    def measure_probe(self, repetition: int, bucket: int) -> Record:
        """One repetition of the fixed request."""
        subject = Subject("(probe)", 0, bucket, "", self.probe.prefix_tokens, self.probe.new_tokens)
        return self.measure(subject, PROBE, self._probe_request(repetition), repetition)

    def measure(self, subject: Subject, arm: str, request: ArmRequest, repetition: int, twin: int = 0) -> Record:
        """One repetition, with the real prefill of the prefix in front where the arm needs one.

        Returns:
            The record, which is written already.

        Raises:
            ServerError: the server gives no answer any more; the last record says why.
        """
        primed = self.prime(subject, request, repetition, twin)
        primed_ms = primed.prompt_ms if primed and not request.prime_lasts else None
        return self._send(subject, arm, request, repetition, twin, primed_ms=primed_ms)

    def prime(self, subject: Subject, request: ArmRequest, repetition: int = 0, twin: int = 0) -> Record | None:
        """Really prefill the prefix of `request` if it needs that now; None if it does not."""
        if request.prime is None:
            return None
        # in front of an image the prefix is text, whose first token is another one
        as_text = any(segment.image for segment in request.segments)
        prefix = (request.prime.segments, as_text)
        if request.prime_lasts and self._saved == prefix:
            return None
        whole = replace(subject, prefix_tokens=0, new_tokens=subject.prefix_tokens, image_tokens=0)
        record = self._send(whole, PRIME, request.prime, repetition, twin, as_text)
        if request.prime_lasts:
            self._saved = prefix if record.status == OK else None
        return record

    def _probe_request(self, repetition: int) -> ArmRequest:
        return probe_request(self.probe.prefix_tokens, self.probe.new_tokens, repetition, self.fill)

    def _send(
        self,
        subject: Subject,
        arm: str,
        request: ArmRequest,
        repetition: int,
        twin: int,
        as_text: bool = False,
        primed_ms: float | None = None,
    ) -> Record:
        prompt = self.builder.prompt(request.segments, as_text)
        record = Record(
            run=self.run,
            host=socket.gethostname(),
            job=self.name,
            task_id=subject.task_id,
            step=subject.step,
            bucket=subject.bucket,
            arm=arm,
            fill=request.options.get("fake_fill"),
            policy=subject.policy,
            history=request.history,
            repetition=repetition,
            order=self._order,
            started_at=datetime.now().astimezone().isoformat(),
            prefix_tokens=subject.prefix_tokens,
            new_tokens=subject.new_tokens,
            image_tokens=subject.image_tokens,
            server_pid=self.server.pid,
            twin=twin,
        )
        self._order += 1
        # the first token belongs to the prefill; a prime needs no other, and a probe is of the prefill only
        n_predict = 1 if arm in (PRIME, PROBE) else self.decode_tokens
        clocks = Clocks.now()
        try:
            answer = self.client.complete(
                prompt,
                timeout_s=self.timeout_s,
                n_predict=n_predict,
                **self.builder.one_word_answer,
                **request.options,
            )
            timings = Timings.from_answer(answer)
        except RequestRefused as error:
            return self._write(replace(record, error=str(error), wall_s=clocks.elapsed_s()))
        except FakePrefixError as error:
            self._write(replace(record, error=str(error), wall_s=clocks.elapsed_s()))
            raise ServerError(f"{self.name}: {error}; the server's log is {self.server.log_path}") from error
        return self._write(self._completed(record, timings, request, clocks, n_predict, primed_ms))

    def _write(self, record: Record) -> Record:
        self.writer.append(record)
        return record

    def _completed(
        self,
        record: Record,
        timings: Timings,
        request: ArmRequest,
        clocks: "Clocks",
        n_predict: int,
        primed_ms: float | None,
    ) -> Record:
        expected = expected_counts(record.prefix_tokens, record.new_tokens, request.prefix_source, self.memory_type)
        problem = mismatch(expected, timings, n_predict) or clocks.problem()
        self.server_s += (timings.install_ms + timings.prompt_ms + timings.predicted_ms) / 1e3
        return replace(
            record,
            cache_n=timings.cache_n,
            prompt_n=timings.prompt_n,
            prompt_ms=timings.prompt_ms,
            install_ms=timings.install_ms if primed_ms is None else primed_ms,
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


def check_resolved(reference: Path, resolved: Resolved) -> None:
    """Raise MeasureError if the server settled on other settings than `reference` says."""
    known = read_json(reference)["resolved"]
    differing = [f"{key}: {known.get(key)} -> {value}" for key, value in resolved.items() if known.get(key) != value]
    if differing:
        raise MeasureError(f"the server settled on other settings than the run's first one: {'; '.join(differing)}")
