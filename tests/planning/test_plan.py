import pytest
from fakeprefix.errors import EngineError, MeasureError, ModelError
from fakeprefix.model.gguf_file import facts_of_preset
from fakeprefix.planning.plan import describe, make_plan
from fakeprefix.storage import read_json
from fakeprefix.trace.desktop import desktop_steps
from fakeprefix.trace.grid import grid_steps
from fakeprefix.trace.steps import write_steps

MEASURE = {
    "arms": ["baseline", "fake_prefix"],
    "repetitions": {"baseline": 1, "fake_prefix": 2, "depth_rate": 1},
    "decode_tokens": 1,
    "probe": {"prefix_tokens": 1024, "new_tokens": 128},
    "fidelity": {
        "prefix_tokens": [],
        "new_tokens": 256,
        "fills": ["tile"],
        "cached_up_to": 1024,
        "min_rounds": 10,
        "max_rounds": 20,
        "budget_s": 30,
    },
}
RUN = {"threads": 2, "n_ubatch": 512, "cache_type_k": "f16", "cache_type_v": "f16"}
BUILD = {"backend": "cpu", "jobs": 2}


def make(tmp_path, steps, facts=None, measure=MEASURE, run=RUN, build=BUILD, up_to=0):
    write_steps(tmp_path / "steps.parquet", steps)
    outputs = [tmp_path / name for name in ("plan.parquet", "rejected.parquet", "plan.json")]
    facts = facts or facts_of_preset("tiny-hybrid")
    make_plan(
        tmp_path / "steps.parquet",
        facts,
        {"bucket_width": 4096, "max_steps_per_bucket": 2, "max_new_tokens": 0, "real_prefix_up_to": up_to},
        "reject",
        measure,
        {"run": run, "build": build},
        True,
        *outputs,
    )
    return read_json(outputs[2])


def test_the_plan_says_what_how_long_and_how_much_memory(tmp_path):
    summary = make(tmp_path, desktop_steps(1, facts_of_preset("tiny-hybrid").image))
    assert summary["n_steps"] >= 20
    assert summary["n_measured"] == 8
    stages = ["engine build", "model", "contract", "baseline", "fake_prefix", "depth_rate"]
    assert list(summary["estimate"]["seconds"]) == stages
    assert summary["estimate"]["seconds"]["baseline"] > summary["estimate"]["seconds"]["fake_prefix"] > 0
    assert summary["estimate"]["memory_bytes"]["total"] > 100e6


def test_nothing_to_measure_is_an_error_with_the_reason(tmp_path):
    with pytest.raises(MeasureError, match="1 end within the first 256 columns"):
        make(tmp_path, grid_steps([100], [10]))
    assert not (tmp_path / "plan.json").exists()


def test_an_experiment_that_does_not_fit_the_machine_is_refused(tmp_path):
    facts = facts_of_preset("tiny-hybrid").as_dict() | {"weight_bytes": 10**15}
    from fakeprefix.model.gguf_file import ModelFacts

    with pytest.raises(ModelError, match="this machine has"):
        make(tmp_path, grid_steps([1000], [10]), ModelFacts.from_dict(facts))


def test_images_without_a_projector_are_refused(tmp_path):
    from fakeprefix.model.gguf_file import ModelFacts

    facts = ModelFacts.from_dict(facts_of_preset("tiny-hybrid").as_dict() | {"image": None})
    with pytest.raises(MeasureError, match=r"model\.mmproj"):
        make(tmp_path, desktop_steps(1, facts_of_preset("tiny-hybrid").image), facts)


def test_turns_and_kept_states_are_part_of_time_memory_and_context(tmp_path):
    turns = {**MEASURE["fidelity"], "prefix_tokens": [1024, 32768]}
    without = make(tmp_path, grid_steps([1000], [100]))["estimate"]
    summary = make(tmp_path, grid_steps([1000], [100]), measure=MEASURE | {"fidelity": turns})
    estimate = summary["estimate"]
    assert summary["n_ctx"] >= 32768 + 256
    assert without["memory_bytes"]["state"] == 0
    # K and V of 2 layers with 2 heads of 64 in 16 bits, and the recurrent state
    facts = facts_of_preset("tiny-hybrid")
    assert estimate["memory_bytes"]["state"] == 32768 * 2 * 2 * 2 * 64 * 2 + facts.recurrent_bytes
    assert estimate["seconds"]["fidelity"] > 0
    assert "fidelity" not in without["seconds"]


def test_a_kept_state_that_would_swap_is_refused_before_anything_runs(tmp_path):
    from fakeprefix.model.gguf_file import ModelFacts

    facts = ModelFacts.from_dict(facts_of_preset("tiny-hybrid").as_dict() | {"kv_elements_per_cell": 10**7})
    turns = {**MEASURE["fidelity"], "prefix_tokens": [32768]}
    with pytest.raises(ModelError, match=r"state \d"):
        make(tmp_path, grid_steps([1000], [100]), facts, MEASURE | {"fidelity": turns})


def test_turns_beyond_the_models_context_are_refused(tmp_path):
    turns = {**MEASURE["fidelity"], "prefix_tokens": [10**7]}
    with pytest.raises(MeasureError, match="tokens do not fit the model's"):
        make(tmp_path, grid_steps([1000], [100]), measure=MEASURE | {"fidelity": turns})


def test_the_context_holds_the_probe_and_the_warm_up_of_every_job(tmp_path):
    assert make(tmp_path, grid_steps([400], [64]))["n_ctx"] > 1024 + 128
    long = MEASURE | {"probe": {"prefix_tokens": 9000, "new_tokens": 100}}
    assert make(tmp_path, grid_steps([400], [64]), measure=long)["n_ctx"] > 9100


def test_a_bound_on_real_prefixes_takes_the_hours_out_of_the_plan(tmp_path):
    facts = facts_of_preset("holo3-35b-a3b")
    steps = grid_steps([1024, 131_072], [128])
    free = make(tmp_path, steps, facts)["estimate"]["seconds"]
    bound = make(tmp_path, steps, facts, up_to=1024)
    seconds = bound["estimate"]["seconds"]
    assert free["baseline"] > 3600 > 600 > seconds["baseline"]
    assert free["depth_rate"] > 3600 > seconds["depth_rate"]
    assert free["fake_prefix"] == seconds["fake_prefix"]
    assert "prefixes of more than 1024 tokens are fabricated only" in describe(bound)


def test_decoding_takes_its_time_in_every_stage(tmp_path):
    turns = MEASURE | {"fidelity": {**MEASURE["fidelity"], "prefix_tokens": [1024]}}
    without = make(tmp_path, grid_steps([1000], [100]), measure=turns)["estimate"]["seconds"]
    decoding = make(tmp_path, grid_steps([1000], [100]), measure=turns | {"decode_tokens": 17})["estimate"]["seconds"]
    assert all(decoding[stage] > without[stage] for stage in ("baseline", "fake_prefix", "fidelity", "depth_rate"))


def test_a_gpu_that_is_not_there_is_refused_and_one_that_is_has_no_times(tmp_path, monkeypatch):
    build = BUILD | {"backend": "cuda"}
    monkeypatch.setattr("fakeprefix.machine.commands.shutil.which", lambda name: None)
    with pytest.raises(EngineError, match="cuda needs a GPU"):
        make(tmp_path, grid_steps([1000], [100]), build=build)
    assert not (tmp_path / "plan.json").exists()
    monkeypatch.setattr("fakeprefix.planning.plan.require_device", lambda backend: ["a card"])
    run = RUN | {"n_gpu_layers": 999}
    plan = make(tmp_path, grid_steps([1000], [100]), build=build, run=run)
    assert plan["estimate"]["seconds"] == {}
    assert "how long it takes on a GPU is not estimated" in describe(plan)
    assert "whether the GPU has that much is not known" in describe(plan)


def test_a_model_must_fit_the_gpu_and_what_is_left_of_it_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr("fakeprefix.planning.plan.require_device", lambda backend: ["a card"])
    steps, facts = grid_steps([1000], [100]), facts_of_preset("holo3-35b-a3b")

    def plan(host_gib, gpu_gib, n_gpu_layers):
        monkeypatch.setattr("fakeprefix.planning.plan.available_memory", lambda: host_gib * 2**30)
        monkeypatch.setattr("fakeprefix.planning.plan.gpu_memory", lambda backend: gpu_gib * 2**30)
        run = RUN | {"n_gpu_layers": n_gpu_layers}
        return make(tmp_path, steps, facts, build=BUILD | {"backend": "cuda"}, run=run)["estimate"]

    everything = plan(4, 80, 999)
    need, on_gpu = everything["memory_bytes"], everything["gpu_memory_bytes"]
    assert [on_gpu[part] for part in ("weights", "kv_cells", "recurrent")] == [
        need[part] for part in ("weights", "kv_cells", "recurrent")
    ]
    assert on_gpu["state"] == 0
    half = plan(16, 8, 20)["gpu_memory_bytes"]
    assert half["weights"] == pytest.approx(facts.weight_bytes * 20 / 41, abs=1)
    assert half["kv_cells"] == need["kv_cells"] // 2
    with pytest.raises(
        ModelError, match=r"GPU memory that was found is 8\.0 GiB; take fewer engine\.run\.n_gpu_layers"
    ):
        plan(64, 8, 999)
    with pytest.raises(ModelError, match=r"this machine has 4\.0 GiB"):
        plan(4, 80, 20)


def test_what_is_decoded_must_fit_the_context_too(tmp_path):
    facts = facts_of_preset("tiny-hybrid")
    steps = grid_steps([1000, facts.n_ctx_train - 110], [100])
    assert make(tmp_path, steps)["n_rejected"] == 0
    assert make(tmp_path, steps, measure=MEASURE | {"decode_tokens": 33})["n_rejected"] == 1
