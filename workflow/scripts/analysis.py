"""Tables, replay, verdict and plots."""

from pathlib import Path

from fakeprefix.analysis.agreement import Settings, analyse, write_analysis
from fakeprefix.analysis.plots import draw_all
from fakeprefix.jobs import job
from fakeprefix.storage import read_json

with job(snakemake.log[0]):
    resolved = read_json(snakemake.input.server_config)["resolved"]
    found = analyse(
        Path(snakemake.input.measurements),
        Path(snakemake.input.plan),
        Path(snakemake.input.rejected),
        [Path(file) for file in snakemake.input.rates],
        [Path(file) for file in snakemake.input.logits],
        Settings(
            config=snakemake.params.analysis,
            fill=snakemake.params.fill,
            plan=read_json(snakemake.input.summary),
            imported=read_json(snakemake.input.imported),
            memory_type=resolved["memory_type"],
            n_ubatch=resolved["n_ubatch"],
        ),
    )
    write_analysis(found, Path(snakemake.output.verdict).parent)
    draw_all(found, Path(snakemake.output.agreement).parent)
