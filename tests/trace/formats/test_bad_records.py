import json

import pyarrow.parquet as pq
import pytest
from fakeprefix.errors import RequestRefused, TraceError
from fakeprefix.trace.rendering import Renderer
from fakeprefix.trace.steps import write_steps
from made_traces import (
    GEOMETRY,
    MARKER,
    Letters,
    chat,
    imported,
    lengths,
    lines,
    opencua_trace,
    picture,
    renderer,
    write,
)

# records that cannot be used

GOOD = {"task_id": "t", "step": 0, "prefix_tokens": 300, "new_tokens": 20}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD, "appears twice"),
        (GOOD | {"step": 1, "prefix_tokens": -1}, "prefix_tokens = -1"),
        (GOOD | {"step": 1, "new_tokens": 0}, "new_tokens = 0"),
        (GOOD | {"step": 1, "colour": 1}, "unknown field 'colour'"),
        (GOOD | {"step": "one"}, "step = 'one', must be an integer"),
        ({"task_id": "t", "step": 1, "prefix_tokens": 3}, "new_tokens"),
        (GOOD | {"step": 1, "visible": [["a", "b"]]}, "a position = 'a'"),
        (GOOD | {"step": 1, "visible": [[0]]}, "must be a pair of positions"),
        (GOOD | {"step": 1, "visible": [[5, 2]]}, "ends before it begins"),
        (GOOD | {"step": 1, "task_id": 5}, "task_id = 5, must be text"),
        (GOOD | {"step": 1, "policy": 3}, "policy = 3, must be text"),
        (GOOD | {"step": 1, "decode_s": "x"}, "decode_s = 'x', must be seconds"),
        (GOOD | {"step": 1, "decode_s": -3}, "decode_s = -3, must be seconds"),
        (GOOD | {"step": 1, "images": [{"file": 3}]}, "must be an object with file"),
        (GOOD | {"step": 1, "images": [{"file": "a", "width": 1, "height": 1, "tokens": -4}]}, "tokens = -4"),
        (GOOD | {"step": 3_000_000_000}, "step must be between"),
        (GOOD | {"step": 1, "prefix_tokens": 10**30}, "tokens are too many"),
    ],
)
def test_a_bad_row_stops_the_import_or_is_skipped_and_counted(row, message, tmp_path):
    rows = [GOOD, row, GOOD | {"step": 2}]
    path = lines(tmp_path / "t.jsonl", rows)
    with pytest.raises(TraceError, match=message) as error:
        imported(path, tmp_path)
    assert "line 2" in str(error.value)
    steps, problems = imported(path, tmp_path, skip=True)
    assert ([step.step for step in steps], problems.n_skipped) == ([0, 2], 1)
    assert message in problems.reasons[0]


def test_a_skipped_record_is_counted_for_its_task(tmp_path):
    path = lines(tmp_path / "t.jsonl", [GOOD, GOOD | {"task_id": "u", "new_tokens": 0}, [1]])
    _, problems = imported(path, tmp_path, skip=True)
    assert problems.by_task == {"u": 1, None: 1}


def test_a_task_in_two_files_of_a_folder_is_refused(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        lines(folder / name, [GOOD])
    with pytest.raises(TraceError, match=r"task 't' is also in a\.jsonl"):
        imported(folder, tmp_path)


def test_a_message_that_the_template_refuses_is_skipped_with_task_and_step(tmp_path):
    class Strict(Letters):
        def apply_template(self, messages, tools):
            if any(message["role"] == "critic" for message in messages):
                raise RequestRefused(500, "Unexpected message role.")
            return super().apply_template(messages, tools)

    rows = [{"messages": [{"role": role, "content": "x"}]} for role in ("user", "critic", "user")]
    path = lines(tmp_path / "log.jsonl", rows)
    strict = Renderer(Strict(), MARKER, GEOMETRY, "[gone]")
    with pytest.raises(TraceError, match=r"task 'log', step 1: .*Unexpected message role"):
        imported(path, tmp_path, render=strict)
    steps, problems = imported(path, tmp_path, skip=True, render=strict)
    assert ([step.step for step in steps], problems.by_task) == ([0, 2], {"log": 1})


@pytest.mark.parametrize("change", [{"file": "b.png"}, {"width": 65}])
def test_an_image_of_our_own_steps_is_looked_at_when_it_is_imported(change, tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("zz")
    image = {"file": "a.png", "width": 64, "height": 64, "tokens": 4} | change
    path = lines(tmp_path / "t.jsonl", [GOOD | {"image_tokens": 4, "images": [image]}])
    with pytest.raises(TraceError, match=r"not a readable image|the step says 65x64"):
        imported(path, tmp_path)


@pytest.mark.parametrize("value", ["[" * 100_000, '{"a":' * 100_000])
def test_a_file_that_is_nested_without_end_is_one_clear_line(value, tmp_path):
    for name in ("t.json", "t.jsonl"):
        with pytest.raises(TraceError, match=r"nested too deeply|not JSON"):
            imported(write(tmp_path / name, value), tmp_path)


def test_a_line_separator_inside_of_a_text_does_not_end_the_line(tmp_path):
    row = json.dumps({"messages": chat("a\u2028b", "q")}, ensure_ascii=False)
    assert len(imported(write(tmp_path / "log.jsonl", row), tmp_path)[0]) == 1


@pytest.mark.parametrize(
    ("tools", "message"),
    [(5, "tools is int, must be a list"), ([{"name": "click"}, None], "tools has an entry that is not an object")],
)
def test_tools_that_are_no_list_of_objects_are_refused(tools, message, tmp_path):
    path = lines(tmp_path / "log.jsonl", [{"messages": chat("s", "q"), "tools": tools}])
    with pytest.raises(TraceError, match=message):
        imported(path, tmp_path)


def test_step_numbers_that_do_not_increase_are_refused(tmp_path):
    path = lines(tmp_path / "t.jsonl", [GOOD | {"step": 3}, GOOD | {"step": 1}])
    with pytest.raises(TraceError, match="comes after step 3"):
        imported(path, tmp_path)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "3.png").unlink(), "3.png is missing"),
        (lambda folder: (folder / "3.png").write_text("no image"), "is not a readable image"),
        (lambda folder: (folder / "3.png").write_bytes(picture()[:60]), "is not a readable image"),
    ],
)
def test_a_screenshot_that_is_missing_or_broken(break_it, message, tmp_path):
    path = write(tmp_path / "o.json", opencua_trace(tmp_path))
    break_it(tmp_path)
    with pytest.raises(TraceError, match=message) as error:
        imported(path, tmp_path)
    assert "steps[1]" in str(error.value)
    steps, problems = imported(path, tmp_path, skip=True)
    assert ([step.step for step in steps], problems.n_skipped) == ([2, 5], 1)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "a\0b"])
def test_nothing_outside_of_the_traces_folder_is_read(name, tmp_path):
    folder = tmp_path / "trace"
    folder.mkdir()
    picture(tmp_path / "secret.png")
    trace = opencua_trace(folder)
    trace["steps"][1]["image"] = name
    with pytest.raises(TraceError, match="outside of the trace's folder"):
        imported(write(folder / "o.json", trace), tmp_path)


def test_images_are_never_fetched(tmp_path):
    content = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    path = lines(tmp_path / "t.jsonl", [{"messages": [{"role": "user", "content": content}]}])
    with pytest.raises(TraceError, match="is not fetched"):
        imported(path, tmp_path)


def test_images_for_a_model_without_a_projector(tmp_path):
    path = write(tmp_path / "o.json", opencua_trace(tmp_path))
    with pytest.raises(TraceError, match=r"model\.mmproj is not given"):
        imported(path, tmp_path, render=renderer(None))


def test_a_trace_of_one_step_is_a_trace(tmp_path):
    steps, _ = imported(lines(tmp_path / "t.jsonl", [GOOD]), tmp_path)
    assert lengths(steps) == [(300, 20)]


def test_a_trace_in_which_nothing_can_be_used_is_an_error_with_the_reason(tmp_path):
    path = lines(tmp_path / "t.jsonl", [GOOD | {"new_tokens": 0}])
    with pytest.raises(TraceError, match=r"1 records were skipped: .*new_tokens = 0"):
        imported(path, tmp_path, skip=True)


def test_ten_thousand_steps_in_one_task(tmp_path):
    rows = [GOOD | {"step": number, "prefix_tokens": 300 + 20 * number} for number in range(10_000)]
    steps, _ = imported(lines(tmp_path / "t.jsonl", rows), tmp_path)
    assert len(steps) == 10_000
    assert write_steps(tmp_path / "steps.parquet", iter(steps)) == 10_000
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == 10_000
