"""Measure one bucket with one arm."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.buckets import ServerLife, measure_bucket
from fakeprefix.planning.steps import MEASURED, prefix_bound, read_planned
from fakeprefix.storage import read_json
from fakeprefix.trace.steps import read_tasks

with job(snakemake.log[0]):
    rows, bucket = Path(snakemake.output.rows), int(snakemake.wildcards.bucket)
    arm = rows.parent.name
    life = ServerLife.of_job(rows, snakemake.input, snakemake.params, snakemake.log[0])
    up_to = prefix_bound(arm, read_json(snakemake.input.summary)["real_prefix_up_to"])
    steps = [item.step for item in read_planned(Path(snakemake.input.plan), MEASURED, bucket, up_to)]
    measure_bucket(
        life,
        arm,
        bucket,
        steps,
        read_tasks(Path(snakemake.input.steps), {step.task_id for step in steps}),
        Path(snakemake.input.images),
        snakemake.params.measure["repetitions"][arm],
    )
