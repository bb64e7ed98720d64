rule synthetic_model:
    """Takes the vocabulary of the engine's tree, gives a generated model."""
    input:
        vocabulary=ancient(f"{ENGINE}/source/models/ggml-vocab-qwen35.gguf"),
    output:
        model=f"{MODELS}/{{preset}}-{{seed}}{{variant}}/model.gguf",
    log:
        f"{RUN}/logs/synthetic_model/{{preset}}-{{seed}}{{variant}}.log",
    conda:
        "../../envs/model.yaml"
    params:
        shape=shape_of,
    script:
        "../scripts/synthetic_model.py"


rule synthetic_projector:
    """Takes nothing, gives the projector of a generated model."""
    output:
        mmproj=f"{MODELS}/{{preset}}-{{seed}}{{variant}}/mmproj.gguf",
    log:
        f"{RUN}/logs/synthetic_projector/{{preset}}-{{seed}}{{variant}}.log",
    conda:
        "../../envs/model.yaml"
    params:
        shape=shape_of,
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
        code=code("model_facts"),
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
