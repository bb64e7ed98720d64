"""The page that a person reads."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.report.page import write_report

with job(snakemake.log[0]):
    write_report(Path(snakemake.output.page).parent, Path(snakemake.params.template))
