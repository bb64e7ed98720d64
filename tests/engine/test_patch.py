"""The patched server itself, on the tiny model: what the contract tests do not ask."""

import json

import pytest
import requests
from fakeprefix.engine.contract import Contract
from fakeprefix.errors import RequestRefused
from fakeprefix.server.client import PLAIN_TEXT_GRAMMAR
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import Segment
from fakeprefix.server.process import running_server

pytestmark = pytest.mark.engine

SETTINGS = EngineSettings(2, 512, 256, "on", "f16", "f16", 4096)


@pytest.fixture(scope="module")
def server(fast_server, tiny_model, tiny_mmproj, tmp_path_factory):
    with running_server(
        fast_server, SETTINGS, tiny_model, tiny_mmproj, tmp_path_factory.mktemp("server") / "log"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def contract(server):
    return Contract(server.client, None)


def prompt_of(contract, prefix, new, seed="x"):
    return contract.builder.prompt([Segment(prefix, f"{seed}/p"), Segment(new, f"{seed}/n")]).payload()


def test_the_server_says_what_it_settled_on(contract):
    resolved = contract.props["resolved"]
    assert resolved["memory_type"] == "hybrid"
    assert (resolved["n_batch"], resolved["n_ubatch"], resolved["n_threads"]) == (512, 256, 2)
    assert resolved["flash_attn"] is True
    assert resolved["cache_type_k"] == "f16"
    assert contract.props["fake_prefix_unsupported"] == ""


def test_a_stream_has_the_same_counts_in_its_last_event(server, contract):
    body = {
        "prompt": prompt_of(contract, 500, 20),
        "n_predict": 2,
        "stream": True,
        "n_fake_cached": 500,
        "fake_fill": "zero",
        "id_slot": 0,
    }
    headers = dict(server.client._session.headers)
    with requests.post(
        f"{server.client.address}/completion", json=body, headers=headers, stream=True, timeout=60
    ) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith(b"data: {")]
    timings = events[-1]["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["prefix_source"]) == (500, 20, "fake")


def test_a_stream_with_a_wrong_value_is_refused_with_400(server, contract):
    body = {"prompt": prompt_of(contract, 500, 20), "stream": True, "n_fake_cached": "many"}
    with pytest.raises(RequestRefused) as refusal:
        server.client.post("/completion", body)
    assert refusal.value.status == 400
    assert 'n_fake_cached = "many"' in str(refusal.value)


def test_chat_completions_take_a_prefix_and_refuse_a_wrong_one(server):
    messages = [{"role": "user", "content": "word " * 400}]
    answer = server.client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "n_fake_cached": 300})
    assert answer["timings"]["cache_n"] == 300
    assert answer["timings"]["prefix_source"] == "fake"
    with pytest.raises(RequestRefused, match="n_fake_cached"):
        server.client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "n_fake_cached": 1.5})


def test_an_endpoint_that_would_drop_the_field_refuses_it(server):
    messages = [{"role": "user", "content": "word " * 400}]
    with pytest.raises(RequestRefused, match="is not supported by") as refusal:
        server.client.post("/v1/messages", {"messages": messages, "max_tokens": 1, "n_fake_cached": 300})
    assert refusal.value.status == 400


def test_zero_means_no_prefix(contract):
    answer = contract.ask(0, 300, n_fake_cached=0)
    assert (answer.timings.cache_n, answer.timings.prompt_n, answer.timings.prefix_source) == (0, 300, "none")


def test_a_prompt_that_fills_the_context_is_refused_and_the_slot_stays(contract):
    before = contract.ask(300, 50, "before")
    with pytest.raises(RequestRefused, match="context"):
        contract.ask(4000, 96, n_fake_cached=4000)
    assert contract.ask(300, 50, "before").logits == before.logits
    largest = contract.ask(4000, 95, n_fake_cached=4000)
    assert (largest.timings.cache_n, largest.timings.prompt_n) == (4000, 95)


def test_a_genuine_cache_hit_is_called_cached_and_not_fake(contract):
    contract.ask(0, 400, "cached", cache_prompt=True)
    body = contract.builder.prompt([Segment(400, "cached/new"), Segment(30, "more")])
    answer = contract.client.complete(body, cache_prompt=True)
    assert answer["timings"]["prefix_source"] == "cached"
    assert answer["timings"]["cache_n"] >= 400


def test_decoding_goes_on_over_a_fabricated_prefix(server, contract):
    answer = server.client.post(
        "/completion",
        {
            "prompt": prompt_of(contract, 700, 20),
            "n_predict": 12,
            "n_fake_cached": 700,
            "ignore_eos": True,
            "grammar": PLAIN_TEXT_GRAMMAR,
            "id_slot": 0,
        },
    )
    assert answer["timings"]["predicted_n"] == 12


@pytest.mark.parametrize("extra", [[], ["--kv-unified"]])
def test_a_living_neighbour_is_never_touched(fast_server, tiny_model, tmp_path, extra):
    """What slot 1 has cached gives the same logits, whether slot 0 got fabricated prefixes meanwhile or not."""
    settings = EngineSettings(2, 512, 256, "on", "f16", "f16", 8192)
    with running_server(
        fast_server, settings, tiny_model, None, tmp_path / "log", parallel=2, extra_arguments=extra
    ) as running:
        contract = Contract(running.client, None)
        seen = []
        for fills in ((), ("zero", "random", "tile") * 2):
            # decodes one token, so that what is cached ends behind the prompt
            contract.ask(0, 220, "neighbour", id_slot=1)
            for fill in fills:
                answer = contract.ask(1500, 30, n_fake_cached=1500, fake_fill=fill)
                assert (answer.timings.cache_n, answer.timings.prompt_n) == (1500, 30)
            extended = contract.ask(0, 220, "neighbour", more=30, id_slot=1, cache_prompt=True)
            assert extended.timings.cache_n >= 220
            seen.append(extended.logits)
        assert seen[0] == seen[1]


def test_without_flash_attention_the_transposed_cache_is_filled_as_well(fast_server, tiny_model, tmp_path):
    settings = EngineSettings(2, 512, 256, "off", "f16", "f16", 4096)
    with running_server(fast_server, settings, tiny_model, None, tmp_path / "log") as running:
        contract = Contract(running.client, None)
        assert contract.props["resolved"]["v_trans"] is True
        answers = {}
        for fill in ("zero", "random", "tile"):
            answers[fill] = contract.ask(700, 40, n_fake_cached=700, fake_fill=fill)
            assert answers[fill].timings.cache_n == 700
            assert contract.ask(700, 40, n_fake_cached=700, fake_fill=fill).logits == answers[fill].logits
        assert len({answer.logits for answer in answers.values()}) == 3


def test_quantized_cells_are_filled_as_well(fast_server, tiny_model, tmp_path):
    settings = EngineSettings(2, 512, 256, "on", "q8_0", "q8_0", 4096)
    with running_server(fast_server, settings, tiny_model, None, tmp_path / "log") as running:
        contract = Contract(running.client, None)
        for fill in ("zero", "random", "tile"):
            one, other = (contract.ask(700, 40, n_fake_cached=700, fake_fill=fill) for _ in range(2))
            assert one.timings.cache_n == 700
            assert one.logits == other.logits
