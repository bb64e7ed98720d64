"""Medians and bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A value with its interval.

    Attributes:
        value: the estimate, in the unit of the samples.
        low, high: bounds of the interval; equal to the value where there is only one sample.
        n: samples behind it (the smaller group's for a ratio).
    """

    value: float
    low: float
    high: float
    n: int

    def columns(self, name: str) -> dict[str, float]:
        """Value and bounds as ``name``, ``name_low`` and ``name_high``."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made.

    Attributes:
        confidence: for example 0.95.
        resamples: number of resamples.
        seed: the same seed gives the same intervals.
    """

    confidence: float
    resamples: int
    seed: int

    def interval(self, groups: Sequence[Sequence[float]], statistic: Callable[..., np.ndarray]) -> tuple[float, float]:
        """Percentile interval of a statistic of independently resampled groups.

        Args:
            groups: samples of each group.
            statistic: takes one array a group, ``(resamples, n_group)``, and returns ``(resamples,)``.

        The percentile bootstrap of Efron and Tibshirani, An Introduction to the Bootstrap (1993), ch. 13.
        With fewer than about ten samples it is too narrow; n is shown beside every interval for that.
        """
        rng = np.random.default_rng(self.seed)
        arrays = [np.asarray(group, dtype=float) for group in groups]
        drawn = [array[rng.integers(0, len(array), (self.resamples, len(array)))] for array in arrays]
        tail = 100 * (1 - self.confidence) / 2
        low, high = np.percentile(statistic(*drawn), [tail, 100 - tail])
        return float(low), float(high)

    def median(self, samples: Sequence[float]) -> Estimate:
        """Median of one group."""
        low, high = self.interval([samples], lambda drawn: np.median(drawn, axis=1))
        return Estimate(float(np.median(samples)), low, high, len(samples))

    def ratio(self, above: Sequence[float], below: Sequence[float]) -> Estimate:
        """Ratio of the medians of two independent groups."""
        low, high = self.interval([above, below], lambda one, other: np.median(one, axis=1) / np.median(other, axis=1))
        return Estimate(float(np.median(above) / np.median(below)), low, high, min(len(above), len(below)))

    def ratio_of_sums(self, above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Estimate:
        """Ratio of two sums of medians, each over independently resampled groups."""
        k = len(above)

        def statistic(*drawn: np.ndarray) -> np.ndarray:
            medians = [np.median(group, axis=1) for group in drawn]
            return sum(medians[:k]) / sum(medians[k:])

        low, high = self.interval([*above, *below], statistic)
        value = sum(np.median(group) for group in above) / sum(np.median(group) for group in below)
        return Estimate(float(value), low, high, min(len(group) for group in [*above, *below]))

    def sum_of_medians(self, groups: Sequence[Sequence[float]]) -> Estimate:
        """Sum of the medians of independent groups."""
        low, high = self.interval(groups, lambda *drawn: sum(np.median(group, axis=1) for group in drawn))
        value = sum(np.median(group) for group in groups)
        return Estimate(float(value), low, high, min(len(group) for group in groups))
