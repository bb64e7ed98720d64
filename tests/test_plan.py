import pytest
from fakeprefix.errors import TraceError
from fakeprefix.plan import (
    MEASURED,
    SAMPLED_OUT,
    UNMEASURABLE,
    check_histories,
    context_tokens,
    measured_buckets,
    plan_steps,
    read_plan,
    spread,
    write_plan,
)
from fakeprefix.trace.steps import Step
from hypothesis import given
from hypothesis import strategies as st


def step(prefix, new=64, number=0, **more):
    return Step("t", number, prefix, new, visible=((0, prefix - 1),) if prefix else (), **more)


@given(st.integers(0, 200), st.integers(1, 20))
def test_spread_takes_at_most_k_distinct_indices_with_both_ends(n, k):
    chosen = spread(n, k)
    assert len(chosen) == len(set(chosen)) == min(n, k)
    assert all(0 <= i < n for i in chosen)
    if k > 1 and n > 1:
        assert chosen[0] == 0
        assert chosen[-1] == n - 1


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 900)), min_size=1, max_size=40), st.integers(1, 4))
def test_every_step_has_one_bucket_and_short_ones_are_never_measured(sizes, most):
    steps = [Step("t", i, prefix, new) for i, (prefix, new) in enumerate(sizes)]
    planned = plan_steps(steps, 512, most)
    assert {item.step.step for item in planned} == set(range(len(steps)))
    for item in planned:
        assert (item.bucket - 1) * 512 < item.step.total_tokens <= item.bucket * 512
        assert (item.status == UNMEASURABLE) == (item.step.total_tokens <= 256)
    for bucket in {item.bucket for item in planned}:
        measured = [item for item in planned if item.bucket == bucket and item.status == MEASURED]
        measurable = [item for item in planned if item.bucket == bucket and item.status != UNMEASURABLE]
        assert len(measured) == min(most, len(measurable))


def test_a_bucket_width_that_is_no_multiple_of_256_is_refused():
    with pytest.raises(TraceError, match="multiple of 256"):
        plan_steps([step(1000)], 1000, 1)


def test_a_hole_is_refused_with_position_reason_and_remedy():
    holed = Step("t", 3, 90, 10, visible=((0, 39), (50, 99)))
    accepted, rejected = check_histories([step(100), holed], "reject", 10_000)
    assert [item.step for item in accepted] == [0]
    (refusal,) = rejected
    assert refusal.position == 40
    assert "40 live tokens" in refusal.reason
    assert "recompute" in refusal.remedy


def test_recompute_keeps_what_is_before_the_hole_and_prefills_the_rest():
    holed = Step("t", 3, 90, 10, visible=((0, 39), (50, 99)))
    (accepted,), rejected = check_histories([holed], "recompute", 10_000)
    assert rejected == []
    assert (accepted.prefix_tokens, accepted.new_tokens) == (40, 60)
    assert accepted.visible == ((0, 39),)


def test_a_step_beyond_the_models_context_is_refused():
    accepted, rejected = check_histories([step(1000, 24)], "reject", 1024)
    assert accepted == []
    assert "context of 1024" in rejected[0].reason


def test_a_plan_survives_its_file(tmp_path):
    planned = plan_steps([step(300, number=0), step(900, number=1), step(1000, number=2), step(10, number=3)], 512, 1)
    write_plan(tmp_path / "plan.parquet", planned)
    assert read_plan(tmp_path / "plan.parquet") == planned
    assert measured_buckets(tmp_path / "plan.parquet") == [1, 2, 3]
    assert {item.status for item in planned} <= {MEASURED, SAMPLED_OUT, UNMEASURABLE}


def test_the_context_holds_the_longest_measured_step_and_what_is_decoded():
    planned = plan_steps([step(1000)], 512, 1)
    n_ctx = context_tokens(planned, 100)
    assert n_ctx % 256 == 0
    assert n_ctx > 1064 + 100
