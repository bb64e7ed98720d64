"""A depth sweep with a fabricated prefix against one with ``llama-bench -d``, whole processes."""

import math
import time
from collections.abc import Iterable, Sequence
from itertools import count, islice
from statistics import median
from typing import Any

from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.arms import FILLS
from fakeprefix.bench.subject import Subject
from fakeprefix.errors import MeasureError
from fakeprefix.measure.depth_rate import call_bench
from fakeprefix.measure.order import balanced_orders
from fakeprefix.measure.requests import FAKE_PREFIX, prefixed_request
from fakeprefix.measure.timing_lock import timing_slot
from fakeprefix.progress import Progress
from fakeprefix.server.client import Timings
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import PromptBuilder, Segment
from fakeprefix.server.process import Server, running_server
from fakeprefix.server.registered import expected_counts, mismatch

FILL = "tile"
# an interval from fewer rounds says nothing; a deep prefix has no time for more
MIN_ROUNDS, MAX_ROUNDS = 2, 24


class Requests:
    """Requests over a fabricated prefix to one server."""

    def __init__(self, server: Server, new_tokens: int) -> None:
        self._client, self._new = server.client, new_tokens
        props = server.client.props()
        self._builder = PromptBuilder(server.client, props["media_marker"])
        self._memory_type: str = props["resolved"]["memory_type"]

    def send(self, depth: int, fill: str, number: int) -> Timings:
        """One request, checked to have registered."""
        new = (Segment(self._new, f"bench/{number}"),)
        request = prefixed_request(FAKE_PREFIX, depth, new, "bench/prefix", fill)
        prompt = self._builder.prompt(request.segments)
        answer = self._client.complete(prompt, **self._builder.one_word_answer, **request.options)
        timings = Timings.from_answer(answer)
        expected = expected_counts(depth, self._new, request.prefix_source, self._memory_type)
        if problem := mismatch(expected, timings):
            raise MeasureError(f"depth {depth}: {problem}")
        return timings

    def block(self, depth: int, numbers: Iterable[int]) -> list[float]:
        """Prefill times in ms of requests with these numbers."""
        return [self.send(depth, FILL, number).prompt_ms for number in numbers]


def _benchmark(
    subject: Subject, settings: EngineSettings, depth: int, new_tokens: int, repetitions: int
) -> list[float]:
    """Prefill times in ms of one call of ``llama-bench``."""
    call = call_bench(subject.bench, settings, subject.model, depth, [new_tokens], repetitions, subject.log, "bench")
    return [nanoseconds / 1e6 for nanoseconds in call["results"][0]["samples_ns"]]


def depth_sweep(
    subject: Subject, depths: Sequence[int], new_tokens: int, repetitions: int, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Wall time of both programs a depth, from the start of the process to its end, and their answers.

    Each depth is a process of its own on both sides, each warms up once.
    """
    rows = []
    # llama-bench's work grows a little faster than the depth
    progress = Progress("bench: depth sweep", sum(depths))
    for depth in depths:
        settings = subject.settings(depth + new_tokens)
        with timing_slot(), progress.ticking():
            started = time.monotonic()
            theirs = _benchmark(subject, settings, depth, new_tokens, repetitions)
            bench_wall_s = time.monotonic() - started
            started = time.monotonic()
            with running_server(subject.server, settings, subject.model, None, subject.log) as server:
                requests = Requests(server, new_tokens)
                requests.send(depth, FILL, -1)
                ours = requests.block(depth, range(repetitions))
            our_wall_s = time.monotonic() - started
        ratio = bootstrap.ratio(ours, theirs)
        rows.append(
            {
                "depth": depth,
                "bench_wall_s": bench_wall_s,
                "our_wall_s": our_wall_s,
                "times_cheaper": bench_wall_s / our_wall_s,
                "bench_ms": theirs,
                "our_ms": ours,
                **ratio.columns("answer_ratio"),
            }
        )
        progress.advance(depth, f"depth {depth}")
    return {
        "new_tokens": new_tokens,
        "repetitions": repetitions,
        "rows": rows,
        "times_cheaper": sum(row["bench_wall_s"] for row in rows) / sum(row["our_wall_s"] for row in rows),
        "times_cheaper_deepest": rows[-1]["times_cheaper"],
    }


def same_answers(
    subject: Subject, depths: Sequence[int], new_tokens: int, repetitions: int, budget_s: float, bootstrap: Bootstrap
) -> list[dict[str, Any]]:
    """What both programs answer, in turn: requests, ``llama-bench``, requests, and so on.

    One block of each after the other, as in a sweep, cannot tell the programs apart on a machine whose
    speed wanders between blocks. Here every call of the benchmark is held against the requests right
    before and right after it (the geometric mean of their medians); those two against each other are
    the noise floor. The server stays up and idles while the benchmark runs.

    Args:
        repetitions: a block.
        budget_s: for each depth; at least `MIN_ROUNDS` rounds run in any case.
    """
    rows = []
    progress = Progress("bench: both programs in turn", len(depths))
    for depth in depths:
        settings = subject.settings(depth + new_tokens)
        ratios: list[float] = []
        floor: list[float] = []
        blocks: list[dict[str, list[float]]] = []
        started = time.monotonic()
        with (
            timing_slot(),
            progress.ticking(),
            running_server(subject.server, settings, subject.model, None, subject.log) as server,
        ):
            requests = Requests(server, new_tokens)
            requests.send(depth, FILL, -1)
            numbers = count()
            before = requests.block(depth, islice(numbers, repetitions))
            while len(ratios) < MIN_ROUNDS or (len(ratios) < MAX_ROUNDS and time.monotonic() - started < budget_s):
                theirs = _benchmark(subject, settings, depth, new_tokens, repetitions)
                after = requests.block(depth, islice(numbers, repetitions))
                ratios.append(math.sqrt(median(before) * median(after)) / median(theirs))
                floor.append(median(after) / median(before))
                blocks.append({"before_ms": before, "bench_ms": theirs, "after_ms": after})
                before = after
        rows.append(
            {
                "depth": depth,
                "rounds": len(ratios),
                "blocks": blocks,
                **bootstrap.median(ratios).columns("answer_ratio"),
                **bootstrap.median(floor).columns("noise_floor"),
            }
        )
        progress.advance(1, f"depth {depth}")
    return rows


def install_errors(
    subject: Subject, depths: Sequence[int], new_tokens: int, rounds: int, bootstrap: Bootstrap
) -> list[dict[str, Any]]:
    """What a measurement would say with the install inside the clock, and with each fill, by depth.

    The fills take turns in balanced random order in one server; ratios are paired within a round.
    """
    rows = []
    progress = Progress("bench: fills and installs", len(depths) * rounds)
    with timing_slot():
        for depth in depths:
            settings = subject.settings(depth + new_tokens)
            seen: dict[str, list[Timings]] = {fill: [] for fill in FILLS}
            with running_server(subject.server, settings, subject.model, None, subject.log) as server:
                requests = Requests(server, new_tokens)
                for fill in FILLS:
                    requests.send(depth, fill, -1)
                for number, order in zip(range(rounds), balanced_orders(len(FILLS), f"bench/{depth}"), strict=False):
                    for place in order:
                        seen[FILLS[place]].append(requests.send(depth, FILLS[place], number))
                    progress.advance(1, f"depth {depth}")
            for fill, timings in seen.items():
                pairs = zip(timings, seen[FILL], strict=True)
                bias = bootstrap.median([one.prompt_ms / other.prompt_ms for one, other in pairs])
                inside = bootstrap.median([1 + one.install_ms / one.prompt_ms for one in timings])
                rows.append(
                    {
                        "depth": depth,
                        "fill": fill,
                        "prompt_ms": bootstrap.median([one.prompt_ms for one in timings]).value,
                        "install_ms": bootstrap.median([one.install_ms for one in timings]).value,
                        "install_bytes": timings[0].install_bytes,
                        "rounds": rounds,
                        **bias.columns("over_tile"),
                        **inside.columns("with_install_inside"),
                    }
                )
    return rows
