"""The contract tests: requests to the checked server whose answers are known beforehand."""

import io
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fakeprefix.arms import FILLS
from fakeprefix.engine.memory_check import Setup, try_operations
from fakeprefix.engine_facts import COLUMN_WIDTH, columns_read
from fakeprefix.errors import EngineError, RequestRefused
from fakeprefix.model.presets import MICRO_SHAPES
from fakeprefix.model.synthetic import write_micro_model
from fakeprefix.model.vision import ImageGeometry
from fakeprefix.progress import Progress
from fakeprefix.server.client import PLAIN_TEXT_GRAMMAR, Client, Timings
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import Image, PromptBuilder, Segment
from fakeprefix.server.process import running_server
from fakeprefix.server.registered import expected_counts, mismatch
from fakeprefix.storage import read_json, write_json
from fakeprefix.trace.desktop import screenshot

log = logging.getLogger(__name__)

MICRO_CONTEXT = 768
INSTALL_DELAY_MS = 3000
# generated operations on the memory, over all memory types
N_OPERATIONS = 3000
SANITIZER_REPORT = re.compile(r"runtime error:|ERROR: AddressSanitizer|SUMMARY: \w+Sanitizer|Assertion .* failed")

BAD_VALUES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("negative", {"n_fake_cached": -5}),
    ("text", {"n_fake_cached": "abc"}),
    ("null", {"n_fake_cached": None}),
    ("boolean", {"n_fake_cached": True}),
    ("fraction", {"n_fake_cached": 100.5}),
    ("huge", {"n_fake_cached": 2**40}),
    ("list", {"n_fake_cached": [100]}),
    ("whole prompt", {"n_fake_cached": 400}),
    ("beyond the prompt", {"n_fake_cached": 401}),
    ("unknown fill", {"n_fake_cached": 100, "fake_fill": "warm"}),
    ("fill of a wrong type", {"n_fake_cached": 100, "fake_fill": 1}),
    ("fill without a prefix", {"fake_fill": "zero"}),
    ("several answers", {"n_fake_cached": 100, "n": 2}),
)


@dataclass(frozen=True)
class Outcome:
    """One check: its name, whether it passed, and what was seen."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Answer:
    """Counters and the most likely next tokens with their log probabilities, to compare exactly."""

    timings: Timings
    logits: tuple[tuple[int, float], ...]


class Contract:
    """Requests to one server, and the outcomes of the checks."""

    def __init__(self, client: Client, image: Image | None) -> None:
        self.client = client
        self.props = client.props()
        self.builder = PromptBuilder(client, self.props["media_marker"])
        self.image = image
        self.outcomes: list[Outcome] = []
        self.n_requests = 0

    def ask(
        self, prefix: int, new: int, seed: str = "a", *, image: bool = False, more: int = 0, **options: Any
    ) -> Answer:
        """One request of `prefix` + `new` (+ `more`) tokens of text, with an image behind the prefix if asked for."""
        segments = [Segment(prefix, f"{seed}/prefix")] if prefix else []
        segments.append(Segment(new, f"{seed}/new", self.image if image else None))
        segments += [Segment(more, f"{seed}/more")] if more else []
        self.n_requests += 1
        prompt = self.builder.prompt(segments)
        answer = self.client.complete(prompt, n_probs=8, grammar=PLAIN_TEXT_GRAMMAR, **options)
        top = answer["completion_probabilities"][0]["top_logprobs"]
        return Answer(Timings.from_answer(answer), tuple((entry["id"], entry["logprob"]) for entry in top))

    def check(self, name: str, body: Callable[[], str | None]) -> None:
        """Run one check; its body returns what is wrong, or None."""
        try:
            problem = body()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self.outcomes.append(Outcome(name, problem is None, problem or "as expected"))
        log.log(logging.ERROR if problem else logging.INFO, "contract: %s: %s", name, problem or "ok")


def wrong_counts(answer: Answer, prefix: int, new: int, memory_type: str = "hybrid") -> str | None:
    """Why a fake-prefix request has not registered; its content must be written and read too. None if it has."""
    timings = answer.timings
    problem = mismatch(expected_counts(prefix, new, "fake", memory_type), timings)
    wrong = [problem] if problem else []
    n_kv = 0 if memory_type == "recurrent" else columns_read(prefix + new)
    if timings.n_kv != n_kv:
        wrong.append(f"n_kv: expected {n_kv}, got {timings.n_kv}")
    if timings.install_bytes <= 0:
        wrong.append("nothing was written")
    return "; ".join(wrong) or None


def same_logits(one: Answer, other: Answer, what: str) -> str | None:
    return None if one.logits == other.logits else f"{what}: logits differ, {one.logits[0]} and {other.logits[0]}"


def check_requests(contract: Contract) -> None:
    """Everything that one server life can show; the very first request is a fake one, on a fresh slot."""
    memory_type = contract.props["resolved"]["memory_type"]
    first = {}

    def fresh_slot() -> str | None:
        first["answer"] = contract.ask(600, 40, n_fake_cached=600, fake_fill="zero")
        return wrong_counts(first["answer"], 600, 40, memory_type)

    contract.check("the first request on a fresh slot has exact counts", fresh_slot)
    baseline = contract.ask(300, 100, "baseline")

    for fill in FILLS:
        for prefix in (1, COLUMN_WIDTH, 2000):
            contract.check(
                f"{fill} fill, {prefix} tokens: exact counts",
                lambda fill=fill, prefix=prefix: wrong_counts(
                    contract.ask(prefix, 40, n_fake_cached=prefix, fake_fill=fill), prefix, 40, memory_type
                ),
            )

        def repeated(fill: str = fill) -> str | None:
            one = contract.ask(700, 60, n_fake_cached=700, fake_fill=fill)
            contract.ask(1500, 33, "between", n_fake_cached=1500, fake_fill="random")
            other = contract.ask(700, 60, n_fake_cached=700, fake_fill=fill)
            return same_logits(one, other, "equal requests, another between")

        contract.check(f"{fill} fill: equal requests give identical logits", repeated)

    def different_fills() -> str | None:
        answers = {fill: contract.ask(700, 60, n_fake_cached=700, fake_fill=fill).logits for fill in FILLS}
        return (
            None
            if len(set(answers.values())) == len(FILLS)
            else "two fills give the same logits: content is not written"
        )

    contract.check("the fills give different logits", different_fills)

    if contract.image is not None:
        tokens = contract.image.tokens

        def image_step() -> str | None:
            answer = contract.ask(700, 50, image=True, n_fake_cached=700, fake_fill="tile")
            if answer.timings.image_encode_ms <= 0:
                return "image_encode_ms is not positive"
            return wrong_counts(answer, 700, 50 + tokens, memory_type)

        contract.check("an image behind the prefix: exact counts", image_step)

        def image_in_prefix() -> str | None:
            return must_refuse(contract, 50, 60, image=True, n_fake_cached=60)

        contract.check("an image inside the prefix is refused", image_in_prefix)

    contract.check(
        "a baseline after fake requests equals the one before",
        lambda: same_logits(baseline, contract.ask(300, 100, "baseline"), "baseline before and after"),
    )
    for name, options in BAD_VALUES:
        contract.check(f"refused: {name}", lambda options=options: must_refuse(contract, 300, 100, **options))
    contract.check(
        "a good request after refused ones gives the logits it gave before",
        lambda: same_logits(
            first["answer"], contract.ask(600, 40, n_fake_cached=600, fake_fill="zero"), "before and after"
        ),
    )

    def not_reusable() -> str | None:
        # an extension as well: of the same prompt a recurrent state cannot be rewound, so it never hits
        for more in (0, 50):
            fresh = contract.ask(300, 100, "baseline", more=more)
            contract.ask(300, 100, "baseline", n_fake_cached=300, fake_fill="random", cache_prompt=True)
            again = contract.ask(300, 100, "baseline", more=more, cache_prompt=True)
            if again.timings.cache_n != 0 or again.timings.prompt_n != 400 + more:
                return f"{again.timings.cache_n} tokens of a fabricated prefix were taken for cached"
            if problem := same_logits(fresh, again, "fresh and after a fake prefix"):
                return problem
        return None

    contract.check("a fabricated prefix is never reused", not_reusable)


def must_refuse(contract: Contract, prefix: int, new: int, **options: Any) -> str | None:
    try:
        answer = contract.ask(prefix, new, **options)
    except RequestRefused as refusal:
        return None if refusal.status == 400 else f"refused with HTTP {refusal.status}, not 400"
    return f"accepted, and ran {answer.timings.prompt_n} tokens"


def check_clock(contract: Contract) -> None:
    """With a delay injected into the install: it must show in the install and not in the prompt's time."""

    def outside_the_clock() -> str | None:
        contract.ask(300, 16, n_fake_cached=300, fake_fill="zero")
        timings = contract.ask(300, 16, n_fake_cached=300, fake_fill="zero").timings
        if timings.install_ms < INSTALL_DELAY_MS:
            return f"the injected delay of {INSTALL_DELAY_MS} ms is not in install_ms = {timings.install_ms}"
        if timings.prompt_ms >= INSTALL_DELAY_MS:
            return f"prompt_ms = {timings.prompt_ms} contains the injected delay of {INSTALL_DELAY_MS} ms"
        return None

    contract.check("the install is outside of the prompt's clock", outside_the_clock)


def check_memory(programs: Path, n_operations: int, seed: int) -> tuple[Outcome, dict[str, dict[str, int]]]:
    """Generated operations on every memory type and division, against the model of the memory."""
    with TemporaryDirectory() as folder:
        setups = []
        for kind in MICRO_SHAPES:
            model = Path(folder) / kind / "model.gguf"
            write_micro_model(kind, model)
            setups += [Setup(model, MICRO_CONTEXT, 3, unified) for unified in (True, False)]
        try:
            tried = try_operations(programs / "memory_driver", setups, n_operations // len(setups), seed)
        except EngineError as error:
            return Outcome("the memory answers as its model does", False, str(error)), {}
    total = sum(sum(counts.values()) for counts in tried.values())
    return Outcome("the memory answers as its model does", True, f"{total} operations"), tried


def run_contract(
    programs: Path,
    build_manifest: Path,
    model: Path,
    mmproj: Path | None,
    geometry: ImageGeometry | None,
    threads: int,
    output: Path,
    log_path: Path,
) -> None:
    """Run all checks against the checked build and write the verdict to `output`.

    Args:
        programs: folder with the checked server and the series' test programs.
        build_manifest: its manifest, copied into the verdict.
        model, mmproj: the tiny synthetic model.
        geometry: of its images.
        threads: of the server.

    Raises:
        EngineError: a check failed; `output` is not written, the failed checks are in the message.
    """
    settings = EngineSettings(threads, 512, 256, "on", "f16", "f16", n_ctx=4096)
    image = None
    if mmproj is not None and geometry is not None:
        buffer = io.BytesIO()
        screenshot(320, 256, "contract").save(buffer, format="PNG")
        image = Image(buffer.getvalue(), geometry.tokens(320, 256))
    log_path.unlink(missing_ok=True)
    outcomes: list[Outcome] = []
    n_requests = 0
    lives = ((check_requests, {}), (check_clock, {"LLAMA_FAKE_PREFIX_DELAY_MS": str(INSTALL_DELAY_MS)}))
    progress = Progress("contract tests", len(lives) + 1)
    for checks, environment in lives:
        with (
            progress.ticking(),
            running_server(
                programs / "llama-server",
                settings,
                model,
                mmproj,
                log_path,
                timeout_s=300,
                extra_environment=environment,
            ) as server,
        ):
            contract = Contract(server.client, image)
            checks(contract)
        outcomes += contract.outcomes
        n_requests += contract.n_requests
        progress.advance(1, checks.__name__.removeprefix("check_"))
        died = server.exit_status is not None
        outcomes.append(
            Outcome("the server lives to the end", not died, f"exit status {server.exit_status}" if died else "alive")
        )
    reports = SANITIZER_REPORT.findall(log_path.read_text(encoding="utf-8", errors="replace"))
    outcomes.append(Outcome("no sanitizer report, no failed assert", not reports, reports[0] if reports else "none"))

    with progress.ticking():
        memory, operations = check_memory(programs, N_OPERATIONS, seed=1)
    progress.advance(1, "memory")
    outcomes.append(memory)

    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        listing = "\n".join(f"  {outcome.name}: {outcome.detail}" for outcome in failed)
        raise EngineError(f"{len(failed)} of {len(outcomes)} contract checks failed, see {log_path}:\n{listing}")
    write_json(
        output,
        {
            "verdict": "passed",
            "n_checks": len(outcomes),
            "n_requests": n_requests,
            "n_operations": sum(sum(counts.values()) for counts in operations.values()),
            "operations": operations,
            "build": read_json(build_manifest),
            "checks": [asdict(outcome) for outcome in outcomes],
        },
    )
    log.info("contract: all %d checks passed with %d requests", len(outcomes), n_requests)
