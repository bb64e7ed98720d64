"""What arithmetic expects of a step: new tokens divided by a rate of the independent benchmark."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fakeprefix.errors import MeasureError
from fakeprefix.storage import read_json


@dataclass
class Rates:
    """Samples of the benchmark in seconds.

    Attributes:
        matched: seconds for a chunk of so many tokens at such a depth, ``{(depth, tokens): samples}``.
        naive: tokens per second at depth 0 with one batch of 512, samples of all calls.
        decode: seconds for decoding one token at such a depth, ``{depth: samples}``.
        chunks: the pieces in which a step's new tokens are computed, ``{(task_id, policy, step): sizes}``.
    """

    matched: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    naive: list[float] = field(default_factory=list)
    decode: dict[int, list[float]] = field(default_factory=dict)
    chunks: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)

    def step_samples(self, task_id: str, policy: str, step: int, prefix_tokens: int) -> list[float]:
        """Seconds for a step, one value a sample: the sum over the chunks in which it is computed.

        Empty if the benchmark was not run at all.

        The formula is ``sum(chunk / prefill_tps(depth = prefix, chunk))``; samples are combined in
        the order they were taken.
        """
        if not self.chunks:
            return []
        try:
            groups = [self.matched[prefix_tokens, chunk] for chunk in self.chunks[task_id, policy, step]]
        except KeyError as error:
            raise MeasureError(
                f"task {task_id!r}, step {step}: the benchmark has no rate for {error.args[0]}"
            ) from None
        return [sum(samples) for samples in zip(*groups, strict=False)]


def read_rates(files: Iterable[Path]) -> Rates:
    """Rates of all buckets."""
    rates = Rates()
    for file in files:
        content = read_json(file)
        rates.chunks |= {(step["task_id"], step["policy"], step["step"]): step["chunks"] for step in content["steps"]}
        for call in content["calls"]:
            for result in call["results"]:
                samples = [nanoseconds / 1e9 for nanoseconds in result["samples_ns"]]
                if call["purpose"] == "decode":
                    per_token = [seconds / result["n_gen"] for seconds in samples]
                    rates.decode.setdefault(result["n_depth"], []).extend(per_token)
                elif call["purpose"] == "naive":
                    rates.naive += [result["n_prompt"] / seconds for seconds in samples]
                else:
                    rates.matched.setdefault((result["n_depth"], result["n_prompt"]), []).extend(samples)
    return rates
