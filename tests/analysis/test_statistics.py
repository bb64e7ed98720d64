import numpy as np
import pytest
from fakeprefix.analysis.fit import few_tokens, fit_cost
from fakeprefix.analysis.statistics import Bootstrap

BOOTSTRAP = Bootstrap(0.95, 1000, 1)


def test_the_interval_of_a_median_contains_it_and_is_the_same_every_time():
    samples = np.random.default_rng(0).normal(10, 1, 40)
    estimate = BOOTSTRAP.median(samples)
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate == BOOTSTRAP.median(samples)
    assert estimate.n == 40


def test_one_sample_has_an_interval_of_no_width():
    estimate = BOOTSTRAP.median([3.0])
    assert (estimate.low, estimate.value, estimate.high) == (3.0, 3.0, 3.0)


def test_about_95_of_100_intervals_contain_the_true_ratio():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(100):
        estimate = BOOTSTRAP.ratio(rng.normal(20, 2, 30), rng.normal(10, 1, 30))
        hits += estimate.low <= 2.0 <= estimate.high
    assert hits >= 88


def test_a_ratio_of_sums_weighs_steps_by_their_cost():
    estimate = BOOTSTRAP.ratio_of_sums([[100.0, 100.0], [1.0, 1.0]], [[50.0, 50.0], [1.0, 1.0]])
    assert estimate.value == pytest.approx(101 / 51)


def test_the_fit_recovers_a_known_cost_and_knows_where_it_was_measured():
    rng = np.random.default_rng(2)
    prefix, new = (values.ravel() for values in np.meshgrid([1000, 4000, 16000], [100, 400, 800]))
    true = 5 + 0.8 * new + 1e-4 * new * (prefix + new / 2)
    none = np.zeros_like(new)
    model = fit_cost(prefix, new, none, true * rng.normal(1, 0.01, len(true)), 512, BOOTSTRAP)
    value, low, high = (part[0] for part in model.predict_many(np.array([8000]), np.array([300]), np.array([0])))
    expected = 5 + 0.8 * 300 + 1e-4 * 300 * 8150
    assert value == pytest.approx(expected, rel=0.03)
    assert low <= value <= high
    assert not model.extrapolates(*map(np.array, (8000, 300, 0)))
    assert model.extrapolates(*map(np.array, (20_000, 300, 0)))
    assert model.extrapolates(*map(np.array, (8000, 1000, 0)))
    assert (model.coefficients >= 0).all()


def test_two_steps_are_not_enough_for_a_fit():
    assert fit_cost([1000, 1000, 2000], [10, 10, 10], [0, 0, 0], [1.0, 1.1, 2.0], 512, BOOTSTRAP) is None


def test_tokens_in_small_batches_have_a_cost_of_their_own():
    rng = np.random.default_rng(5)
    prefix = np.repeat([4000.0, 30_000.0, 80_000.0], 5)
    new = np.tile([46.0, 128.0, 400.0, 540.0, 1100.0], 3)
    few = few_tokens(new, np.zeros_like(new), 512)
    assert few[:5].tolist() == [46, 0, 0, 28, 0]
    cost = 20 + 0.6 * new + (7e-5 * (new - few) + 6e-4 * few) * (prefix + new / 2)
    model = fit_cost(prefix, new, 0 * new, cost * rng.normal(1, 0.005, len(cost)), 512, BOOTSTRAP)
    assert model.coefficients[3] == pytest.approx(6e-4, rel=0.05)
    assert np.abs(model.relative_residuals).max() < 0.05
    without = new >= 64
    without &= few == 0
    blind = fit_cost(prefix[without], new[without], 0 * new[without], cost[without], 512, BOOTSTRAP)
    assert blind.extrapolates(np.array([30_000]), np.array([540]), np.array([0])).all()
    # an image is a batch of its own
    assert few_tokens(np.array([340.0]), np.array([300.0]), 512).tolist() == [40]
