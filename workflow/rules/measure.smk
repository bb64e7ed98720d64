rule measure_baseline:
    """Takes the plan, the timing build and the model, gives every repetition of whole prompts of one bucket."""
    input:
        plan=f"{RUN}/trace/plan.parquet",
        steps=f"{RUN}/trace/steps.parquet",
        images=f"{RUN}/trace/images",
        summary=f"{RUN}/trace/plan.json",
        host=ancient(f"{RUN}/host/snapshot.json"),
        engine=f"{RUN}/engine/manifest.json",
        server_config=f"{RUN}/engine/server_config.json",
        model=ancient(model_file()),
        mmproj=ancient(mmproj_file()),
    output:
        rows=f"{RUN}/raw/baseline/{{bucket}}.jsonl",
    log:
        f"{RUN}/logs/baseline/{{bucket}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    resources:
        timing=1,
    params:
        server=SERVER,
        run=CONFIG["engine"]["run"],
        measure=CONFIG["measure"],
        code=code("measure"),
    script:
        "../scripts/measure.py"


use rule measure_baseline as measure_fake_prefix with:
    output:
        rows=f"{RUN}/raw/fake_prefix/{{bucket}}.jsonl",
    log:
        f"{RUN}/logs/fake_prefix/{{bucket}}.log",


use rule measure_baseline as measure_state_restore with:
    output:
        rows=f"{RUN}/raw/state_restore/{{bucket}}.jsonl",
    log:
        f"{RUN}/logs/state_restore/{{bucket}}.log",


use rule measure_baseline as measure_cached_prefix with:
    output:
        rows=f"{RUN}/raw/cached_prefix/{{bucket}}.jsonl",
    log:
        f"{RUN}/logs/cached_prefix/{{bucket}}.log",


rule measure_fidelity:
    """Takes the plan's context, the timing build and the model, gives turns of all arms over one prefix length."""
    input:
        summary=f"{RUN}/trace/plan.json",
        host=ancient(f"{RUN}/host/snapshot.json"),
        engine=f"{RUN}/engine/manifest.json",
        server_config=f"{RUN}/engine/server_config.json",
        model=ancient(model_file()),
        mmproj=ancient(mmproj_file()),
    output:
        rows=f"{RUN}/raw/fidelity/{{length}}.jsonl",
        logits=f"{RUN}/raw/fidelity/{{length}}.logits.json",
    log:
        f"{RUN}/logs/fidelity/{{length}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    resources:
        timing=1,
    params:
        server=SERVER,
        run=CONFIG["engine"]["run"],
        measure=CONFIG["measure"],
        code=code("fidelity"),
    script:
        "../scripts/fidelity.py"


rule measure_depth_rate:
    """Takes the plan, the timing build and the model, gives the benchmark's samples of one bucket, and probes."""
    input:
        plan=f"{RUN}/trace/plan.parquet",
        summary=f"{RUN}/trace/plan.json",
        host=ancient(f"{RUN}/host/snapshot.json"),
        engine=f"{RUN}/engine/manifest.json",
        server_config=f"{RUN}/engine/server_config.json",
        model=ancient(model_file()),
        mmproj=ancient(mmproj_file()),
    output:
        samples=f"{RUN}/raw/depth_rate/{{bucket}}.json",
        before=f"{RUN}/raw/depth_rate/{{bucket}}.before.jsonl",
        after=f"{RUN}/raw/depth_rate/{{bucket}}.after.jsonl",
    log:
        f"{RUN}/logs/depth_rate/{{bucket}}.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    resources:
        timing=1,
    params:
        server=SERVER,
        bench=SERVER.replace("llama-server", "llama-bench"),
        run=CONFIG["engine"]["run"],
        measure=CONFIG["measure"],
        code=code("depth_rate"),
    script:
        "../scripts/depth_rate.py"


rule measurements:
    """Takes the raw rows of all arms and buckets, gives one typed table of them."""
    input:
        rows=all_rows,
    output:
        table=f"{RUN}/measurements.parquet",
    log:
        f"{RUN}/logs/measurements/measurements.log",
    conda:
        "../../envs/measure.yaml"
    params:
        code=code("measurements"),
    script:
        "../scripts/measurements.py"


rule baseline:
    """Takes the baseline rows of all buckets."""
    input:
        baseline_rows,


rule fake_prefix:
    """Takes the fake-prefix rows of all buckets."""
    input:
        fake_prefix_rows,


rule state_restore:
    """Takes the rows over restored prefixes of all buckets."""
    input:
        state_restore_rows,


rule cached_prefix:
    """Takes the rows over cached prefixes of all buckets."""
    input:
        cached_prefix_rows,


rule fidelity:
    """Takes the turns of all arms over all prefix lengths."""
    input:
        fidelity_rows(),


rule depth_rate:
    """Takes the benchmark's samples of all buckets."""
    input:
        depth_rates,
