"""Measure one bucket with one arm."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.protocol import ServerLife, measure_bucket, steps_of_bucket
from fakeprefix.plan import MEASURED, read_plan
from fakeprefix.storage import read_json
from fakeprefix.trace.steps import read_steps

with job(snakemake.log[0]):
    arm, bucket = snakemake.params.arm, int(snakemake.wildcards.bucket)
    life = ServerLife.of_run(
        Path(snakemake.output.rows),
        f"{arm}/{bucket}",
        snakemake.params.server,
        snakemake.params.run,
        snakemake.params.measure,
        read_json(snakemake.input.summary),
        snakemake.input.model,
        snakemake.input.mmproj,
        snakemake.input.server_config,
        snakemake.log[0],
    )
    measure_bucket(
        life,
        arm,
        bucket,
        steps_of_bucket(read_plan(Path(snakemake.input.plan)), bucket, MEASURED),
        list(read_steps(Path(snakemake.input.steps))),
        Path(snakemake.input.images),
        snakemake.params.measure["repetitions"][arm],
    )
