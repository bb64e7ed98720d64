"""Run the independent benchmark for one bucket."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.depth_rate import bench_depths
from fakeprefix.plan import MEASURED, read_planned
from fakeprefix.server.settings import EngineSettings
from fakeprefix.storage import read_json

with job(snakemake.log[0]):
    planned = read_planned(Path(snakemake.input.plan), MEASURED, int(snakemake.wildcards.bucket))
    bench_depths(
        [item.step for item in planned],
        Path(snakemake.params.bench),
        EngineSettings.from_config(snakemake.params.run, read_json(snakemake.input.summary)["n_ctx"]),
        Path(snakemake.input.model),
        snakemake.params.repetitions,
        Path(snakemake.output.samples),
        Path(snakemake.log[0]).with_suffix(".bench.log"),
    )
