"""The whole workflow on a cut-down configuration, in a copy of the project."""

import json
import os
from itertools import pairwise

import pandas as pd
import pytest
from conftest import contract_verdict
from fakeprefix.report.rebuild import rebuild
from fakeprefix.runs.archive import verify_archive
from fakeprefix.runs.folder import verify
from fakeprefix.storage import read_json
from small_run import CUT_DOWN, copy_project, snakemake


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    contract_verdict()
    folder = copy_project(tmp_path_factory.mktemp("project"))
    assert "baseline" in snakemake(folder, "-n", "baseline").stdout
    assert sorted(path.name for path in (folder / "results").iterdir()) == [".gitkeep"], "a dry run has written"
    done = snakemake(folder)
    assert "verdict:" in done.stderr
    return folder


@pytest.fixture(scope="module")
def run(project):
    return (project / "results" / "current").resolve()


pytestmark = pytest.mark.workflow


def test_the_run_folder_is_complete_and_sealed(run):
    expected = """host/snapshot.json host/lscpu.txt engine/manifest.json engine/git_diff.patch engine/contract.json
        engine/server_config.json pipeline/config.yaml pipeline/git_commit.txt trace/steps.parquet
        trace/rejected.parquet
        raw/fidelity/300.jsonl raw/fidelity/512.logits.json raw/state_restore/1.jsonl raw/cached_prefix/2.jsonl
        analysis/fidelity.parquet analysis/fidelity.svg analysis/running_order.png
        trace/plan.parquet raw/baseline/1.jsonl raw/baseline/2.jsonl raw/fake_prefix/1.jsonl raw/depth_rate/2.json
        measurements.parquet replay.parquet replay.jsonl analysis/agreement.parquet analysis/agreement.csv
        analysis/tasks.parquet analysis/prefill_against_depth.svg report.html summary.json manifest.json"""
    for name in expected.split():
        assert (run / name).is_file(), name
    assert run.name.endswith("_small")
    assert verify(run) == []


def test_every_repetition_registered_with_exact_counts(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    assert (rows.status == "ok").all(), rows.error.dropna().tolist()
    fake = rows[rows.arm == "fake_prefix"]
    assert len(fake)
    assert (fake.cache_n == fake.prefix_tokens).all()
    assert (fake.prompt_n == fake.new_tokens).all()
    assert (fake.seq_pos_max_recr == fake.prefix_tokens - 1).all()
    baseline = rows[rows.arm == "baseline"]
    assert (baseline.cache_n == 0).all()
    assert (baseline.prompt_n == baseline.prefix_tokens + baseline.new_tokens).all()
    of_steps = rows[~rows.job.str.startswith("fidelity/") & ~rows.arm.isin(["probe", "prime"])]
    assert of_steps.arm.value_counts().to_dict() == {
        "baseline": 4 * 2,
        "fake_prefix": 4 * 3,
        "state_restore": 4 * 2,
        "cached_prefix": 4 * 2,
    }
    assert (rows.arm == "probe").sum() == 2 * (2 + 3 + 2 + 2) + 2 * 10 + 2 * (3 + 3)
    assert set(rows.job[rows.arm == "probe"]) >= {"depth_rate/1", "depth_rate/2", "fidelity/300", "baseline/1"}


def test_a_restored_or_cached_prefix_is_never_prefilled_again(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    real = rows[rows.arm.isin(["state_restore", "cached_prefix"])]
    assert (real.cache_n == real.prefix_tokens).all()
    assert (real.prompt_n == real.new_tokens).all()
    primes = rows[rows.arm == "prime"]
    assert (primes.cache_n == 0).all()
    for job, group in rows[rows.arm == "state_restore"].groupby("job"):
        own = primes[primes.job == job]
        # for the logits the cache needs a prime of its own, and each of its turns one more
        turns = (rows[rows.job == job].arm == "cached_prefix").sum()
        assert len(own) == group.prefix_tokens.nunique() + (turns + 1 if turns else 0), job
        assert (group.install_bytes > 0).all()


def test_all_arms_take_turns_in_balanced_order_with_the_same_content(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    turns = rows[(rows.job == "fidelity/300") & ~rows.arm.isin(["probe", "prime"])]
    names = turns.arm + turns.fill.fillna("") + turns.twin.astype(str)
    assert names.value_counts().to_dict() == {
        "cached_prefix0": 10,
        "fake_prefixrandom0": 10,
        "fake_prefixtile0": 10,
        "fake_prefixzero0": 10,
        "state_restore0": 10,
        "state_restore1": 10,
    }
    firsts = names.groupby(turns.repetition).first()
    assert firsts.nunique() >= 5


def test_real_prefixes_give_the_same_logits_however_they_came_to_be(run):
    (row,) = [row for row in read_json(run / "summary.json")["fidelity"]["logits"] if row["prefix_tokens"] == 300]
    assert row["cached_restored"]["difference"] == 0
    assert row["cached_restored"]["shared"] == row["cached_restored"]["top"] > 10


def test_no_two_timing_jobs_overlapped(run):
    rows = pd.read_parquet(run / "measurements.parquet")
    rows["start"] = pd.to_datetime(rows.started_at)
    # the benchmark lies between two servers of one job
    spans = sorted((group.start.min(), group.start.max()) for _, group in rows.groupby("job"))
    assert all(later[0] > earlier[1] for earlier, later in pairwise(spans))


def test_the_verdict_the_replay_and_the_report_are_about_this_run(run):
    summary = read_json(run / "summary.json")
    assert summary["registered"] is True
    assert summary["rows"] == 4 * (2 + 3 + 2 + 2) + 10 * (6 + 5)
    assert summary["fidelity"]["verdict"] in ("equivalent", "different")
    assert summary["diagnosis"]["finding"] in ("neither", "keys not read")
    assert summary["diagnosis"]["counters"]["cache_n"] == 12
    lines = [json.loads(line) for line in (run / "replay.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert {line["source"] for line in lines} <= {"measured", "fitted", "extrapolated"}
    page = (run / "report.html").read_text()
    assert run.name in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def test_the_engines_diff_is_the_series_and_nothing_else(run):
    diff = (run / "engine" / "git_diff.patch").read_text()
    assert "n_fake_cached" in diff
    assert "package-lock.json" not in diff
    assert read_json(run / "engine" / "server_config.json")["resolved"]["memory_type"] == "hybrid"


def test_a_second_call_has_nothing_to_do(project, run):
    before = (run / "manifest.json").read_bytes()
    done = snakemake(project)
    assert "Nothing to be done" in done.stderr
    assert (run / "manifest.json").read_bytes() == before
    assert sum(path.is_dir() and not path.is_symlink() for path in (project / "results").iterdir()) == 2


def test_a_sealed_run_is_packed_without_being_touched(project, run):
    seal = (run / "manifest.json").read_bytes()
    snakemake(project, "archive")
    archive = project / "results" / "archive" / f"{run.name}.tar.zst"
    assert verify_archive(archive) == []
    assert (run / "manifest.json").read_bytes() == seal
    assert "Nothing to be done" in snakemake(project, "archive").stderr


def test_analysis_and_report_come_out_the_same_without_the_engine(run, tmp_path):
    found = rebuild(run, tmp_path / run.name)
    assert found["other"] == []
    assert "report.html" in found["same"]


def test_snakemakes_own_report_has_captions_and_labels(project, run, tmp_path):
    # it loads the scripts of its pages from the network while it is made, which a test must not need
    (tmp_path / "sitecustomize.py").write_text(
        "import types, requests\nrequests.get = lambda *_, **__: types.SimpleNamespace(status_code=200, text='')\n"
    )
    snakemake(project, "--report", str(tmp_path / "own.html"), environment={"PYTHONPATH": str(tmp_path)})
    page = (tmp_path / "own.html").read_text()
    for words in ("Plots", "Tables", "Report", "waterfall", "agreement by step, kind and bucket", "verdict, tables"):
        assert words in page, words
    # of a caption
    assert "Every repetition in the order in which it ran" in page


def test_changed_code_that_checks_the_engine_reruns_everything_and_not_only_the_check(project):
    changed = project / "workflow" / "fakeprefix" / "server" / "client.py"
    before = changed.read_text()
    changed.write_text(before + "# another version\n")
    try:
        planned = snakemake(project, "-n").stdout
    finally:
        changed.write_text(before)
    for rule in ("contract", "engine", "plan", "measure_fidelity", "seal"):
        assert f"rule {rule}:" in planned or f"checkpoint {rule}:" in planned, rule


def test_a_touched_script_reruns_nothing(project):
    os.utime(project / "workflow" / "scripts" / "measure.py")
    assert "Nothing to be done" in snakemake(project).stderr


def test_forcing_an_arm_reruns_it_keeps_the_old_rows_and_breaks_the_seal_visibly(project, run):
    old = (run / "raw" / "fake_prefix" / "1.jsonl").read_text()
    baseline = (run / "raw" / "baseline" / "1.jsonl").read_bytes()
    snakemake(project, "-R", "measure_fake_prefix")
    superseded = list((run / "raw" / "superseded" / "fake_prefix").iterdir())
    assert len(superseded) == 2
    assert old in [path.read_text() for path in superseded]
    assert (run / "raw" / "fake_prefix" / "1.jsonl").read_text() != old
    assert (run / "raw" / "baseline" / "1.jsonl").read_bytes() == baseline
    assert len(read_json(run / "manifest.json")["broken_seals"]) == 1
    assert verify(run) == []


def test_forcing_a_target_is_refused_with_the_name_of_the_rule(project, run):
    before = (run / "manifest.json").read_bytes()
    done = snakemake(project, "-R", "fake_prefix", check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("error: -R fake_prefix: ")
    assert "-R measure_fake_prefix" in done.stderr.splitlines()[-1]
    assert (run / "manifest.json").read_bytes() == before


def test_triggers_that_the_user_gives_are_kept(project):
    done = snakemake(project, "-n", "--rerun-triggers", "code")
    assert "Params have changed" not in done.stdout + done.stderr
    assert "Updated input files" not in done.stdout + done.stderr


def test_an_interrupted_run_continues_and_leaves_finished_buckets_untouched(project, run):
    kept = (run / "raw" / "baseline" / "1.jsonl").stat().st_mtime_ns
    # as if it had been killed while the last bucket was measured: nothing that follows is there
    for name in ("raw/baseline/2.jsonl", "measurements.parquet", "summary.json", "report.html", "manifest.json"):
        (run / name).unlink()
    snakemake(project)
    assert (run / "raw" / "baseline" / "1.jsonl").stat().st_mtime_ns == kept
    assert (run / "raw" / "baseline" / "2.jsonl").is_file()
    assert list((run / "raw" / "superseded" / "baseline").iterdir())
    assert verify(run) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measure": {"repetitons": {}}}, "did you mean 'repetitions'?"),
        ({"run": "2020-01-01_000000_nowhere"}, "there is no such run folder"),
        ({"trace": {"source": "file", "path": "nowhere.jsonl"}}, "nowhere.jsonl"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_a_failure(project, change, message):
    done = snakemake(project, "-n", config=CUT_DOWN | change, check=False)
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and message in last
    assert "Traceback" not in done.stdout + done.stderr
    assert "WorkflowError" not in done.stdout + done.stderr


def test_the_error_of_a_job_is_the_last_line(project):
    (project / "bad.jsonl").write_text('{"task_id": "t1", "step": 0, "prefix_tokens": 300, "new_tokens": -1}\n')
    other = CUT_DOWN | {"trace": {"source": "file", "path": "bad.jsonl"}}
    done = snakemake(project, "plan", config=other, check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("error: bad.jsonl")
    assert list((project / ".snakemake").glob("errors-*")) == []


def with_margin(margin):
    return CUT_DOWN | {"analysis": CUT_DOWN["analysis"] | {"agreement_margin": margin}}


def test_another_margin_analyses_the_same_rows_anew(project, run):
    raw = {path: path.stat().st_mtime_ns for path in (run / "raw").rglob("*.json*")}
    report = (run / "report.html").stat().st_mtime_ns
    snakemake(project, config=with_margin(40.0))
    assert (project / "results" / "current").resolve() == run
    assert {path: path.stat().st_mtime_ns for path in (run / "raw").rglob("*.json*")} == raw
    assert (run / "report.html").stat().st_mtime_ns != report
    seals = read_json(run / "manifest.json")["broken_seals"]
    assert seals[-1]["analysed_otherwise"] == ["analysis.agreement_margin"]
    assert read_json(run / "pipeline" / "identity.json")["analysis"]["analysis.agreement_margin"] == 40.0
    assert verify(run) == []
    assert "Nothing to be done" in snakemake(project, config=with_margin(40.0)).stderr


def test_a_run_is_not_continued_with_settings_of_another_experiment(project, run):
    other = with_margin(40.0) | {"measure": CUT_DOWN["measure"] | {"fill": "zero"}, "run": run.name}
    done = snakemake(project, config=other, check=False)
    assert done.returncode != 0
    assert "is another experiment, it differs in: measure.fill" in done.stdout + done.stderr
    assert verify(run) == []


def test_a_damaged_sealed_run_is_named_and_left_as_it_is(project, run):
    table = run / "measurements.parquet"
    whole = table.read_bytes()
    table.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    changed = snakemake(project, config=with_margin(40.0), check=False)
    table.unlink()
    missing = snakemake(project, "-n", config=with_margin(40.0), check=False)
    table.write_bytes(whole)
    assert changed.returncode != 0
    assert "changed: measurements.parquet" in changed.stdout + changed.stderr
    assert missing.returncode != 0
    assert "missing: measurements.parquet" in missing.stdout + missing.stderr
    assert verify(run) == []


def test_another_configuration_starts_another_run(project, run):
    other = CUT_DOWN | {"run_name": "other", "plan": CUT_DOWN["plan"] | {"bucket_width": 256}}
    done = snakemake(project, "plan", config=other)
    assert "measured directly" in done.stderr
    assert (project / "results" / "current").resolve() != run
    assert (project / "results" / "current").resolve().name.endswith("_other")
    snakemake(project, "-n")
