"""Let every way of having a prefix take turns over one length."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.buckets import ServerLife
from fakeprefix.measure.turns import Rounds, measure_fidelity

with job(snakemake.log[0]):
    length, fidelity = int(snakemake.wildcards.length), snakemake.params.measure["fidelity"]
    life = ServerLife.of_job(Path(snakemake.output.rows), snakemake.input, snakemake.params, snakemake.log[0])
    measure_fidelity(
        life,
        length,
        fidelity["new_tokens"],
        fidelity["fills"],
        length <= fidelity["cached_up_to"],
        Rounds(fidelity["min_rounds"], fidelity["max_rounds"], fidelity["stop_width"], fidelity["budget_s"]),
        Path(snakemake.output.logits),
    )
