"""The cost of a prefill as a function of new tokens and depth, fitted to the measured rows."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fakeprefix.analysis.statistics import Bootstrap


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
    """

    coefficients: np.ndarray
    resampled: np.ndarray
    prefix_range: tuple[int, int]
    new_range: tuple[int, int]
    relative_residuals: np.ndarray
    confidence: float

    def predict(self, prefix: int, new: int) -> tuple[float, float, float]:
        """Cost in ms and its interval."""
        columns = design(np.array([float(prefix)]), np.array([float(new)]))[0]
        tail = 100 * (1 - self.confidence) / 2
        low, high = np.percentile(self.resampled @ columns, [tail, 100 - tail])
        return float(self.coefficients @ columns), float(low), float(high)

    def extrapolates(self, prefix: int, new: int) -> bool:
        """True outside of the measured range."""
        return not (
            self.prefix_range[0] <= prefix <= self.prefix_range[1] and self.new_range[0] <= new <= self.new_range[1]
        )


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
    )
