"""Every kind of memory from the name of a shape to a sealed report, decode included."""

import pandas as pd
import pytest
from conftest import contract_verdict
from fakeprefix.storage import read_json
from small_run import CUT_DOWN, copy_project, snakemake

pytestmark = pytest.mark.workflow

BOUND = 700
CONFIG = CUT_DOWN | {
    "trace": {"source": "grid", "grid": {"prefix_tokens": [300, 600, 1200], "new_tokens": [48]}},
    "plan": {"bucket_width": 1024, "max_steps_per_bucket": 3},
    "measure": {
        "arms": ["baseline", "fake_prefix", "state_restore"],
        "real_prefix_up_to": BOUND,
        "decode_tokens": 5,
        "repetitions": {"baseline": 1, "fake_prefix": 2, "state_restore": 1, "depth_rate": 1},
        "fidelity": {"prefix_tokens": [300], "new_tokens": 32, "fills": ["tile"], "cached_up_to": 0},
        "probe": {"prefix_tokens": 256, "new_tokens": 32},
    },
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    contract_verdict()
    return copy_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(
    scope="module",
    params=[
        ("tiny-dense-hybrid", {}, "qwen35", "hybrid"),
        ("tiny-attention", {"n_layer": 2}, "llama", "attention"),
        ("tiny-recurrent", {"n_layer": 4}, "mamba2", "recurrent"),
    ],
    ids=lambda param: param[0],
)
def run(request, project):
    preset, shape, architecture, memory_type = request.param
    snakemake(project, config=CONFIG | {"run_name": preset, "model": {"preset": preset, "shape": shape}})
    folder = (project / "results" / "current").resolve()
    assert folder.name.endswith(f"_{preset}")
    facts = read_json(folder / "pipeline" / "model_facts.json")
    assert facts["architecture"] == architecture
    assert facts["n_attention_layers"] + facts["n_recurrent_layers"] == shape.get("n_layer", 8)
    assert read_json(folder / "engine" / "server_config.json")["resolved"]["memory_type"] == memory_type
    return folder


def test_every_repetition_registers_and_the_report_says_so(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    assert (rows.status == "ok").all(), rows.error.dropna().tolist()
    assert rows.groupby("arm").prefix_tokens.max().loc[["fake_prefix", "state_restore"]].tolist() == [1200, 600]
    summary = read_json(run / "summary.json")
    assert summary["registered"]
    assert summary["diagnosis"]["finding"] in ("neither", "unclear")
    assert summary["agreement_by_bucket"]["2"] == "not compared"
    page = (run / "report.html").read_text()
    assert f"No step's prefix of more than {BOUND} tokens was really computed" in page
    assert "Decode at depth" in page


def test_decode_is_measured_by_every_arm_and_by_the_benchmark(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    steps = rows[rows.arm.isin(["baseline", "fake_prefix", "state_restore"])]
    assert (steps.decode_n == 4).all()
    assert (steps.decode_ms > 0).all()
    assert (rows[rows.arm == "probe"].decode_n == 0).all()
    table = pd.read_parquet(run / "analysis" / "agreement.parquet")
    step = table[table.level == "step"].set_index("prefix_tokens")
    for name in ("fake_prefix_decode_token_ms", "decode_estimate_token_ms", "decode_over_baseline"):
        assert (step.loc[[300, 600], name] > 0).all(), name
    assert step.loc[1200, "fake_prefix_decode_token_ms"] > 0
    assert pd.isna(step.loc[1200, "decode_estimate_token_ms"])
    fidelity = pd.read_parquet(run / "analysis" / "fidelity.parquet")
    assert set(fidelity.quantity) == {"prefill", "decode"}
    assert (pd.read_parquet(run / "replay.parquet").decode_token_s > 0).all()


def test_the_cost_is_held_against_a_line_in_depth(run):
    curve = pd.read_parquet(run / "analysis" / "depth.parquet")
    prefill, decode = (curve[curve.quantity == name] for name in ("prefill", "decode"))
    assert prefill.depth.tolist() == [300, 600, 1200]
    assert decode.depth.tolist() == [348, 648, 1248]
    assert prefill.foretold_from.dropna().tolist() == [600]
    assert "Cost against depth" in (run / "report.html").read_text()
