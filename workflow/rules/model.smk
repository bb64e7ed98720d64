rule synthetic_model:
    """Takes the vocabulary of the engine's tree, gives a generated model, its projector and their digests."""
    input:
        vocabulary=ancient(f"{ENGINE}/source/models/ggml-vocab-qwen35.gguf"),
    output:
        model=f"{MODELS}/{{preset}}-{{seed}}/model.gguf",
        mmproj=f"{MODELS}/{{preset}}-{{seed}}/mmproj.gguf",
        manifest=f"{MODELS}/{{preset}}-{{seed}}/manifest.json",
    log:
        f"{RUN}/logs/synthetic_model/{{preset}}-{{seed}}.log",
    conda:
        "../../envs/model.yaml"
    script:
        "../scripts/synthetic_model.py"


rule model_facts:
    """Takes the user's files or the name of a shape, gives what planning needs to know of the model."""
    input:
        files=[model_file(), *mmproj_file()] if CONFIG["model"]["kind"] == "gguf" else [],
    output:
        facts=f"{RUN}/pipeline/model_facts.json",
    log:
        f"{RUN}/logs/model_facts/model_facts.log",
    conda:
        "../../envs/model.yaml"
    params:
        model=CONFIG["model"],
        code=code("model/"),
    script:
        "../scripts/model_facts.py"


rule model:
    """Takes the model's files, gives their names, sizes and digests in the run folder."""
    input:
        model=ancient(model_file()),
        mmproj=ancient(mmproj_file()),
    output:
        manifest=f"{RUN}/pipeline/model.json",
    log:
        f"{RUN}/logs/model/model.log",
    conda:
        "../../envs/model.yaml"
    params:
        model=CONFIG["model"],
    script:
        "../scripts/model.py"
