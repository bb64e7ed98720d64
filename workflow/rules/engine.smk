rule engine_source:
    """Takes the source that the configuration names, gives a patched copy of it."""
    output:
        manifest=f"{ENGINE}/source.json",
        vocabulary=f"{ENGINE}/source/models/ggml-vocab-qwen35.gguf",
    log:
        f"{RUN}/logs/engine_source/engine_source.log",
    retries: 1
    conda:
        "../../envs/engine.yaml"
    params:
        source=CONFIG["engine"]["source"],
        patches=SERIES.folder.parent,
        series=CONFIG["engine"]["series"],
    script:
        "../scripts/engine_source.py"


rule engine_build:
    """Takes the patched source, gives a build of it: fast for timing, checked with asserts and sanitizers."""
    input:
        manifest=ancient(f"{ENGINE}/source.json"),
    output:
        manifest=f"{ENGINE}/{{flavour}}.json",
    log:
        f"{RUN}/logs/engine_build/{{flavour}}.log",
    conda:
        "../../envs/engine.yaml"
    threads: workflow.cores
    params:
        build=build_settings,
        tests=SERIES.folder / "tests",
    script:
        "../scripts/engine_build.py"


rule contract:
    """Takes the checked build and the tiny model, gives the verdict of the contract tests."""
    input:
        build=ancient(f"{ENGINE}/checked.json"),
        model=ancient(synthetic("tiny-hybrid", 1, {}, "model.gguf")),
        mmproj=ancient(synthetic("tiny-hybrid", 1, {}, "mmproj.gguf")),
    output:
        contract=CONTRACT,
    log:
        f"{RUN}/logs/contract/contract.log",
    conda:
        "../../envs/engine.yaml"
    threads: workflow.cores
    script:
        "../scripts/contract.py"


rule engine:
    """Takes the timing build and the contract's verdict, gives their provenance in the run folder."""
    input:
        build=ancient(f"{ENGINE}/fast.json"),
        contract=ancient(CONTRACT),
    output:
        manifest=f"{RUN}/engine/manifest.json",
        diff=f"{RUN}/engine/git_diff.patch",
        contract=f"{RUN}/engine/contract.json",
    log:
        f"{RUN}/logs/engine/engine.log",
    conda:
        "../../envs/engine.yaml"
    script:
        "../scripts/engine.py"


rule smoke:
    """Takes the timing build and the user's model, gives what the server settled on after one good request."""
    input:
        engine=f"{RUN}/engine/manifest.json",
        plan=f"{RUN}/trace/plan.parquet",
        summary=f"{RUN}/trace/plan.json",
        model=ancient(model_file()),
        mmproj=ancient(mmproj_file()),
    output:
        server_config=f"{RUN}/engine/server_config.json",
    log:
        f"{RUN}/logs/smoke/smoke.log",
    conda:
        "../../envs/measure.yaml"
    threads: workflow.cores
    resources:
        timing=1,
    params:
        server=SERVER,
        run=CONFIG["engine"]["run"],
        backend=CONFIG["engine"]["build"]["backend"],
        measure=CONFIG["measure"],
        code=code("smoke"),
    script:
        "../scripts/smoke.py"


rule test_resources:
    """Takes both builds, the contract's verdict and the tiny model: what the engine tests need."""
    input:
        f"{ENGINE}/fast.json",
        f"{ENGINE}/checked.json",
        CONTRACT,
        synthetic("tiny-hybrid", 1, {}, "model.gguf"),
        synthetic("tiny-hybrid", 1, {}, "mmproj.gguf"),
