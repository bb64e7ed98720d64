"""Generate a model."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.model.synthetic import write_manifest, write_model

with job(snakemake.log[0]):
    preset, seed = snakemake.wildcards.preset, int(snakemake.wildcards.seed)
    model, mmproj = Path(snakemake.output.model), Path(snakemake.output.mmproj)
    write_model(preset, seed, Path(snakemake.input.vocabulary), model, mmproj)
    write_manifest(Path(snakemake.output.manifest), preset, seed, model, mmproj)
