rule seal:
    """Takes a complete run folder, gives a manifest with the digest of every file; written last."""
    input:
        report=f"{RUN}/report.html",
        replay=f"{RUN}/replay.parquet",
        host=f"{RUN}/host/snapshot.json",
        engine=f"{RUN}/engine/manifest.json",
    output:
        manifest=f"{RUN}/manifest.json",
    log:
        f"{RUN}/logs/seal/seal.log",
    conda:
        "../../envs/analysis.yaml"
    script:
        "../scripts/seal.py"


rule archive:
    """Takes a sealed run, gives one file that can be kept, verified and restored."""
    input:
        manifest=f"{RUN}/manifest.json",
    output:
        archive=f"results/archive/{RUN_NAME}.tar.zst",
    log:
        f"{RUN}/logs/archive/archive.log",
    conda:
        "../../envs/analysis.yaml"
    script:
        "../scripts/archive.py"
