"""The contract tests have passed on this patch, and a faulty answer does not pass them."""

from dataclasses import replace

import pytest
from conftest import contract_verdict, engine_folder, good_timings, required
from fakeprefix.engine.contract import BAD_VALUES, FILLS, SANITIZER_REPORT, Answer, wrong_counts
from fakeprefix.engine.source import load_series
from fakeprefix.storage import read_json

GOOD = Answer(good_timings(600, 40, n_kv=768), ((1, -0.5),))


@pytest.mark.engine
def test_all_checks_passed_on_exactly_this_series():
    contract = read_json(contract_verdict())
    assert contract["verdict"] == "passed"
    assert contract["build"]["asserts"] is True
    assert contract["build"]["flavour"] == "checked"
    assert contract["build"]["series_sha256"] == load_series(engine_folder().parents[2] / "patches", "465b1f0e7").sha256
    names = [check["name"] for check in contract["checks"]]
    assert all(check["passed"] for check in contract["checks"])
    assert len(names) > len(BAD_VALUES) + 3 * len(FILLS)


@pytest.mark.engine
def test_the_timing_build_has_no_asserts_and_the_same_series():
    fast, checked = (read_json(required(engine_folder() / f"{flavour}.json")) for flavour in ("fast", "checked"))
    assert fast["asserts"] is False
    assert fast["series_sha256"] == checked["series_sha256"]
    assert set(fast["binaries"]) == {"llama-server", "llama-bench"}


@pytest.mark.parametrize(
    "fault",
    [
        {"cache_n": 0, "prompt_n": 640, "prefix_source": "none"},
        {"seq_pos_max_attn": 599, "seq_pos_max_recr": 598},
        {"seq_pos_max_attn": 600},
        {"n_kv": 256},
        {"install_bytes": 0},
    ],
)
def test_a_planted_fault_in_the_counts_is_caught(fault):
    assert wrong_counts(GOOD, 600, 40) is None
    assert wrong_counts(replace(GOOD, timings=replace(GOOD.timings, **fault)), 600, 40)


@pytest.mark.parametrize(
    "line",
    [
        "llama-kv-cells.h:98:5: runtime error: signed integer overflow",
        "==12==ERROR: AddressSanitizer: heap-buffer-overflow",
        "server: llama-kv-cells.h:300: void f(): Assertion `pos[i] == -1' failed.",
    ],
)
def test_reports_of_sanitizers_and_asserts_are_recognized(line):
    assert SANITIZER_REPORT.search(line)
    assert not SANITIZER_REPORT.search("srv  init: initializing slots")
