"""The cost of a prefill as a function of new tokens and depth, fitted to the measured rows."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fakeprefix.analysis.statistics import Bootstrap
from fakeprefix.engine_facts import SMALL_BATCH_TOKENS

# steps whose cost is predicted at once, which bounds the memory for their resamples
CHUNK = 10_000


def few_tokens(new: np.ndarray, images: np.ndarray, n_ubatch: int) -> np.ndarray:
    """How many of the new tokens are computed in physical batches of fewer than `SMALL_BATCH_TOKENS`, shape ``(n,)``.

    Text and images are batches of their own; of each the last one may be small.
    """
    last = np.stack([(new - images) % n_ubatch, images % n_ubatch])
    return np.where(last < SMALL_BATCH_TOKENS, last, 0).sum(axis=0)


def design(prefix: np.ndarray, new: np.ndarray, images: np.ndarray, n_ubatch: int) -> np.ndarray:
    """Columns of the cost model ``a + b new + (c many + d few) (prefix + new / 2)``, shape ``(n, 4)``.

    A constant, the weights' work a token, and the attention's work: the i-th new token reads
    ``prefix + i`` cells, in large batches (many) or in small ones (few).
    """
    prefix, new, images = (np.asarray(values, dtype=float) for values in (prefix, new, images))
    few, depth = few_tokens(new, images, n_ubatch), prefix + new / 2
    return np.stack([np.ones_like(new), new, (new - few) * depth, few * depth], axis=1)


@dataclass(frozen=True)
class CostModel:
    """A fitted cost in ms, image encoding excluded.

    Attributes:
        coefficients: ``(a, b, c, d)``, none of them negative.
        resampled: the coefficients of bootstrap resamples, shape ``(resamples, 4)``.
        prefix_range, new_range: what was measured; elsewhere the model extrapolates.
        relative_residuals: (measured - fitted) / measured of the rows it was fitted to.
        confidence: of the intervals.
        prefix: prefix lengths of the rows it was fitted to.
        n_ubatch: physical batch in tokens.
        knows_few: some of the rows had tokens in small batches.
    """

    coefficients: np.ndarray
    resampled: np.ndarray
    prefix_range: tuple[int, int]
    new_range: tuple[int, int]
    relative_residuals: np.ndarray
    confidence: float
    prefix: np.ndarray
    n_ubatch: int
    knows_few: bool

    def predict_many(
        self, prefix: np.ndarray, new: np.ndarray, images: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cost in ms and the bounds of its interval, each of shape ``(n,)``."""
        columns = design(prefix, new, images, self.n_ubatch)
        tail = 100 * (1 - self.confidence) / 2
        bounds = np.empty((2, len(columns)))
        for start in range(0, len(columns), CHUNK):
            part = columns[start : start + CHUNK]
            bounds[:, start : start + CHUNK] = np.percentile(part @ self.resampled.T, [tail, 100 - tail], axis=1)
        return columns @ self.coefficients, bounds[0], bounds[1]

    def extrapolates(self, prefix: np.ndarray, new: np.ndarray, images: np.ndarray) -> np.ndarray:
        """True outside of the measured range, and for small batches if none was measured, shape ``(n,)``."""
        few = few_tokens(new, images, self.n_ubatch) > 0
        inside = (
            np.logical_or(self.knows_few, ~few) & (self.prefix_range[0] <= prefix) & (prefix <= self.prefix_range[1])
        )
        return np.logical_not(inside & (self.new_range[0] <= new) & (new <= self.new_range[1]))


def fit_cost(
    prefix: np.ndarray,
    new: np.ndarray,
    images: np.ndarray,
    cost_ms: np.ndarray,
    n_ubatch: int,
    bootstrap: Bootstrap,
) -> CostModel | None:
    """Fit by non-negative least squares on relative errors; None with fewer than three distinct steps."""
    prefix, new, images, cost_ms = (np.asarray(values, dtype=float) for values in (prefix, new, images, cost_ms))
    if len(set(zip(prefix, new, strict=True))) < 3:
        return None
    matrix = design(prefix, new, images, n_ubatch) / cost_ms[:, None]
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
        n_ubatch,
        bool(few_tokens(new, images, n_ubatch).any()),
    )
