"""The smoke request and the bench hold an answer against the same definition of registered as every repetition."""

import re
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from conftest import good_timings
from fakeprefix.bench.sweep import Requests
from fakeprefix.engine import smoke
from fakeprefix.errors import EngineError, MeasureError
from fakeprefix.server.engine_settings import EngineSettings

SETTINGS = EngineSettings(1, 512, 512, "on", "f16", "f16", n_ctx=1024)
PROPS = {
    "media_marker": "<image>",
    "fake_prefix_unsupported": "",
    "resolved": {"memory_type": "hybrid"},
    "modalities": {"vision": False},
    "build_info": "b1",
}


class Answers:
    """A client whose every completion has the same timings."""

    def __init__(self, timings):
        self.timings = timings

    def props(self):
        return PROPS

    def tokenize(self, text, *, add_special=False):
        return [len(word) for word in text.split()]

    def complete(self, prompt, **options):
        return {"timings": asdict(self.timings)}


@pytest.fixture
def answer_with(monkeypatch):
    """Let the smoke request be answered with these timings."""

    def answer(timings):
        @contextmanager
        def server(*arguments, **options):
            yield SimpleNamespace(client=Answers(timings), start_s=1.0)

        monkeypatch.setattr(smoke, "running_server", server)
        monkeypatch.setattr(smoke, "listed_devices", lambda binary: {})

    return answer


def send_smoke(folder):
    output = folder / "server_config.json"
    smoke.smoke_test(folder / "server", SETTINGS, folder / "model", None, None, "tile", "cpu", output, folder / "log")
    return output


def test_a_smoke_request_that_registers_writes_what_the_server_settled_on(tmp_path, answer_with):
    answer_with(good_timings(smoke.PREFIX, smoke.NEW, n_kv=512))
    assert '"memory_type": "hybrid"' in send_smoke(tmp_path).read_text()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"cache_n": 0, "prompt_n": 332}, "cache_n: expected 300, got 0; prompt_n: expected 32, got 332"),
        ({"seq_pos_max_attn": 298}, "seq_pos_max_attn: expected 299, got 298"),
        ({"seq_pos_max_recr": -1}, "seq_pos_max_recr: expected 299, got -1"),
        ({"prefix_source": "cached"}, "prefix_source: expected fake, got cached"),
    ],
)
def test_a_smoke_request_with_one_wrong_counter_or_position_is_refused(tmp_path, answer_with, fault, message):
    answer_with(replace(good_timings(smoke.PREFIX, smoke.NEW, n_kv=512), **fault))
    with pytest.raises(EngineError, match=re.escape(f"the smoke request did not register: {message}")):
        send_smoke(tmp_path)
    assert not (tmp_path / "server_config.json").exists()


def test_the_bench_refuses_an_answer_with_a_wrong_position():
    good = good_timings(1024, 256, n_kv=1280)
    assert Requests(SimpleNamespace(client=Answers(good)), 256).send(1024, "tile", 0) == good
    wrong = replace(good, seq_pos_max_recr=1022)
    with pytest.raises(MeasureError, match="depth 1024: seq_pos_max_recr: expected 1023, got 1022"):
        Requests(SimpleNamespace(client=Answers(wrong)), 256).send(1024, "tile", 0)
