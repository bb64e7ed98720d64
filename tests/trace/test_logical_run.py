"""Holes, groups and tail of one run, against a set of positions."""

from fakeprefix.trace.logical_run import GROUP, Run, Token, first_hole, hole_of
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8))
def test_the_first_hole_equals_that_of_a_set_of_positions(spans):
    ranges = [(first, first + length) for first, length in spans]
    live = {position for first, last in ranges for position in range(first, last + 1)}
    missing = sorted(set(range(min(live), max(live))) - live) if live else []
    found = first_hole(ranges)
    assert (found.position if found else None) == (missing[0] if missing else None)
    if found:
        assert found.n_orphaned == sum(position < found.position for position in live)


@given(st.integers(0, 1000), st.integers(0, 50))
def test_groups_and_tail_partition_every_run(first, n):
    run = Run(tuple(Token(first + i, first + i + 1, i) for i in range(n)))
    parts = [token for group in run.groups() for token in group] + list(run.tail())
    assert tuple(parts) == run.tokens
    assert all(len(group) == GROUP for group in run.groups())
    assert len(run.tail()) < GROUP
    assert hole_of(run.tokens) is None
