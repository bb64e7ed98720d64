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
