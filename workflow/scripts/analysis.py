"""Tables, replay, verdict and plots."""

from pathlib import Path

from fakeprefix.analysis.agreement import Settings, analyse, write_analysis
from fakeprefix.jobs import job
from fakeprefix.report.plots import draw_all

with job(snakemake.log[0]):
    found = analyse(
        Path(snakemake.input.measurements),
        Path(snakemake.input.plan),
        Path(snakemake.input.rejected),
        [Path(file) for file in snakemake.input.rates],
        [Path(file) for file in snakemake.input.logits],
        Settings.of_run(
            snakemake.params.analysis,
            snakemake.params.fill,
            Path(snakemake.input.summary),
            Path(snakemake.input.imported),
            Path(snakemake.input.server_config),
        ),
    )
    write_analysis(found, Path(snakemake.output.verdict).parent)
    draw_all(found, Path(snakemake.output.agreement).parent)
