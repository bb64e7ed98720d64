rule trace:
    """Takes the configured source of steps, gives step records and the folder with their screenshots."""
    input:
        facts=f"{RUN}/pipeline/model_facts.json",
        file=[CONFIG["trace"]["path"]] if CONFIG["trace"]["source"] == "file" else [],
        # conversations are counted by the model's own tokenizer
        engine=f"{RUN}/engine/manifest.json" if TRACE_FORMAT in CONVERSATIONS else [],
        model=ancient([model_file()]) if TRACE_FORMAT in CONVERSATIONS else [],
    output:
        steps=f"{RUN}/trace/steps.parquet",
        images=directory(f"{RUN}/trace/images"),
        summary=f"{RUN}/trace/import.json",
    log:
        f"{RUN}/logs/trace/trace.log",
    conda:
        "../../envs/trace.yaml"
    params:
        trace=CONFIG["trace"],
        format=TRACE_FORMAT,
        server=SERVER,
        run=CONFIG["engine"]["run"],
        code=code("trace"),
    script:
        "../scripts/trace.py"


checkpoint plan:
    """Takes the steps and the model's facts, gives buckets, refused steps and the estimated time and memory."""
    input:
        steps=f"{RUN}/trace/steps.parquet",
        facts=f"{RUN}/pipeline/model_facts.json",
    output:
        plan=f"{RUN}/trace/plan.parquet",
        rejected=f"{RUN}/trace/rejected.parquet",
        summary=f"{RUN}/trace/plan.json",
    log:
        f"{RUN}/logs/plan/plan.log",
    conda:
        "../../envs/trace.yaml"
    params:
        plan=CONFIG["plan"],
        on_hole=CONFIG["trace"]["on_hole"],
        measure=CONFIG["measure"],
        engine={name: CONFIG["engine"][name] for name in ("build", "run")},
        synthetic=CONFIG["model"]["kind"] == "synthetic",
        code=code("plan"),
    script:
        "../scripts/plan.py"
