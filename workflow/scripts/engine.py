"""Provenance of the engine in the run folder."""

from pathlib import Path

from fakeprefix.engine.build import copy_provenance
from fakeprefix.engine.provenance import with_provenance
from fakeprefix.jobs import job
from fakeprefix.storage import read_json, write_json

with job(snakemake.log[0]):
    build, manifest = Path(snakemake.input.build), Path(snakemake.output.manifest)
    copy_provenance(build.parent / "source", build, manifest.parent)
    # an engine built by an earlier version is not built again, and its manifests name no real commit
    write_json(manifest, with_provenance(read_json(manifest)))
    contract = read_json(snakemake.input.contract)
    write_json(snakemake.output.contract, contract | {"build": with_provenance(contract["build"])})
