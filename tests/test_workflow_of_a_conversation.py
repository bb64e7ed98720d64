"""A log of a computer-use agent, from the conversation to the comparison of policies."""

import json

import pandas as pd
import pytest
from conftest import contract_verdict
from fakeprefix.storage import read_json
from fakeprefix.trace.desktop import mark, screenshot
from small_run import CUT_DOWN, copy_project, snakemake

pytestmark = pytest.mark.workflow

N_STEPS, KEEP = 5, 2


def write_log(folder):
    messages = [{"role": "system", "content": "You use a computer. " * 40}]
    lines = []
    for number in range(N_STEPS):
        (folder / f"{number}.png").write_bytes(mark(screenshot(320, 256, f"s{number}"), f"m{number}"))
        content = [
            {"type": "text", "text": f"This is what the screen shows after step {number}. " * 8},
            {"type": "image_url", "image_url": {"url": f"{number}.png"}},
        ]
        messages.append({"role": "user", "content": content})
        row = {"task_id": "desk", "messages": messages, "decode_s": 1.0, "exec_s": 0.5, "recorded_wall_s": 4.0}
        lines.append(json.dumps(row))
        messages.append({"role": "assistant", "content": f"I click the button {number}."})
    (folder / "log.jsonl").write_text("\n".join(lines))
    return folder / "log.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    contract_verdict()
    project = copy_project(tmp_path_factory.mktemp("project"))
    log = write_log(tmp_path_factory.mktemp("trace"))
    config = CUT_DOWN | {
        "run_name": "desk",
        "trace": {
            "source": "file",
            "path": str(log),
            "on_hole": "recompute",
            "eviction": {"keep_last_images": KEEP},
        },
        "plan": {"bucket_width": 1024, "max_steps_per_bucket": 20},
        "measure": {
            "arms": ["baseline", "fake_prefix"],
            "repetitions": {"baseline": 1, "fake_prefix": 2, "depth_rate": 1},
            "fidelity": {"prefix_tokens": []},
        },
    }
    snakemake(project, config=config)
    return (project / "results" / "current").resolve()


def test_the_steps_are_those_of_the_conversation_for_both_policies(run):
    imported = read_json(run / "trace" / "import.json")
    assert (imported["format"], imported["steps"], imported["skipped"]) == ("openai-chat", 2 * N_STEPS, 0)
    plan = pd.read_parquet(run / "trace" / "plan.parquet")
    kept, forgetting = (plan[plan.policy == policy] for policy in ("keep_all", f"keep_last_{KEEP}"))
    assert (kept.prefix_tokens.to_numpy()[1:] == (kept.prefix_tokens + kept.new_tokens).to_numpy()[:-1]).all()
    image = int(kept.image_tokens.iloc[0])
    assert (kept.image_tokens == image).all()
    # from the step on that drops a screenshot, everything behind it is prefilled again, images too
    assert forgetting.image_tokens.tolist() == [image, image, *[KEEP * image] * (N_STEPS - KEEP)]
    assert (forgetting.prefix_tokens.to_numpy()[KEEP:] < kept.prefix_tokens.to_numpy()[KEEP:]).all()


def test_every_step_was_measured_with_exact_counts(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    assert (rows.status == "ok").all(), rows.error.dropna().tolist()
    fake = rows[rows.arm == "fake_prefix"]
    assert fake.groupby("policy").step.nunique().to_dict() == {"keep_all": N_STEPS, f"keep_last_{KEEP}": N_STEPS}
    assert (fake.image_encode_ms > 0).all()


def test_the_policies_are_compared_and_the_replay_has_a_row_for_each_step(run):
    summary = read_json(run / "summary.json")
    (entry,) = summary["policies"]
    costs = entry["policies"]
    assert costs["keep_all"]["with_cache_s"] < costs[f"keep_last_{KEEP}"]["with_cache_s"]
    assert entry["with_cache"]["winner"] == "keep_all"
    replay = pd.read_parquet(run / "replay.parquet")
    assert len(replay) == 2 * N_STEPS
    assert set(replay.source) == {"measured"}
    tasks = pd.read_parquet(run / "analysis" / "tasks.parquet")
    assert tasks.recorded_wall_s.tolist() == [4.0 * N_STEPS] * 2
    assert (tasks.opt_over_recorded > 0).all()
    assert "What forgetting is worth" in (run / "report.html").read_text()
