"""Every kind of memory from the name of a shape to a sealed report; decode and deep prefixes with one of them."""

import pandas as pd
import pytest
from conftest import contract_verdict
from fakeprefix.storage import read_json
from small_run import CUT_DOWN, copy_project, snakemake

pytestmark = pytest.mark.workflow

BOUND = 700
CONFIG = CUT_DOWN | {
    "trace": {"source": "grid", "grid": {"prefix_tokens": [300, 600, 1200], "new_tokens": [48]}},
    "plan": {"bucket_width": 1024, "max_steps_per_bucket": 3, "real_prefix_up_to": BOUND},
    "measure": {
        "arms": ["baseline", "fake_prefix"],
        "decode_tokens": 5,
        "repetitions": {"baseline": 1, "fake_prefix": 2, "depth_rate": 1},
        "fidelity": {"prefix_tokens": [300], "new_tokens": 32, "fills": ["tile"], "cached_up_to": 0},
        "probe": {"prefix_tokens": 256, "new_tokens": 32},
    },
}
# as little as makes a report
LEAST = CONFIG | {
    "plan": {"bucket_width": 2048, "max_steps_per_bucket": 3},
    "measure": {
        "arms": ["fake_prefix"],
        "repetitions": {"fake_prefix": 1, "depth_rate": 0},
        "fidelity": {"prefix_tokens": []},
    },
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    contract_verdict()
    return copy_project(tmp_path_factory.mktemp("project"))


def run_of(project, preset, shape, config):
    snakemake(project, config=config | {"run_name": preset, "model": {"preset": preset, "shape": shape}})
    folder = (project / "results" / "current").resolve()
    assert folder.name.endswith(f"_{preset}")
    rows = pd.read_parquet(folder / "measurements.parquet")
    assert (rows.status == "ok").all(), rows.error.dropna().tolist()
    return folder, rows


@pytest.mark.parametrize(
    ("preset", "shape", "architecture", "memory_type"),
    [
        ("tiny-dense-hybrid", {"n_layer": 4}, "qwen35", "hybrid"),
        ("tiny-recurrent", {"n_layer": 3}, "mamba2", "recurrent"),
    ],
)
def test_other_memories_go_from_the_name_of_a_shape_to_a_report(project, preset, shape, architecture, memory_type):
    folder, rows = run_of(project, preset, shape, LEAST)
    facts = read_json(folder / "pipeline" / "model_facts.json")
    assert facts["architecture"] == architecture
    assert facts["n_attention_layers"] + facts["n_recurrent_layers"] == shape["n_layer"]
    assert read_json(folder / "engine" / "server_config.json")["resolved"]["memory_type"] == memory_type
    assert sorted(set(rows[rows.arm == "fake_prefix"].cache_n)) == [300, 600, 1200]
    assert (rows.decode_n == 0).all()
    assert "Decode at depth" not in (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def run(project):
    """Attention only, with everything that decodes and with steps beyond what is really computed."""
    return run_of(project, "tiny-attention", {"n_layer": 2}, CONFIG)


def test_beyond_the_bound_only_a_fabricated_prefix_is_measured_and_the_report_says_so(run):
    folder, rows = run
    assert rows.groupby("arm").prefix_tokens.max().loc[["baseline", "fake_prefix"]].tolist() == [600, 1200]
    assert read_json(folder / "engine" / "server_config.json")["resolved"]["memory_type"] == "attention"
    summary = read_json(folder / "summary.json")
    assert summary["registered"]
    assert summary["agreement_by_bucket"]["2"] == "not compared"
    page = (folder / "report.html").read_text()
    assert f"No step's prefix of more than {BOUND} tokens was really computed" in page
    assert "Decode at depth" in page


def test_decode_is_measured_by_every_arm_and_by_the_benchmark(run):
    folder, rows = run
    steps = rows[rows.arm.isin(["baseline", "fake_prefix", "state_restore"])]
    assert set(steps.arm) == {"baseline", "fake_prefix", "state_restore"}
    assert (steps.decode_n == 4).all()
    assert (steps.decode_ms > 0).all()
    assert (rows[rows.arm == "probe"].decode_n == 0).all()
    table = pd.read_parquet(folder / "analysis" / "agreement.parquet")
    step = table[table.level == "step"].set_index("prefix_tokens")
    for name in ("fake_prefix_decode_token_ms", "decode_estimate_token_ms", "decode_over_baseline"):
        assert (step.loc[[300, 600], name] > 0).all(), name
    assert step.loc[1200, "fake_prefix_decode_token_ms"] > 0
    assert pd.isna(step.loc[1200, "decode_estimate_token_ms"])
    fidelity = pd.read_parquet(folder / "analysis" / "fidelity.parquet")
    assert set(fidelity.quantity) == {"prefill", "decode"}
    assert (pd.read_parquet(folder / "replay.parquet").decode_token_s > 0).all()


def test_the_cost_is_held_against_a_line_in_depth(run):
    folder, _ = run
    curve = pd.read_parquet(folder / "analysis" / "depth.parquet")
    prefill, decode = (curve[curve.quantity == name] for name in ("prefill", "decode"))
    assert prefill.depth.tolist() == [300, 600, 1200]
    assert decode.depth.tolist() == [348, 648, 1248]
    assert prefill.foretold_from.dropna().tolist() == [600]
    assert "Cost against depth" in (folder / "report.html").read_text()
