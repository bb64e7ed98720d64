"""Measure one bucket with one arm."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.protocol import ServerLife, measure_bucket
from fakeprefix.plan import MEASURED, read_planned
from fakeprefix.storage import read_json
from fakeprefix.trace.steps import read_tasks

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
    steps = [item.step for item in read_planned(Path(snakemake.input.plan), MEASURED, bucket)]
    measure_bucket(
        life,
        arm,
        bucket,
        steps,
        read_tasks(Path(snakemake.input.steps), {step.task_id for step in steps}),
        Path(snakemake.input.images),
        snakemake.params.measure["repetitions"][arm],
    )
