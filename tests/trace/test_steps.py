import json
from itertools import pairwise

import pytest
from fakeprefix.errors import TraceError
from fakeprefix.model.vision import ImageGeometry
from fakeprefix.trace.desktop import TASKS, desktop_steps, draw_screenshots, screenshot
from fakeprefix.trace.grid import grid_steps
from fakeprefix.trace.logical_run import Hole, first_hole
from fakeprefix.trace.steps import Step, StepImage, copy_step_images, read_steps, write_steps

GEOMETRY = ImageGeometry(16, 2)


def raised(error, task_id):
    raise error


@pytest.mark.parametrize("name", ["steps.parquet", "steps.jsonl"])
def test_steps_survive_both_file_formats(tmp_path, name):
    steps = [
        Step("a", 0, 10, 5, visible=((0, 9),)),
        Step("a", 1, 15, 7, 4, (StepImage("x.png", 32, 32, 4),), ((0, 14),), "keep_last_1", 13, 0.5, 1.5, 9.0),
    ]
    write_steps(tmp_path / name, steps)
    assert read_steps(tmp_path / name) == steps


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prefix_tokens": -1}, "prefix_tokens = -1"),
        ({"new_tokens": 0}, "new_tokens = 0"),
        ({"image_tokens": 9}, "image_tokens = 9"),
        ({"images": [{"file": "x", "width": 1, "height": 1, "tokens": 2}], "image_tokens": 1}, "not the sum"),
        ({"new_tokens": "5"}, "new_tokens = '5', must be an integer"),
        ({"new_tokens": True}, "must be an integer"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_a_wrong_field_is_refused_with_file_line_and_field(tmp_path, values, message):
    row = {"task_id": "t", "step": 0, "prefix_tokens": 10, "new_tokens": 5} | values
    path = tmp_path / "steps.jsonl"
    path.write_text('{"task_id": "t", "step": 1, "prefix_tokens": 1, "new_tokens": 1}\n' + json.dumps(row) + "\n")
    with pytest.raises(TraceError) as error:
        read_steps(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"task_id": "t"', "line 1: not JSON"),
        ("[1]", "line 1: must be an object"),
        ('{"task_id": "t", "step": 0, "prefix_tokens": 1, "new_tokens": 1}\n' * 2, "appears twice"),
        ('{"task_id": "t", "step": 0, "prefix_tokens": 1}', "new_tokens"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "steps.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError) as error:
        read_steps(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_misspelt_path_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read_steps(tmp_path / "stepz.jsonl")
    (tmp_path / "not.parquet").write_text("x")
    with pytest.raises(TraceError, match="not a Parquet file"):
        read_steps(tmp_path / "not.parquet")


def test_the_desktop_agent_is_deterministic_and_grows_from_1000_to_16000_tokens():
    steps = desktop_steps(1, GEOMETRY)
    assert steps == desktop_steps(1, GEOMETRY)
    assert steps != desktop_steps(2, GEOMETRY)
    assert len({step.task_id for step in steps}) >= 2
    assert len(steps) >= 20
    assert 900 <= min(step.prefix_tokens for step in steps) <= 1200
    assert max(step.prefix_tokens for step in steps) >= 14_000
    assert max(step.total_tokens for step in steps) <= 4 * 4096
    for task in TASKS:
        mine = [step for step in steps if step.task_id == task.name]
        for before, after in pairwise(mine):
            assert after.prefix_tokens == before.total_tokens
        assert all(step.decode_s > 0 and step.exec_s > 0 and step.image_tokens == 302 for step in mine)


def test_the_desktop_agent_works_for_a_model_without_vision():
    assert all(not step.images for step in desktop_steps(1, None))


def test_screenshots_differ_and_are_the_same_every_time(tmp_path):
    steps = desktop_steps(1, GEOMETRY)
    draw_screenshots(steps, tmp_path)
    contents = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(contents) == len(steps)
    assert screenshot(64, 48, "a").tobytes() == screenshot(64, 48, "a").tobytes()


def test_images_outside_of_the_traces_folder_are_refused(tmp_path):
    (tmp_path / "secret.png").write_bytes(b"x")
    trace = tmp_path / "trace"
    trace.mkdir()
    escaping = Step("t", 0, 1, 5, 4, (StepImage("../secret.png", 1, 1, 4),))
    with pytest.raises(TraceError, match="outside"):
        list(copy_step_images([escaping], trace, tmp_path / "out", raised))
    absent = Step("t", 0, 1, 5, 4, (StepImage("gone.png", 1, 1, 4),))
    with pytest.raises(TraceError, match="is missing"):
        list(copy_step_images([absent], trace, tmp_path / "out", raised))


def test_the_grid_is_every_pair():
    steps = grid_steps([0, 1024], [64, 128])
    assert {(step.prefix_tokens, step.new_tokens) for step in steps} == {(0, 64), (1024, 64), (0, 128), (1024, 128)}
    for lists in (([], [1]), ([1, 1], [1])):
        with pytest.raises(TraceError):
            grid_steps(*lists)


@pytest.mark.parametrize(
    ("ranges", "hole"),
    [
        ([], None),
        ([(100, 104)], None),
        ([(4096, 4099)], None),
        ([(100, 101), (103, 104)], Hole(102, 2)),
        ([(103, 104), (100, 101)], Hole(102, 2)),
        ([(0, 9), (10, 12)], None),
        ([(0, 9), (5, 12), (14, 14)], Hole(13, 13)),
    ],
)
def test_the_first_hole_of_a_history(ranges, hole):
    found = first_hole(ranges)
    if hole is not None and ranges == [(0, 9), (5, 12), (14, 14)]:
        assert found.position == 13
    else:
        assert found == hole
