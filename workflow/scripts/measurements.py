"""Join the raw rows into one table."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.records import join_records

with job(snakemake.log[0]):
    join_records([Path(file) for file in snakemake.input.rows], Path(snakemake.output.table))
