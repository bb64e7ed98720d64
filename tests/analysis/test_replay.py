import numpy as np
import pandas as pd
import pytest
from fakeprefix.analysis.fit import fit_cost
from fakeprefix.analysis.replay import whole_prompt_ms
from fakeprefix.analysis.statistics import Bootstrap


def cost(prefix, new):
    return 5.0 + 0.8 * new + 1e-4 * new * (prefix + new / 2)


@pytest.fixture
def model():
    prefix, new = (values.ravel() for values in np.meshgrid([500.0, 2000.0, 8000.0], [128.0, 512.0, 1024.0]))
    return fit_cost(prefix, new, np.zeros_like(new), cost(prefix, new), 512, Bootstrap(0.95, 200, 1))


def whole_prompts(*lengths):
    times = [cost(0, length) for length in lengths]
    rows = {
        "prefix_tokens": [length - 100 for length in lengths],
        "new_tokens": 100,
        "prompt_ms": times,
        "status": "ok",
    }
    return pd.DataFrame(rows)


def test_between_measured_whole_prompts_it_is_interpolated(model):
    total = np.array([1000.0, 1500.0, 2000.0])
    value, source = whole_prompt_ms(total, whole_prompts(1000, 2000), model, np.zeros(3))
    assert value.tolist() == pytest.approx([cost(0, 1000), (cost(0, 1000) + cost(0, 2000)) / 2, cost(0, 2000)])
    assert source.tolist() == ["interpolated"] * 3


def test_beyond_the_longest_one_it_grows_as_the_fit_does_and_not_as_a_line(model):
    total = np.array([1000.0, 4000.0, 100_000.0])
    value, source = whole_prompt_ms(total, whole_prompts(1000, 2000), model, np.zeros(3))
    assert value.tolist() == pytest.approx([cost(0, length) for length in total], rel=1e-3)
    assert value[2] > 2 * 50 * cost(0, 2000)
    assert source.tolist() == ["interpolated", "extrapolated", "extrapolated"]


def test_without_a_fit_nothing_is_said_beyond_the_longest_one():
    value, source = whole_prompt_ms(np.array([1000.0, 4000.0]), whole_prompts(1000, 2000), None, np.zeros(2))
    assert value[0] == pytest.approx(cost(0, 1000))
    assert np.isnan(value[1])
    assert source.tolist() == ["interpolated", "missing"]


def test_without_a_measured_one_it_is_the_fit_with_the_encoding_of_new_images(model):
    value, source = whole_prompt_ms(np.array([3000.0]), whole_prompts(), model, np.array([7.0]))
    assert value.tolist() == pytest.approx([cost(0, 3000) + 7.0], rel=1e-3)
    assert source.tolist() == ["extrapolated"]
    value, source = whole_prompt_ms(np.array([3000.0]), whole_prompts(), None, np.array([7.0]))
    assert np.isnan(value).all()
    assert source.tolist() == ["missing"]
