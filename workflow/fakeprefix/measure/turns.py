"""Every way of having the prefix, in turn in one server: what the report's ratios of fills come from."""

import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from fakeprefix.errors import MeasureError
from fakeprefix.measure.buckets import ServerLife
from fakeprefix.measure.order import balanced_orders
from fakeprefix.measure.records import OK, Record
from fakeprefix.measure.requests import (
    CACHED_PREFIX,
    FAKE_PREFIX,
    STATE_RESTORE,
    ArmRequest,
    prefixed_request,
)
from fakeprefix.measure.session import Session, Subject
from fakeprefix.progress import Progress
from fakeprefix.server.client import PLAIN_TEXT_GRAMMAR, Timings
from fakeprefix.server.exact_prompts import Segment
from fakeprefix.server.registered import expected_counts, mismatch
from fakeprefix.storage import write_json

log = logging.getLogger(__name__)

TASK = "(fidelity)"
N_LOGITS = 20
# of the interval that decides when enough rounds have run; the reported ones are made in the analysis
STOPPING_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Contestant:
    """One of the arms that take turns.

    Attributes:
        fill: content of the cells, for `fake_prefix` only.
        twin: 1 for the second of two equal ones, which show the noise floor.
    """

    arm: str
    fill: str | None = None
    twin: int = 0


@dataclass(frozen=True)
class Rounds:
    """How long the arms take turns.

    Attributes:
        at_least, at_most: rounds.
        margin: relative width at which the intervals of all fills are narrow enough.
        budget_s: seconds after which no round beyond `at_least` begins.
    """

    at_least: int
    at_most: int
    margin: float
    budget_s: float


def contestants(fills: Sequence[str], with_cached: bool) -> list[Contestant]:
    """Every fill, a restored state twice, and the engine's own cache where it can be afforded."""
    found = [Contestant(FAKE_PREFIX, fill) for fill in fills]
    found += [Contestant(STATE_RESTORE, twin=0), Contestant(STATE_RESTORE, twin=1)]
    return [*found, Contestant(CACHED_PREFIX)] if with_cached else found


def measure_fidelity(
    life: ServerLife,
    prefix_tokens: int,
    new_tokens: int,
    fills: Sequence[str],
    with_cached: bool,
    rounds: Rounds,
    logits: Path,
) -> None:
    """Let the arms take turns over one prefix length.

    Args:
        with_cached: measure the engine's own prompt cache too, and the whole prompt's logits; a real
            prefill of the prefix for every repetition.
        logits: gets the top log probabilities of the first token behind a whole prefill, a restored
            and a cached prefix, which ought to be the same.

    Raises:
        MeasureError: the prefix could not be computed and kept.
        ServerError: the server could not be started or died.
    """
    arms = contestants(fills, with_cached)
    progress = Progress(f"fidelity, L = {prefix_tokens}", rounds.at_most)
    with life.session() as session, progress.ticking():
        session.warm_up()
        for fill in fills:
            _use_once(session, prefix_tokens, fill)
        write_json(logits, first_logits(session, prefix_tokens, new_tokens, with_cached))
        seen: dict[Contestant, dict[int, float]] = {arm: {} for arm in arms}
        started = time.monotonic()
        for number, order in zip(
            range(rounds.at_most), balanced_orders(len(arms), f"fidelity/{prefix_tokens}"), strict=False
        ):
            session.measure_probe(number, 0)
            for place in order:
                record = _turn(session, arms[place], prefix_tokens, new_tokens, number)
                if record.status == OK:
                    seen[arms[place]][number] = record.prompt_ms
            width = widest_interval(seen)
            progress.advance(1, f"round {number + 1} of at most {rounds.at_most}, widest interval {100 * width:.1f} %")
            enough = width < rounds.margin or time.monotonic() - started > rounds.budget_s
            if enough and number + 1 >= rounds.at_least:
                log.info("%d rounds, widest interval of a fill %.2f %%", number + 1, 100 * width)
                break


def widest_interval(seen: dict[Contestant, dict[int, float]]) -> float:
    """Relative width of the widest interval of a fill's paired ratio to the restored state.

    A t interval of the logarithms; infinite with fewer than two pairs.
    """
    first, second = (seen[Contestant(STATE_RESTORE, twin=twin)] for twin in (0, 1))
    # against the geometric mean of both restored turns, as in the analysis
    reference = {number: (math.log(first[number]) + math.log(second[number])) / 2 for number in first.keys() & second}
    widths = []
    for arm, times in seen.items():
        if arm.arm != FAKE_PREFIX:
            continue
        logs = [math.log(times[number]) - reference[number] for number in times.keys() & reference]
        if len(logs) < 2:
            return math.inf
        quantile = stats.t.ppf((1 + STOPPING_CONFIDENCE) / 2, len(logs) - 1)
        widths.append(2 * quantile * statistics.stdev(logs) / math.sqrt(len(logs)))
    return max(widths, default=0.0)


def _turn(session: Session, arm: Contestant, prefix_tokens: int, new_tokens: int, number: int) -> Record:
    new = (Segment(new_tokens, f"fidelity/new/{number}"),)
    request = prefixed_request(arm.arm, prefix_tokens, new, prefix_seed(prefix_tokens), arm.fill or "")
    return session.measure(Subject(TASK, 0, 0, "", prefix_tokens, new_tokens), arm.arm, request, number, arm.twin)


def prefix_seed(prefix_tokens: int) -> str:
    """The words of the prefix, the same for all arms."""
    return f"fidelity/prefix/{prefix_tokens}"


def _use_once(session: Session, prefix_tokens: int, fill: str) -> None:
    """The first request of a fill touches memory for the first time, and computes the tile."""
    new = (Segment(16, f"fidelity/warm-up/{fill}"),)
    request = prefixed_request(FAKE_PREFIX, prefix_tokens, new, prefix_seed(prefix_tokens), fill)
    session.client.complete(
        session.builder.prompt(request.segments), **session.builder.one_word_answer, **request.options
    )


def first_logits(session: Session, prefix_tokens: int, new_tokens: int, with_cached: bool) -> dict[str, Any]:
    """Top log probabilities of the first token, by how its prefix came to be: ``[[token, logprob], ...]``."""
    new = (Segment(new_tokens, "fidelity/new/logits"),)
    seed = prefix_seed(prefix_tokens)
    subject = Subject(TASK, 0, 0, "", prefix_tokens, new_tokens)
    whole = ArmRequest((Segment(prefix_tokens, seed), *new), {}, "none")
    requests = {"whole": whole} if with_cached else {}
    requests["restored"] = prefixed_request(STATE_RESTORE, prefix_tokens, new, seed, "")
    if with_cached:
        requests["cached"] = prefixed_request(CACHED_PREFIX, prefix_tokens, new, seed, "")
    found = {}
    for name, request in requests.items():
        primed = session.prime(subject, request)
        if primed is not None and primed.status != OK:
            raise MeasureError(f"the prefix of {prefix_tokens} tokens could not be computed: {primed.error}")
        found[name] = _top_logits(session, request, prefix_tokens, new_tokens)
    return {"prefix_tokens": prefix_tokens, "new_tokens": new_tokens, "logits": found}


def _top_logits(session: Session, request: ArmRequest, prefix_tokens: int, new_tokens: int) -> list[list[float]]:
    answer = session.client.complete(
        session.builder.prompt(request.segments),
        n_probs=N_LOGITS,
        grammar=PLAIN_TEXT_GRAMMAR,
        timeout_s=session.timeout_s,
        **request.options,
    )
    expected = expected_counts(prefix_tokens, new_tokens, request.prefix_source, session.memory_type)
    if problem := mismatch(expected, Timings.from_answer(answer)):
        raise MeasureError(f"logits over a prefix of {prefix_tokens} tokens: {problem}")
    return [[item["id"], item["logprob"]] for item in answer["completion_probabilities"][0]["top_logprobs"]]
