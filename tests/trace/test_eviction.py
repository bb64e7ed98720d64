import pytest
from fakeprefix.errors import TraceError
from fakeprefix.planning.steps import PlanRules, plan_file, read_planned
from fakeprefix.trace.eviction import evicted_steps
from fakeprefix.trace.steps import Step, StepImage, write_steps

IMAGE, TEXT, PLACEHOLDER = 40, 60, 3


def history(n, first=100):
    prefix, steps = first, []
    for number in range(n):
        image = StepImage(f"{number}.png", 64, 64, IMAGE)
        new = IMAGE + TEXT
        steps.append(Step("t", number, prefix, new, IMAGE, (image,), visible=((0, prefix - 1),), exec_s=1.0))
        prefix += new
    return steps


def test_nothing_changes_until_the_first_image_is_dropped():
    kept = history(5)
    found = list(evicted_steps(kept, 3, PLACEHOLDER))
    assert [step.policy for step in found] == ["keep_last_3"] * 5
    for step, other in zip(found[1:3], kept[1:3], strict=True):
        assert (step.prefix_tokens, step.new_tokens, step.visible) == (
            other.prefix_tokens,
            other.new_tokens,
            other.visible,
        )
    # of the first prompt nothing was there before: its beginning is not shared with another
    assert found[0].prefix_tokens == 0


def test_the_dropped_image_is_a_hole_and_what_is_behind_it_stays():
    found = list(evicted_steps(history(6), 3, PLACEHOLDER))
    third = found[3]
    assert third.visible == ((0, 99), (100 + IMAGE, 100 + 3 * (IMAGE + TEXT) - 1))
    assert third.prefix_tokens == 100 + 3 * (IMAGE + TEXT) - IMAGE
    assert third.new_tokens == PLACEHOLDER + IMAGE + TEXT
    assert [image.file for image in third.behind_hole] == ["1.png", "2.png"]
    assert [image.file for image in third.images] == ["3.png"]
    assert third.exec_s == 1.0
    # one step later the next image goes, behind the first one's placeholder
    assert found[4].visible[0] == (0, 100 + PLACEHOLDER + TEXT - 1)


def test_recomputing_prefills_everything_behind_the_hole_with_its_images(tmp_path):
    write_steps(tmp_path / "steps.parquet", evicted_steps(history(6), 3, PLACEHOLDER))
    rules = PlanRules("recompute", 100_000, 512, 10)
    plan_file(tmp_path / "steps.parquet", rules, tmp_path / "plan.parquet", tmp_path / "rejected.parquet")
    planned = [item.step for item in read_planned(tmp_path / "plan.parquet")]
    third = planned[3]
    assert third.prefix_tokens == 100
    assert third.total_tokens == 100 + PLACEHOLDER + TEXT + 3 * (IMAGE + TEXT)
    assert [image.file for image in third.images] == ["1.png", "2.png", "3.png"]
    assert third.image_tokens == 3 * IMAGE
    assert third.behind_hole == ()


def test_a_refused_hole_is_counted_with_its_position(tmp_path):
    write_steps(tmp_path / "steps.parquet", evicted_steps(history(6), 3, PLACEHOLDER))
    counts = plan_file(
        tmp_path / "steps.parquet",
        PlanRules("reject", 100_000, 512, 10),
        tmp_path / "plan.parquet",
        tmp_path / "rejected.parquet",
    )
    assert (counts.n_steps, counts.n_rejected) == (6, 3)


def test_a_history_that_does_not_only_grow_cannot_be_replayed():
    first, second, *_ = history(3)
    with pytest.raises(TraceError, match="200 tokens came before, the step says 150"):
        list(evicted_steps([first, Step("t", 1, 150, 50)], 3, PLACEHOLDER))
    assert second.prefix_tokens == 200
