"""Requests that must not work, and prefixes that must not be reused, on the checked server."""

import random

import pytest
from fakeprefix.engine.contract import SANITIZER_REPORT, Contract
from fakeprefix.errors import RequestRefused
from fakeprefix.server.client import PLAIN_TEXT_GRAMMAR, Timings
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import Segment
from fakeprefix.server.process import running_server

pytestmark = pytest.mark.engine

SETTINGS = EngineSettings(2, 512, 256, "on", "f16", "f16", 2048)
N_BODIES = 2000
PLAIN = {"n_predict": 1, "n_probs": 5, "temperature": 0, "ignore_eos": True, "grammar": PLAIN_TEXT_GRAMMAR}


@pytest.fixture(scope="module")
def server(checked_server, tiny_model, tmp_path_factory):
    log = tmp_path_factory.mktemp("checked") / "log"
    with running_server(checked_server, SETTINGS, tiny_model, None, log, timeout_s=300) as running:
        yield running
        assert running.client.is_healthy()
    assert not SANITIZER_REPORT.search(log.read_text(errors="replace"))


@pytest.fixture(scope="module")
def contract(server):
    return Contract(server.client, None)


CACHING = ["--ctx-checkpoints", "8", "--cache-ram", "256"]


@pytest.fixture(scope="module")
def caching(fast_server, tiny_model, tmp_path_factory):
    """A server with the prompt cache and checkpoints on, as the engine has them by default."""
    log = tmp_path_factory.mktemp("caching") / "log"
    with running_server(fast_server, SETTINGS, tiny_model, None, log, extra_arguments=CACHING) as running:
        yield Contract(running.client, None)


@pytest.fixture(scope="module")
def untouched(fast_server, tiny_model, tmp_path_factory):
    """The same, for requests without a fabricated prefix only."""
    log = tmp_path_factory.mktemp("untouched") / "log"
    with running_server(fast_server, SETTINGS, tiny_model, None, log, extra_arguments=CACHING) as running:
        yield Contract(running.client, None)


def ids(contract, n, seed="r"):
    return list(contract.builder.prompt([Segment(n, seed)]).tokens)


def top(answer):
    return [(entry["id"], entry["logprob"]) for entry in answer["completion_probabilities"][0]["top_logprobs"]]


@pytest.mark.parametrize("id_slot", [0, -1])
@pytest.mark.parametrize("fill", ["zero", "random", "tile"])
def test_after_a_fake_prefix_the_same_beginning_gives_what_a_fresh_server_gives(caching, untouched, fill, id_slot):
    tokens = ids(caching, 700, f"{fill}{id_slot}")
    fake = {"prompt": tokens[:600], "n_fake_cached": 500, "fake_fill": fill, "cache_prompt": True, "id_slot": id_slot}
    timings = caching.client.post("/completion", PLAIN | fake)["timings"]
    assert (timings["cache_n"], timings["prompt_n"]) == (500, 100)
    # the same beginning, then an extension of it, which may find the first one's tokens but never fabricated ones
    for length in (600, 700):
        body = PLAIN | {"prompt": tokens[:length], "cache_prompt": True, "id_slot": id_slot}
        after, fresh = (server.client.post("/completion", body) for server in (caching, untouched))
        for key in ("cache_n", "prompt_n", "prefix_source"):
            assert after["timings"][key] == fresh["timings"][key], key
        assert top(after) == top(fresh)
        if length == 600:
            assert (after["timings"]["cache_n"], after["timings"]["prompt_n"]) == (0, 600)


def test_a_chat_after_a_fake_prefix_is_computed_from_the_start(caching):
    messages = [{"role": "user", "content": "word " * 300}]
    body = {"messages": messages, "max_tokens": 1, "cache_prompt": True}
    total = caching.client.post("/v1/chat/completions", body | {"n_fake_cached": 250})["timings"]
    assert total["cache_n"] == 250
    again = caching.client.post("/v1/chat/completions", body)["timings"]
    assert again["cache_n"] == 0
    assert again["prompt_n"] == total["cache_n"] + total["prompt_n"]


def random_value(draw):
    return draw.choice(
        [
            0,
            1,
            2,
            7,
            30,
            -1,
            -(2**40),
            2**31,
            2**40,
            2**63,
            2**64 - 1,
            1.0,
            5.5,
            1e30,
            "5",
            "",
            None,
            True,
            False,
            [],
            [3],
            {},
            {"n": 3},
        ]
    )


def random_body(draw, vocabulary):
    """A body, and the number of fabricated tokens that it rightly asks for, or None if it must be refused."""
    n = draw.randrange(1, 40)
    body = {"prompt": draw.choices(vocabulary, k=n), "n_predict": draw.choice([0, 1, 2]), "id_slot": 0}
    # one certain word: random weights would give text that is no UTF-8, which the engine answers with HTTP 500
    body["logit_bias"] = [[vocabulary[0], 100]]
    fake, right = 0, True
    if draw.random() < 0.8:
        value = random_value(draw) if draw.random() < 0.5 else draw.randrange(0, n + 3)
        body["n_fake_cached"] = value
        right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < n
        fake = value if right else 0
    if draw.random() < 0.5:
        body["fake_fill"] = draw.choice(["zero", "random", "tile", "ZERO", "", None, 1, ["zero"]])
        right = right and body["fake_fill"] in ("zero", "random", "tile") and "n_fake_cached" in body
    if draw.random() < 0.2:
        body["prefix_state"] = draw.choice(
            [{"restore": "nowhere"}, {"drop": "nowhere"}, {}, "x", None, {"save": ""}, {"a": "b"}, 3]
        )
        right = False
    if draw.random() < 0.3:
        body["cache_prompt"] = draw.choice([True, False])
    return body, (fake if right else None)


def test_generated_bodies_are_refused_or_measured_and_never_silently_prefilled(server, contract):
    draw = random.Random(1)
    vocabulary = ids(contract, 400, "vocabulary")
    reference = contract.ask(200, 20, "reference", n_fake_cached=200, fake_fill="zero").logits
    refused = measured = 0
    for number in range(N_BODIES):
        body, fake = random_body(draw, vocabulary)
        try:
            timings = Timings.from_answer(server.client.post("/completion", body))
        except RequestRefused as refusal:
            assert refusal.status == 400, (body, str(refusal))
            assert fake is None, (body, str(refusal))
            refused += 1
        else:
            assert fake is not None, body
            measured += 1
            assert timings.cache_n + timings.prompt_n == len(body["prompt"]), body
            if fake:
                assert (timings.cache_n, timings.prefix_source) == (fake, "fake"), body
            else:
                assert timings.prefix_source != "fake", body
        if number % 400 == 399:
            assert contract.ask(200, 20, "reference", n_fake_cached=200, fake_fill="zero").logits == reference
    assert min(refused, measured) > N_BODIES / 5


def test_a_kept_state_is_a_genuine_one(contract):
    tokens = ids(contract, 500, "state")
    client = contract.client
    plain = PLAIN | {"cache_prompt": False, "id_slot": 0}
    whole = client.post("/completion", plain | {"prompt": tokens})
    kept = client.post("/completion", plain | {"prompt": tokens[:400], "prefix_state": {"save": "one"}})["timings"]
    assert kept["save_bytes"] > 0
    for _ in range(2):
        contract.ask(300, 20, "between", n_fake_cached=300, fake_fill="random")
        restored = client.post("/completion", plain | {"prompt": tokens, "prefix_state": {"restore": "one"}})
        timings = restored["timings"]
        assert (timings["cache_n"], timings["prompt_n"], timings["prefix_source"]) == (400, 100, "restored")
        assert (timings["seq_pos_max_attn"], timings["seq_pos_max_recr"]) == (399, 399)
        assert timings["install_bytes"] == kept["save_bytes"]
        assert top(restored) == top(whole)
    client.post("/completion", plain | {"prompt": tokens[:10], "prefix_state": {"drop": "one"}})
    with pytest.raises(RequestRefused, match="there is no such state"):
        client.post("/completion", plain | {"prompt": tokens, "prefix_state": {"restore": "one"}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_state": {"restore": "unknown"}}, "there is no such state"),
        ({"prefix_state": {"drop": "unknown"}}, "there is no such state"),
        ({"prefix_state": {"save": "x", "drop": "y"}}, "must be an object with one of"),
        ({"prefix_state": {"keep": "x"}}, "must be an object with one of"),
        ({"prefix_state": "x"}, "must be an object with one of"),
        ({"prefix_state": {"save": ""}}, "1 to 64 characters"),
        ({"prefix_state": {"save": 5}}, "1 to 64 characters"),
        ({"prefix_state": {"save": "x"}, "n_fake_cached": 5}, "together with n_fake_cached"),
    ],
)
def test_a_wrong_prefix_state_is_refused(contract, options, message):
    with pytest.raises(RequestRefused) as refusal:
        contract.client.post("/completion", {"prompt": ids(contract, 40), "n_predict": 1, "id_slot": 0} | options)
    assert refusal.value.status == 400
    assert message in str(refusal.value)


def test_a_state_of_other_tokens_or_of_the_whole_prompt_is_refused_and_the_slot_stays(contract):
    client, tokens = contract.client, ids(contract, 300, "mine")
    plain = {"n_predict": 1, "cache_prompt": True, "id_slot": 0}
    client.post("/completion", plain | {"prompt": tokens[:200], "prefix_state": {"save": "two"}})
    client.post("/completion", plain | {"prompt": tokens[:250]})
    changed = [*tokens[:150], tokens[0] + 1, *tokens[151:]]
    for prompt, message in ((changed, "differs from it at token 150"), (tokens[:200], "must be fewer than")):
        with pytest.raises(RequestRefused, match=message):
            client.post("/completion", plain | {"prompt": prompt, "prefix_state": {"restore": "two"}})
    # what the slot held is still there
    assert client.post("/completion", plain | {"prompt": tokens})["timings"]["cache_n"] >= 250


def test_a_state_over_the_cap_is_refused(checked_server, tiny_model, tmp_path):
    with running_server(
        checked_server,
        SETTINGS,
        tiny_model,
        None,
        tmp_path / "log",
        timeout_s=300,
        extra_environment={"LLAMA_PREFIX_STATE_CAP": "1"},
    ) as running:
        contract = Contract(running.client, None)
        body = {"prompt": ids(contract, 600), "n_predict": 1, "id_slot": 0, "prefix_state": {"save": "big"}}
        with pytest.raises(RequestRefused, match="the cap is 1048576"):
            running.client.post("/completion", body)
