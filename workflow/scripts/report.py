"""The page that a person reads."""

from pathlib import Path

from fakeprefix.analysis.report import write_report
from fakeprefix.jobs import job

with job(snakemake.log[0]):
    write_report(Path(snakemake.output.page).parent, Path(snakemake.params.template))
