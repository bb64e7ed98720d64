"""Run the independent benchmark for one bucket."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.depth_rate import bench_depths
from fakeprefix.measure.protocol import steps_of_bucket
from fakeprefix.plan import MEASURED, read_plan
from fakeprefix.server.settings import EngineSettings
from fakeprefix.storage import read_json

with job(snakemake.log[0]):
    bench_depths(
        steps_of_bucket(read_plan(Path(snakemake.input.plan)), int(snakemake.wildcards.bucket), MEASURED),
        Path(snakemake.params.bench),
        EngineSettings.from_config(snakemake.params.run, read_json(snakemake.input.summary)["n_ctx"]),
        Path(snakemake.input.model),
        snakemake.params.repetitions,
        Path(snakemake.output.samples),
        Path(snakemake.log[0]).with_suffix(".bench.log"),
    )
