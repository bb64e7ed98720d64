"""What was measured of one step, and what arithmetic expects of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fakeprefix.analysis.benchmark_rates import Rates

BASELINE, FABRICATED = "baseline", "fake_prefix"
# the arms that have the prefix already; the first one that was measured is compared with the estimate
PREFIXED = (FABRICATED, "state_restore", "cached_prefix")
ARMS = (BASELINE, *PREFIXED)


def key_of(step: Any) -> tuple[str, str, int]:
    """What names a step in the plan, the rows and the benchmark."""
    return step.task_id, step.policy, step.step


@dataclass(frozen=True)
class StepSamples:
    """Samples of one measured step, in ms; only rows that registered.

    Attributes:
        arm: the one that is compared with the estimate.
        prompt: prefill, by arm.
        encode, install: image encoding and install of `arm`.
        restore, restore_bytes: reading a kept state, a cost of the cache and no prefill.
        estimate, naive: what arithmetic expects.
        decode: one decoded token over the prefix and the new tokens, by arm; empty if nothing was decoded.
        decode_estimate: the same by the benchmark.
        history: what the baseline's prefixes were made of.
    """

    arm: str
    prompt: dict[str, np.ndarray]
    encode: np.ndarray
    install: np.ndarray
    restore: np.ndarray
    restore_bytes: int | None
    estimate: np.ndarray
    naive: np.ndarray
    decode: dict[str, np.ndarray]
    decode_estimate: np.ndarray
    n_rows: int
    n_registered: int
    history: str | None

    @property
    def measured(self) -> np.ndarray:
        return self.prompt[self.arm]

    @property
    def whole(self) -> np.ndarray:
        return self.prompt[BASELINE]

    @property
    def decoded(self) -> np.ndarray:
        return self.decode[self.arm]

    @property
    def decoded_whole(self) -> np.ndarray:
        return self.decode[BASELINE]

    @property
    def computed(self) -> np.ndarray:
        """Prefill without image encoding, which is a term of its own on both sides."""
        return self.measured - self.encode


def step_samples(rows: pd.DataFrame, step: Any, rates: Rates, arm: str, up_to: float) -> StepSamples:
    """The samples of one step.

    Args:
        rows: measurements of all steps.
        step: a row of the plan.
        arm: the one that is compared with the estimate.
        up_to: longest prefix that was really computed, in tokens.

    Raises:
        MeasureError: the benchmark ran and has no rate for this step.
    """
    # over longer prefixes the benchmark does not run
    rates = rates if step.prefix_tokens <= up_to else Rates()
    mine = rows[(rows.task_id == step.task_id) & (rows.step == step.step) & (rows.policy == step.policy)]
    mine = mine[mine.arm.isin(ARMS)]
    counted = mine[mine.status == "ok"]
    by_arm = {name: counted[counted.arm == name] for name in ARMS}
    restored = by_arm["state_restore"]
    return StepSamples(
        arm=arm,
        prompt={name: part.prompt_ms.to_numpy() for name, part in by_arm.items()},
        encode=by_arm[arm].image_encode_ms.to_numpy(),
        install=by_arm[arm].install_ms.to_numpy(),
        restore=restored.install_ms.to_numpy(),
        restore_bytes=int(restored.install_bytes.max()) if len(restored) else None,
        estimate=1e3 * np.array(rates.step_samples(*key_of(step), step.prefix_tokens)),
        naive=np.array([1e3 * step.new_tokens / rate for rate in rates.naive]),
        decode={name: _decode_token_ms(part) for name, part in by_arm.items()},
        decode_estimate=1e3 * np.array(rates.decode.get(step.prefix_tokens + step.new_tokens, [])),
        n_rows=len(mine),
        n_registered=len(counted),
        history=next(iter(by_arm[BASELINE].history.dropna()), None),
    )


def _decode_token_ms(rows: pd.DataFrame) -> np.ndarray:
    decoded = rows[rows.decode_n > 0]
    return (decoded.decode_ms / decoded.decode_n).to_numpy()
