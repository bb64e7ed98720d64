"""The cost of a prefill as a function of new tokens and depth, fitted to the measured rows."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fakeprefix.analysis.statistics import Bootstrap

# steps whose cost is predicted at once, which bounds the memory for their resamples
CHUNK = 10_000


def design(prefix: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Columns of the cost model ``a + b new + c new (prefix + new / 2)``, shape ``(n, 3)``.

    A constant, the weights' work a token, and the attention's work: the i-th new token reads
    ``prefix + i`` cells.
    """
    return np.stack([np.ones_like(new), new, new * (prefix + new / 2)], axis=1)


@dataclass(frozen=True)
class CostModel:
    """A fitted cost in ms, image encoding excluded.

    Attributes:
        coefficients: ``(a, b, c)``, none of them negative.
        resampled: the coefficients of bootstrap resamples, shape ``(resamples, 3)``.
        prefix_range, new_range: what was measured; elsewhere the model extrapolates.
        relative_residuals: (measured - fitted) / measured of the rows it was fitted to.
        confidence: of the intervals.
        prefix: prefix lengths of the rows it was fitted to.
    """

    coefficients: np.ndarray
    resampled: np.ndarray
    prefix_range: tuple[int, int]
    new_range: tuple[int, int]
    relative_residuals: np.ndarray
    confidence: float
    prefix: np.ndarray

    def predict_many(self, prefix: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cost in ms and the bounds of its interval, each of shape ``(n,)``."""
        columns = design(np.asarray(prefix, dtype=float), np.asarray(new, dtype=float))
        tail = 100 * (1 - self.confidence) / 2
        bounds = np.empty((2, len(columns)))
        for start in range(0, len(columns), CHUNK):
            part = columns[start : start + CHUNK]
            bounds[:, start : start + CHUNK] = np.percentile(part @ self.resampled.T, [tail, 100 - tail], axis=1)
        return columns @ self.coefficients, bounds[0], bounds[1]

    def extrapolates(self, prefix: np.ndarray, new: np.ndarray) -> np.ndarray:
        """True outside of the measured range, shape ``(n,)``."""
        inside = (self.prefix_range[0] <= prefix) & (prefix <= self.prefix_range[1])
        return np.logical_not(inside & (self.new_range[0] <= new) & (new <= self.new_range[1]))


def fit_cost(prefix: np.ndarray, new: np.ndarray, cost_ms: np.ndarray, bootstrap: Bootstrap) -> CostModel | None:
    """Fit by non-negative least squares on relative errors; None with fewer than three distinct steps."""
    prefix, new, cost_ms = (np.asarray(values, dtype=float) for values in (prefix, new, cost_ms))
    if len(set(zip(prefix, new, strict=True))) < 3:
        return None
    matrix = design(prefix, new) / cost_ms[:, None]
    target = np.ones_like(cost_ms)
    coefficients = nnls(matrix, target)[0]
    rng = np.random.default_rng(bootstrap.seed)
    resamples = min(bootstrap.resamples, 500)
    draws = rng.integers(0, len(target), (resamples, len(target)))
    resampled = np.stack([nnls(matrix[draw], target[draw])[0] for draw in draws])
    residuals = 1 - matrix @ coefficients
    return CostModel(
        coefficients,
        resampled,
        (int(prefix.min()), int(prefix.max())),
        (int(new.min()), int(new.max())),
        residuals,
        bootstrap.confidence,
        prefix,
    )
