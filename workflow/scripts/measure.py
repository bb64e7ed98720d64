"""Measure one bucket with one arm."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.protocol import TimingJob, run_timing_job, steps_of_bucket
from fakeprefix.plan import MEASURED, read_plan
from fakeprefix.server.settings import EngineSettings
from fakeprefix.storage import read_json
from fakeprefix.trace.steps import read_steps

with job(snakemake.log[0]):
    rows, log = Path(snakemake.output.rows), Path(snakemake.log[0])
    measure, bucket = snakemake.params.measure, int(snakemake.wildcards.bucket)
    run_timing_job(
        TimingJob(
            run_folder=rows.parents[2],
            arm=snakemake.params.arm,
            bucket=bucket,
            steps=steps_of_bucket(read_plan(Path(snakemake.input.plan)), bucket, MEASURED),
            history=tuple(read_steps(Path(snakemake.input.steps))),
            images=Path(snakemake.input.images),
            repetitions=measure["repetitions"][snakemake.params.arm],
            fill=measure["fill"],
            probe_prefix=measure["probe"]["prefix_tokens"],
            probe_new=measure["probe"]["new_tokens"],
            decode_tokens=measure["decode_tokens"],
            timeout_s=measure["timeout_s"],
            reference=Path(snakemake.input.server_config),
        ),
        Path(snakemake.params.server),
        EngineSettings.from_config(snakemake.params.run, read_json(snakemake.input.summary)["n_ctx"]),
        Path(snakemake.input.model),
        Path(snakemake.input.mmproj[0]) if snakemake.input.mmproj else None,
        rows,
        log.with_name(f"{bucket}.server.log"),
    )
