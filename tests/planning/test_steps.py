import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakeprefix.errors import TraceError
from fakeprefix.planning import steps as planning
from fakeprefix.planning.steps import (
    MEASURED,
    SAMPLED_OUT,
    STATUSES,
    UNMEASURABLE,
    PlanRules,
    assign,
    context_tokens,
    measured_buckets,
    plan_file,
    read_planned,
    spread,
)
from fakeprefix.trace.steps import STEP_SCHEMA, Step, write_steps
from hypothesis import given
from hypothesis import strategies as st


def step(prefix, new=64, number=0, **more):
    return Step("t", number, prefix, new, visible=((0, prefix - 1),) if prefix else (), **more)


def planned(folder, steps, on_hole="reject", n_ctx_max=100_000, width=512, most=2):
    """The plan of these steps, and the refused ones as rows."""
    write_steps(folder / "steps.parquet", steps)
    rules = PlanRules(on_hole, n_ctx_max, width, most)
    counts = plan_file(folder / "steps.parquet", rules, folder / "plan.parquet", folder / "rejected.parquet")
    rejected = pq.read_table(folder / "rejected.parquet").to_pylist()
    assert (counts.n_steps, counts.n_rejected) == (len(steps), len(rejected))
    return read_planned(folder / "plan.parquet"), rejected


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
    prefix, new = (np.array(values) for values in zip(*sizes, strict=True))
    total = prefix + new
    bucket, index = assign(prefix, total, PlanRules("reject", 10_000, 512, most))
    status = STATUSES[index]
    assert ((bucket - 1) * 512 < total).all()
    assert (total <= bucket * 512).all()
    assert ((status == UNMEASURABLE) == (total <= 256)).all()
    for number in np.unique(bucket):
        mine = bucket == number
        measurable = mine & (status != UNMEASURABLE)
        measured = mine & (status == MEASURED)
        assert measured.sum() == min(most, measurable.sum())
        if most > 1 and measured.any():
            assert prefix[measured].min() == prefix[measurable].min()
            assert prefix[measured].max() == prefix[measurable].max()


def test_steps_that_add_too_much_are_left_to_the_fit():
    prefix, total = np.array([300, 300, 300]), np.array([350, 400, 500])
    _, index = assign(prefix, total, PlanRules("reject", 10_000, 512, 5, max_new_tokens=100))
    assert STATUSES[index].tolist() == [MEASURED, MEASURED, SAMPLED_OUT]


def test_a_bucket_width_that_is_no_multiple_of_256_is_refused(tmp_path):
    with pytest.raises(TraceError, match="multiple of 256"):
        planned(tmp_path, [step(1000)], width=1000)


HOLED = Step("t", 3, 90, 10, visible=((0, 39), (50, 99)))


def test_a_hole_is_refused_with_position_reason_and_remedy(tmp_path):
    accepted, (refusal,) = planned(tmp_path, [step(100), HOLED])
    assert [item.step.step for item in accepted] == [0]
    assert (refusal["task_id"], refusal["step"], refusal["position"]) == ("t", 3, 40)
    assert "40 live tokens" in refusal["reason"]
    assert "recompute" in refusal["remedy"]


def test_recompute_keeps_what_is_before_the_hole_and_prefills_the_rest(tmp_path):
    (before, after), rejected = planned(tmp_path, [step(100), HOLED], on_hole="recompute")
    assert rejected == []
    assert before.step == step(100)
    assert (after.step.prefix_tokens, after.step.new_tokens) == (40, 60)
    assert after.step.visible == ((0, 39),)


def test_a_step_beyond_the_models_context_is_refused(tmp_path):
    accepted, rejected = planned(tmp_path, [step(1000, 24)], n_ctx_max=1024)
    assert accepted == []
    assert "context of 1024" in rejected[0]["reason"]


def test_the_plan_keeps_the_steps_their_order_and_can_be_read_in_parts(tmp_path):
    steps = [step(300, number=0), step(900, number=1), step(1000, number=2), step(10, number=3)]
    items, _ = planned(tmp_path, steps, most=1)
    assert [item.step for item in items] == steps
    assert {item.status for item in items} == {MEASURED, SAMPLED_OUT, UNMEASURABLE} - {SAMPLED_OUT}
    assert measured_buckets(tmp_path / "plan.parquet") == [1, 2, 3]
    (only,) = read_planned(tmp_path / "plan.parquet", MEASURED, 2)
    assert only.step == steps[1]


def test_batches_make_no_difference(tmp_path, monkeypatch):
    steps = [step(300 + 37 * (i * 7 % 50), number=i) for i in range(50)] + [HOLED]
    whole = planned(tmp_path, steps, on_hole="recompute")
    monkeypatch.setattr(planning, "BATCH_STEPS", 7)
    assert planned(tmp_path, steps, on_hole="recompute") == whole


def test_an_image_column_of_nulls_and_no_visible_ranges_are_fine(tmp_path):
    row = step(1000).as_row() | {"images": None, "visible": None}
    pq.write_table(pa.Table.from_pylist([row], schema=STEP_SCHEMA), tmp_path / "steps.parquet")
    rules = PlanRules("reject", 10_000, 512, 1)
    counts = plan_file(tmp_path / "steps.parquet", rules, tmp_path / "plan.parquet", tmp_path / "rejected.parquet")
    assert (counts.n_measured, counts.n_with_images) == (1, 0)


def test_the_context_holds_the_longest_measured_step_and_what_is_decoded(tmp_path):
    items, _ = planned(tmp_path, [step(1000)])
    n_ctx = context_tokens(items, 100)
    assert n_ctx % 256 == 0
    assert n_ctx > 1064 + 100
    assert context_tokens(items, 100, 5000) > 5100
