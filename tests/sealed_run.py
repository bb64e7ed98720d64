"""A sealed run folder whose times follow a formula: for what reads runs, without an engine."""

import json
import random
from dataclasses import asdict
from pathlib import Path

import yaml
from fakeprefix.measure.records import Record, join_records
from fakeprefix.planning.steps import PlanRules, plan_file, read_planned
from fakeprefix.report.rebuild import analyse_folder, draw_folder
from fakeprefix.runs.folder import seal
from fakeprefix.settings import resolve
from fakeprefix.storage import read_json, write_json, write_text
from fakeprefix.trace.steps import Step, write_steps

RESOLVED = {
    "memory_type": "hybrid",
    "flash_attn": True,
    "n_ctx": 4096,
    "n_batch": 2048,
    "n_ubatch": 512,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
}
FIDELITY_LENGTH = 512


def cost_ms(prefix: int, new: int) -> float:
    return 2 + 0.5 * new + 1e-4 * new * prefix


def record(arm: str, step: Step, bucket: int, repetition: int, prompt_ms: float, **more) -> Record:
    """A row that registered, of the job ``<arm>/<bucket>`` unless said otherwise."""
    prefix, new = (0, step.total_tokens) if arm == "baseline" else (step.prefix_tokens, step.new_tokens)
    values = {
        "run": "r",
        "host": "h",
        "job": f"{arm}/{bucket}",
        "task_id": step.task_id,
        "step": step.step,
        "bucket": bucket,
        "arm": arm,
        "fill": "tile" if arm == "fake_prefix" else None,
        "policy": step.policy,
        "history": "text" if arm == "baseline" else None,
        "repetition": repetition,
        "order": repetition,
        "started_at": f"2026-01-01T00:{repetition:02}:{step.step:02}+00:00",
        "prefix_tokens": step.prefix_tokens,
        "new_tokens": step.new_tokens,
        "image_tokens": 0,
        "prompt_ms": prompt_ms,
        "install_ms": 1.0,
        "install_bytes": 1000,
        "image_encode_ms": 0.0,
        "cache_n": prefix,
        "prompt_n": new,
        "n_kv": step.total_tokens,
        "seq_pos_max_attn": prefix - 1,
        "seq_pos_max_recr": prefix - 1,
        "status": "ok",
    }
    return Record(**(values | more))


def sealed_run(
    results: Path,
    name: str,
    *,
    slower: float = 1.0,
    host: str = "h",
    n_steps: int = 6,
    repetitions: int = 5,
    task: str = "task",
    drawn: bool = False,
) -> Path:
    """Write a run of one task in two buckets, with turns at one length, analysed and sealed.

    Args:
        slower: factor on all times, the probe's too.
        drawn: with plots and report, which takes seconds.
    """
    folder = results / name
    rng = random.Random(name)
    config = resolve(
        {
            "plan": {"bucket_width": 1024},
            "measure": {"fidelity": {"prefix_tokens": [FIDELITY_LENGTH]}},
            "analysis": {"bootstrap": 200},
        }
    ).as_params()
    write_text(folder / "pipeline" / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    write_text(folder / "pipeline" / "git_commit.txt", "0123456789abcdef\n")
    files = [{"name": "model.gguf", "bytes": 10, "sha256": "ab"}]
    write_json(
        folder / "pipeline" / "model.json",
        {"kind": "synthetic", "preset": "tiny-hybrid", "path": "", "files": files},
    )
    write_json(folder / "pipeline" / "model_facts.json", {"architecture": "qwen35moe"})
    engine = {"series": "465b1f0e7", "series_sha256": "00ff" * 16, "base_tree": "cd", "compiler": "c++ 12"}
    source = {"kind": "git", "commit": "465b1f0e7"}
    write_json(folder / "engine" / "manifest.json", engine | {"flags": {"GGML_NATIVE": "ON"}, "source": source})
    write_json(folder / "engine" / "contract.json", {"n_checks": 1, "n_requests": 1})
    write_json(folder / "engine" / "server_config.json", {"resolved": RESOLVED, "requested": {"threads": 2}})
    write_json(
        folder / "host" / "snapshot.json",
        {
            "host": host,
            "uname": {"release": "6.1", "machine": "x86_64"},
            "cpu": {"model": f"processor of {host}", "warnings": []},
            "memory": {"total_bytes": 2**34, "swap_bytes": 0, "transparent_hugepages": "madvise"},
            "gpus": {"absent": "none"},
        },
    )
    steps = [Step(task, i, 300 + 300 * i, 100 + 10 * (i % 3), decode_s=1.0, exec_s=0.5) for i in range(n_steps)]
    trace = folder / "trace"
    write_steps(trace / "steps.parquet", steps)
    plan_file(
        trace / "steps.parquet",
        PlanRules("reject", 100_000, 1024, 2),
        trace / "plan.parquet",
        trace / "rejected.parquet",
    )
    planned = read_planned(trace / "plan.parquet")
    measured = [item for item in planned if item.status == "measured"]
    counts = {"n_rejected": 0, "n_unmeasurable": 0, "n_measured": len(measured), "n_ctx": 4096}
    write_json(trace / "plan.json", {"n_steps": n_steps, **counts})
    imported = {"format": "steps", "steps": n_steps, "skipped": 0, "reasons": []}
    write_json(trace / "import.json", imported | {"skipped_by_task": {}, "skipped_of_no_task": 0})
    rows = []
    for bucket in sorted({item.bucket for item in measured}):
        chunks, naive = [], {"n_prompt": 512, "n_depth": 0, "samples_ns": [slower * 258e6] * 3}
        calls = [{"purpose": "naive", "results": [naive]}]
        for item in measured:
            step = item.step
            if item.bucket != bucket:
                continue
            cost = slower * cost_ms(step.prefix_tokens, step.new_tokens)
            for repetition in range(repetitions):
                for arm, factor in (("fake_prefix", 1), ("baseline", 10)):
                    time_ms = factor * cost * rng.uniform(0.99, 1.01)
                    rows.append(record(arm, step, bucket, repetition, time_ms))
            samples = {"n_prompt": step.new_tokens, "n_depth": step.prefix_tokens, "samples_ns": [cost * 1e6] * 3}
            calls.append({"purpose": "matched", "results": [samples]})
            chunks.append({"task_id": task, "policy": "keep_all", "step": step.step, "chunks": [step.new_tokens]})
        write_json(folder / "raw" / "depth_rate" / f"{bucket}.json", {"steps": chunks, "calls": calls})
        probe = Step("(probe)", 0, 1024, 128)
        for repetition in range(repetitions):
            for arm in ("fake_prefix", "baseline"):
                time_ms = slower * 50 * rng.uniform(0.99, 1.01)
                rows.append(record("probe", probe, bucket, repetition, time_ms, job=f"{arm}/{bucket}"))
    turn = Step("(fidelity)", 0, FIDELITY_LENGTH, 64)
    for repetition in range(12):
        for arm, fill, twin in (
            ("state_restore", None, 0),
            ("state_restore", None, 1),
            ("fake_prefix", "zero", 0),
            ("fake_prefix", "random", 0),
            ("fake_prefix", "tile", 0),
        ):
            time_ms = slower * 40 * rng.uniform(0.995, 1.005)
            job = f"fidelity/{FIDELITY_LENGTH}"
            rows.append(record(arm, turn, 0, repetition, time_ms, job=job, fill=fill, twin=twin))
    logits = {"prefix_tokens": FIDELITY_LENGTH, "new_tokens": 64, "logits": {"restored": [[1, -0.5], [2, -1.5]]}}
    write_json(folder / "raw" / "fidelity" / f"{FIDELITY_LENGTH}.logits.json", logits)
    raw = folder / "raw" / "rows.jsonl"
    write_text(raw, "".join(json.dumps(asdict(row)) + "\n" for row in rows))
    join_records([raw], folder / "measurements.parquet")
    found = analyse_folder(folder)
    if drawn:
        draw_folder(folder, found)
    seal(folder)
    assert read_json(folder / "summary.json")["registered"]
    return folder
