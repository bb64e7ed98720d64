"""Generate a model, or the projector of one."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.model.synthetic import write_model, write_projector

with job(snakemake.log[0]):
    what = (snakemake.wildcards.preset, snakemake.params.shape, int(snakemake.wildcards.seed))
    if snakemake.rule == "synthetic_projector":
        write_projector(*what, Path(snakemake.output.mmproj))
    else:
        write_model(*what, Path(snakemake.input.vocabulary), Path(snakemake.output.model))
