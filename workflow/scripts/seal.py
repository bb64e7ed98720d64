"""Seal the run folder."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.runs.folder import announce, seal

with job(snakemake.log[0]):
    folder = Path(snakemake.output.manifest).parent
    seal(folder)
    announce(folder)
