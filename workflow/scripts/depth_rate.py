"""Run the independent benchmark for one bucket, between two sets of probes."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.buckets import ServerLife
from fakeprefix.measure.depth_rate import bench_depths
from fakeprefix.planning.steps import MEASURED, prefix_bound, read_planned
from fakeprefix.storage import read_json

with job(snakemake.log[0]):
    bucket = int(snakemake.wildcards.bucket)
    before, after = Path(snakemake.output.before), Path(snakemake.output.after)
    life = ServerLife.of_job(before, snakemake.input, snakemake.params, snakemake.log[0])
    up_to = prefix_bound("depth_rate", read_json(snakemake.input.summary)["real_prefix_up_to"])
    bench_depths(
        [item.step for item in read_planned(Path(snakemake.input.plan), MEASURED, bucket, up_to)],
        life,
        (before, after),
        Path(snakemake.params.bench),
        snakemake.params.measure["repetitions"]["depth_rate"],
        Path(snakemake.output.samples),
        bucket,
    )
