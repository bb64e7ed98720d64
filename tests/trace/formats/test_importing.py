import base64
import csv
import io
import itertools
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from fakeprefix.errors import RequestRefused, TraceError
from fakeprefix.model.vision import ImageGeometry
from fakeprefix.trace.importing import Eviction, Problems, detect, format_of, import_steps
from fakeprefix.trace.rendering import Renderer
from fakeprefix.trace.steps import Step, write_steps
from PIL import Image as Picture

SAMPLES = Path(os.environ.get("FAKEPREFIX_TRACES", ROOT.parent / "shared" / "traces"))
samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded traces are not here")
GEOMETRY = ImageGeometry(patch=16, merge=2)
MARKER = "<image>"


class Letters:
    """A tokenizer with one token a letter, and a template that is easy to read."""

    def apply_template(self, messages, tools):
        text = "".join(f"[tool {tool['name']}]" for tool in tools)
        for message in messages:
            calls = "".join(call["function"]["name"] for call in message.get("tool_calls", ()))
            text += f"<{message['role']}>{message['content']}{calls}</>"
        return f"{text}<assistant>"

    def tokenize(self, text, *, add_special=False):
        return ([1] if add_special else []) + [ord(letter) for letter in text]


def renderer(geometry=GEOMETRY):
    return Renderer(Letters(), MARKER, geometry, "[gone]")


def imported(path, folder, name="auto", skip=False, render=None, keep_last_images=0):
    problems = Problems(skip)
    name = format_of(path, name)
    eviction = Eviction(keep_last_images, "[gone]", 2)
    return list(import_steps(path, name, problems, folder / "images", render or renderer(), eviction)), problems


def picture(path=None, size=(64, 64), colour="white"):
    buffer = io.BytesIO()
    Picture.new("RGB", size, colour).save(buffer, format="PNG")
    if path:
        path.write_bytes(buffer.getvalue())
    return buffer.getvalue()


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def lines(path, rows):
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def lengths(steps):
    return [(step.prefix_tokens, step.new_tokens) for step in steps]


# block hashes


def kv_trace(*requests, block_size=4):
    rows = [{"in": tokens, "hash_ids": blocks, "api_time": 1.5} for tokens, blocks in requests]
    return {"id": "k", "block_size": block_size, "requests": rows}


def test_only_whole_blocks_count_and_a_request_may_rewind(tmp_path):
    trace = kv_trace((10, [1, 2]), (15, [1, 2, 3]), (9, [1, 2]), (14, [1, 9, 3]))
    steps, _ = imported(write(tmp_path / "t.json", trace), tmp_path)
    assert lengths(steps) == [(0, 10), (8, 7), (8, 1), (4, 10)]
    assert [step.recorded_wall_s for step in steps] == [1.5] * 4
    assert {len(step.visible) for step in steps} <= {0, 1}


def test_a_request_that_ends_with_a_known_block_still_computes_something(tmp_path):
    steps, _ = imported(write(tmp_path / "t.json", kv_trace((8, [1, 2]), (8, [1, 2]))), tmp_path)
    assert lengths(steps) == [(0, 8), (4, 4)]


def test_a_prefix_of_mooncake_may_come_from_any_earlier_request(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]},
        {"timestamp": 2, "input_length": 1600, "output_length": 1, "hash_ids": [1, 2, 4, 5]},
    ]
    steps, _ = imported(lines(tmp_path / "m.jsonl", rows), tmp_path)
    assert lengths(steps) == [(0, 1100), (0, 600), (1024, 576)]


def test_a_known_hash_behind_another_one_is_no_prefix(tmp_path):
    steps, _ = imported(write(tmp_path / "t.json", kv_trace((8, [1, 2]), (8, [5, 2]))), tmp_path)
    assert lengths(steps)[1] == (0, 8)


@samples
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trace_0504.json", [(0, 11133), (11072, 228), (10880, 426)]),
        ("trace_0187.json", [(0, 10261), (10240, 1203), (11392, 2734)]),
    ],
)
def test_values_worked_out_by_hand(name, expected, tmp_path):
    steps, _ = imported(SAMPLES / "kv-cache-tester" / name, tmp_path)
    assert lengths(steps) == expected


@samples
def test_the_large_sample_is_read_whole(tmp_path):
    steps, _ = imported(SAMPLES / "mooncake", tmp_path)
    assert len(steps) == 3993
    assert sum(step.total_tokens for step in steps) == 61194628
    assert all(step.prefix_tokens % 512 == 0 for step in steps)
    assert len({step.prefix_tokens for step in steps}) > 50


@samples
def test_counts_without_sessions_are_refused_with_the_reason():
    with pytest.raises(TraceError, match="without sessions"):
        detect(SAMPLES / "azure" / "AzureLLMInferenceTrace_code_head.csv")


def test_a_table_of_counts_is_refused(tmp_path):
    with (tmp_path / "t.csv").open("w") as file:
        csv.writer(file).writerows([["TIMESTAMP", "ContextTokens", "GeneratedTokens"], ["0", 4808, 10]])
    with pytest.raises(TraceError, match="cannot be derived"):
        detect(tmp_path / "t.csv")


def test_counts_that_may_be_cumulative_or_added_are_refused(tmp_path):
    path = lines(tmp_path / "t.jsonl", [{"session": 1, "prompt_tokens": 100, "completion_tokens": 5}])
    with pytest.raises(TraceError, match="cumulative and added counts"):
        detect(path)


# conversations


def chat(*texts):
    roles = ("system", "user", "assistant")
    return [{"role": roles[min(i, 1 + (i - 1) % 2) if i else 0], "content": text} for i, text in enumerate(texts)]


def rendered(messages):
    return Letters().apply_template(messages, [])


def test_a_prefix_of_conversations_is_what_their_rendered_prompts_share(tmp_path):
    first, second = chat("be brief", "question"), chat("be brief", "question", "answer", "and then?")
    path = lines(tmp_path / "log.jsonl", [{"messages": first}, {"messages": second, "exec_s": 2.5}])
    steps, _ = imported(path, tmp_path)
    # everything up to the header of the answer, and the token in front of every text
    shared = len(rendered(first)) + 1
    assert lengths(steps) == [(0, shared), (shared, len(rendered(second)) + 1 - shared)]
    assert steps[1].exec_s == 2.5
    assert [step.task_id for step in steps] == ["log", "log"]


def test_mixed_tasks_are_kept_apart(tmp_path):
    rows = [{"session_id": name, "messages": chat("s", f"{name} {n}")} for n in range(2) for name in ("a", "b")]
    steps, _ = imported(lines(tmp_path / "log.jsonl", rows), tmp_path)
    assert [(step.task_id, step.step) for step in steps] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert steps[1].prefix_tokens == 0
    assert steps[2].prefix_tokens > 0


def test_images_as_data_uris_and_as_files_tool_calls_and_results(tmp_path):
    picture(tmp_path / "shot.png", (96, 64), "red")
    uri = "data:image/png;base64," + base64.b64encode(picture()).decode()
    call = {"id": "1", "type": "function", "function": {"name": "click", "arguments": "{}"}}
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": uri}}]
    first = [{"role": "user", "content": content}]
    second = [
        *first,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url", "image_url": {"url": "shot.png"}}]},
    ]
    tools = [{"name": "click"}]
    rows = [{"request": {"messages": messages, "tools": tools}} for messages in (first, second)]
    steps, _ = imported(write(tmp_path / "log.json", rows), tmp_path, "openai-chat")
    assert [image.tokens for step in steps for image in step.images] == [
        GEOMETRY.tokens(64, 64),
        GEOMETRY.tokens(96, 64),
    ]
    assert steps[1].image_tokens == GEOMETRY.tokens(96, 64)
    assert steps[1].prefix_tokens > GEOMETRY.tokens(64, 64)
    for step in steps:
        for image in step.images:
            assert Picture.open(tmp_path / "images" / image.file).size == (image.width, image.height)


def swe_history():
    return chat("setting", "issue", "thought 1", "observation 1", "thought 2", "observation 2", "thought 3")


@pytest.mark.parametrize("with_trajectory", [False, True])
def test_a_swe_agent_history_is_one_step_for_each_answer(with_trajectory, tmp_path):
    value = {"history": swe_history()} | ({"trajectory": [], "info": {}} if with_trajectory else {})
    steps, _ = imported(write(tmp_path / "a.traj", value), tmp_path)
    assert [step.step for step in steps] == [0, 1, 2]
    assert all(later.prefix_tokens == earlier.total_tokens for earlier, later in itertools.pairwise(steps))


def test_a_bare_list_of_messages(tmp_path):
    steps, _ = imported(write(tmp_path / "a.traj.json", swe_history()), tmp_path)
    assert len(steps) == 3
    assert {step.task_id for step in steps} == {"a"}


def opencua_trace(folder, numbers=(2, 3, 5)):
    steps = []
    for number in numbers:
        picture(folder / f"{number}.png", (64 + 32 * number, 64), (number, 0, 0))
        monologue = {"observation": f"screen {number}", "thought": "hm", "low_level_instruction": "click"}
        steps.append({"step_num": number, "image": f"{number}.png", "action": "click()", "inner_monologue": monologue})
    return {"task_id": "o", "user_task_description": "find it", "steps": steps}


def test_a_computer_use_trajectory_adds_a_screenshot_a_step_and_may_have_gaps(tmp_path):
    steps, _ = imported(write(tmp_path / "o.json", opencua_trace(tmp_path)), tmp_path)
    assert [step.step for step in steps] == [2, 3, 5]
    assert [step.image_tokens for step in steps] == [GEOMETRY.tokens(64 + 32 * number, 64) for number in (2, 3, 5)]
    assert all(later.prefix_tokens == earlier.total_tokens for earlier, later in itertools.pairwise(steps))


def test_an_agent_that_forgets_is_measured_beside_the_one_that_does_not(tmp_path):
    path = write(tmp_path / "o.json", opencua_trace(tmp_path, (1, 2, 3, 4)))
    steps, _ = imported(path, tmp_path, keep_last_images=2)
    by_policy = {policy: [step for step in steps if step.policy == policy] for policy in ("keep_all", "keep_last_2")}
    assert [len(mine) for mine in by_policy.values()] == [4, 4]
    kept, forgetting = by_policy.values()
    assert lengths(kept)[:2] == lengths(forgetting)[:2]
    hole = forgetting[2]
    # up to the first screenshot nothing has changed
    assert hole.visible[0][1] + 1 == kept[0].total_tokens - GEOMETRY.tokens(96, 64) - len("</><assistant>")
    assert len(hole.visible) == 2
    assert [image.width for image in hole.behind_hole] == [128]
    assert [image.width for image in hole.images] == [160]


@samples
@pytest.mark.parametrize(
    ("name", "n_steps"),
    [
        ("opencua", 7),
        ("swe-agent/function_calling_simple.traj", 5),
        ("swe-agent/pydicom-1458.traj", 12),
        ("mini-swe-agent", 2),
    ],
)
def test_recorded_conversations_grow_step_by_step(name, n_steps, tmp_path):
    steps, problems = imported(SAMPLES / name, tmp_path)
    assert (len(steps), problems.n_skipped) == (n_steps, 0)
    assert all(later.prefix_tokens == earlier.total_tokens for earlier, later in itertools.pairwise(steps))


# which format it is


def test_our_own_steps_are_recognized_in_both_forms(tmp_path):
    steps = [Step("t", 0, 300, 20), Step("t", 1, 320, 20)]
    for name in ("a.jsonl", "b.parquet"):
        write_steps(tmp_path / name, steps)
        assert format_of(tmp_path / name, "auto") == "steps"
        assert imported(tmp_path / name, tmp_path)[0] == steps


def test_a_file_that_can_be_two_things_is_refused_with_both_names(tmp_path):
    path = write(tmp_path / "t.json", {"messages": chat("s", "q", "a")})
    with pytest.raises(TraceError, match=r"mini-swe-agent or openai-chat; say which with trace\.format"):
        format_of(path, "auto")
    assert len(imported(path, tmp_path, "openai-chat")[0]) == 1


def test_a_folder_with_files_of_two_formats_is_refused(tmp_path):
    write(tmp_path / "a.json", kv_trace((8, [1, 2])))
    write(tmp_path / "b.json", swe_history())
    with pytest.raises(TraceError, match="files differ in format"):
        format_of(tmp_path, "auto")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", "", "is empty"),
        ("t.jsonl", "  \n", "is empty"),
        ("t.json", '{"history": [', "line 1: not JSON"),
        ("t.json", "[1, 2, 3]", "none of the known formats"),
        ("t.json", '{"a": 1}', "none of the known formats"),
        ("t.json", b'{"a": "\xff"}', "is not UTF-8"),
        ("t.parquet", b"PAR1", "not a Parquet file"),
        ("nowhere.json", None, "no such file"),
    ],
)
def test_an_unusable_file_is_one_clear_line(name, content, message, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TraceError, match=message) as error:
        imported(path, tmp_path)
    assert "\n" not in str(error.value)


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
        (GOOD | {"step": 1, "prefix_tokens": 10**30}, "are no count of tokens"),
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


def test_tools_that_are_no_list_are_refused(tmp_path):
    path = lines(tmp_path / "log.jsonl", [{"messages": chat("s", "q"), "tools": 5}])
    with pytest.raises(TraceError, match="tools is int, must be a list"):
        imported(path, tmp_path)


def test_steps_that_do_not_rise_are_refused(tmp_path):
    path = lines(tmp_path / "t.jsonl", [GOOD | {"step": 3}, GOOD | {"step": 1}])
    with pytest.raises(TraceError, match="comes behind step 3"):
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
