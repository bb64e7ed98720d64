"""Compile one flavour of the patched engine."""

from pathlib import Path

from fakeprefix.engine.build import build_engine
from fakeprefix.jobs import job

with job(snakemake.log[0]):
    flavour = snakemake.wildcards.flavour
    folder = Path(snakemake.output.manifest).parent
    build_engine(
        flavour,
        folder / "source",
        folder / f"build-{flavour}",
        Path(snakemake.params.tests),
        Path(snakemake.input.manifest),
        Path(snakemake.output.manifest),
        **snakemake.params.build,
    )
