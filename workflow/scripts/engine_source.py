"""Fetch, verify and patch the engine's source."""

from pathlib import Path

from fakeprefix.engine.source import load_series, prepare_source
from fakeprefix.jobs import job

with job(snakemake.log[0]):
    manifest = Path(snakemake.output.manifest)
    series = load_series(Path(snakemake.params.patches), snakemake.params.series)
    prepare_source(snakemake.params.source, series, Path("resources/downloads"), manifest.parent / "source", manifest)
