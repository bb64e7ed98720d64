"""Conversations rendered and counted by the real server, against what it then computes."""

import base64
import itertools
import json
import os
from pathlib import Path

import pytest
from conftest import ROOT
from fakeprefix.model.gguf_file import facts_of_preset
from fakeprefix.server.client import Timings
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import PromptBuilder
from fakeprefix.server.process import running_server
from fakeprefix.trace.common_prefix import TaskSteps
from fakeprefix.trace.desktop import mark, screenshot
from fakeprefix.trace.formats.chat_log import openai_chat
from fakeprefix.trace.importing import CONVERSATIONS, Problems
from fakeprefix.trace.rendering import Renderer

SAMPLES = Path(os.environ.get("FAKEPREFIX_TRACES", ROOT.parent / "shared" / "traces"))
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(fast_server, tiny_model, tiny_mmproj, tmp_path_factory):
    settings = EngineSettings(2, 512, 512, "on", "f16", "f16", 8192)
    log = tmp_path_factory.mktemp("server") / "log"
    with running_server(fast_server, settings, tiny_model, tiny_mmproj, log) as life:
        yield life


@pytest.fixture
def renderer(server):
    marker = server.client.props()["media_marker"]
    return Renderer(server.client, marker, facts_of_preset("tiny-hybrid").image, "[screenshot removed]")


def conversation(folder, n_shots):
    messages = [{"role": "system", "content": "Be brief."}]
    for number in range(n_shots):
        (folder / f"{number}.png").write_bytes(mark(screenshot(320, 256, f"s{number}"), f"m{number}"))
        content = [
            {"type": "text", "text": f"step {number}"},
            {"type": "image_url", "image_url": {"url": f"{number}.png"}},
        ]
        messages.append({"role": "user", "content": content})
        yield list(messages)
        messages.append({"role": "assistant", "content": f"click {number}"})


def requests_of(folder, n_shots=3):
    rows = [json.dumps({"messages": messages}) for messages in conversation(folder, n_shots)]
    (folder / "log.jsonl").write_text("\n".join(rows))
    return list(openai_chat(folder / "log.jsonl", Problems(skip=False)))


def computed(server, renderer, request, keep=None):
    """Tokens that the server computes for a request that is sent as a client would send it."""
    text = server.client.apply_template(*renderer_messages(renderer, request, keep))
    shots = [part for message in request.messages for part in message.parts if not isinstance(part, str)]
    shots = shots[len(shots) - keep :] if keep is not None else shots
    media = [base64.b64encode(shot.data).decode() for shot in shots]
    builder = PromptBuilder(server.client, server.client.props()["media_marker"])
    body = {"prompt": {"prompt_string": text, "multimodal_data": media}, "n_predict": 1, "cache_prompt": False}
    return Timings.from_answer(server.client.post("/completion", body | builder.one_word_answer)).prompt_n


def renderer_messages(renderer, request, keep):
    seen = []

    class Recorder:
        def apply_template(self, messages, tools):
            seen.append((messages, tools))
            return original.apply_template(messages, tools)

        def tokenize(self, text, **options):
            return original.tokenize(text, **options)

    original = renderer._tokenizer
    renderer._tokenizer = Recorder()
    renderer.prompt(request, keep)
    renderer._tokenizer = original
    return seen[-1]


@pytest.mark.parametrize("keep", [None, 1])
def test_a_rendered_prompt_has_as_many_ids_as_the_server_computes(server, renderer, tmp_path, keep):
    for request in requests_of(tmp_path)[-2:]:
        prompt = renderer.prompt(request, keep)
        assert len(prompt.ids) == computed(server, renderer, request, keep)


def test_each_prompt_begins_with_the_one_before(renderer, tmp_path):
    task = TaskSteps("t", "keep_all")
    steps = [task.add(renderer.prompt(request)) for request in requests_of(tmp_path)]
    for earlier, later in itertools.pairwise(steps):
        assert later.prefix_tokens == earlier.total_tokens
        assert later.image_tokens == steps[0].image_tokens > 50


def test_a_conversation_with_tool_calls_can_be_rendered(renderer, tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "list the files"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a.txt b.txt"},
    ]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": messages}))
    (request,) = openai_chat(tmp_path / "log.jsonl", Problems(skip=False))
    assert len(renderer.prompt(request).ids) > 15


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the recorded traces are not here")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("opencua", "opencua/s_df0fd37049f470c2.json"),
        ("swe-agent", "swe-agent/pydicom-1458.traj"),
        ("swe-agent", "swe-agent/function_calling_simple.traj"),
        ("mini-swe-agent", "mini-swe-agent/local.traj.json"),
    ],
)
def test_recorded_conversations_grow_by_what_each_step_adds(renderer, name, file):
    task = TaskSteps("t", "keep_all")
    problems = Problems(skip=False)
    steps = [task.add(renderer.prompt(request)) for request in CONVERSATIONS[name](SAMPLES / file, problems)]
    for earlier, later in itertools.pairwise(steps):
        assert later.prefix_tokens == earlier.total_tokens
    if name == "opencua":
        # 1280x720 is 40 by 22.5 cells of 32 pixels, and two marks
        assert {image.tokens for step in steps for image in step.images} == {40 * 23 + 2}
