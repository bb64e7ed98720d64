from dataclasses import replace

import pytest
from conftest import good_timings
from fakeprefix.server.registered import expected_counts, mismatch

GOOD = good_timings(100, 20, n_kv=256)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cache_n": 99}, "cache_n: expected 100, got 99"),
        ({"cache_n": 0, "prompt_n": 120}, "prompt_n: expected 20, got 120"),
        ({"prefix_source": "cached"}, "prefix_source: expected fake, got cached"),
        ({"seq_pos_max_attn": 98}, "seq_pos_max_attn: expected 99, got 98"),
        ({"seq_pos_max_recr": -1}, "seq_pos_max_recr: expected 99, got -1"),
        ({"prompt_ms": 0.0}, "prompt_ms: 0.0"),
    ],
)
def test_a_repetition_counts_only_if_every_counter_is_exact(change, field):
    expected = expected_counts(100, 20, "fake", "hybrid")
    assert mismatch(expected, GOOD) is None
    assert field in mismatch(expected, replace(GOOD, **change))


@pytest.mark.parametrize(
    ("memory_type", "attention", "recurrent"), [("hybrid", 99, 99), ("attention", 99, -1), ("recurrent", -1, 99)]
)
def test_positions_are_expected_of_the_memories_that_exist(memory_type, attention, recurrent):
    expected = expected_counts(100, 20, "fake", memory_type)
    assert (expected.pos_max_attn, expected.pos_max_recr) == (attention, recurrent)


def test_a_whole_prompt_is_expected_to_be_computed_whole():
    expected = expected_counts(100, 20, "none", "hybrid")
    assert (expected.cache_n, expected.prompt_n, expected.pos_max_attn) == (0, 120, -1)
