"""What will be measured, for how long, in how much memory."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.planning.plan import make_plan
from fakeprefix.storage import read_json

with job(snakemake.log[0]):
    make_plan(
        Path(snakemake.input.steps),
        ModelFacts.from_dict(read_json(snakemake.input.facts)),
        snakemake.params.plan,
        snakemake.params.on_hole,
        snakemake.params.measure,
        snakemake.params.engine,
        snakemake.params.synthetic,
        Path(snakemake.output.plan),
        Path(snakemake.output.rejected),
        Path(snakemake.output.summary),
    )
