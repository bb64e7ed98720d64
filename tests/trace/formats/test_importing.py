import base64
import csv
import itertools
import os
from pathlib import Path

import pytest
from conftest import ROOT
from fakeprefix.errors import TraceError
from fakeprefix.trace.importing import detect, format_of
from fakeprefix.trace.steps import Step, write_steps
from made_traces import (
    GEOMETRY,
    Letters,
    chat,
    imported,
    lengths,
    lines,
    opencua_trace,
    picture,
    write,
)
from PIL import Image as Picture

SAMPLES = Path(os.environ.get("FAKEPREFIX_TRACES", ROOT.parent / "shared" / "traces"))
samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded traces are not here")


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
    with pytest.raises(TraceError, match=r"mini-swe-agent or openai-chat; set trace\.format"):
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
        ("t.json", "[1, 2, 3]", "not in a known format"),
        ("t.json", '{"a": 1}', "not in a known format"),
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
