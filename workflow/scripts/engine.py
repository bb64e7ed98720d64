"""Provenance of the engine in the run folder."""

from pathlib import Path

from fakeprefix.engine.build import copy_provenance
from fakeprefix.jobs import job
from fakeprefix.storage import read_json, write_json

with job(snakemake.log[0]):
    build = Path(snakemake.input.build)
    copy_provenance(build.parent / "source", build, Path(snakemake.output.manifest).parent)
    write_json(snakemake.output.contract, read_json(snakemake.input.contract))
