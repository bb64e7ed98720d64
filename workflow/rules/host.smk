rule host:
    """Takes nothing, gives a snapshot of this machine and of this repository."""
    output:
        snapshot=f"{RUN}/host/snapshot.json",
        uname=f"{RUN}/host/uname.txt",
        lscpu=f"{RUN}/host/lscpu.txt",
        free=f"{RUN}/host/free.txt",
        df=f"{RUN}/host/df.txt",
        packages=f"{RUN}/host/packages.txt",
        commit=f"{RUN}/pipeline/git_commit.txt",
        diff=f"{RUN}/pipeline/git_diff.patch",
    log:
        f"{RUN}/logs/host/host.log",
    conda:
        "../../envs/host.yaml"
    params:
        engine_source=CONFIG["engine"]["source"]["path"],
    script:
        "../scripts/host.py"
