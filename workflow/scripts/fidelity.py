"""Let every way of having a prefix take turns over one length."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.fidelity import Rounds, measure_fidelity
from fakeprefix.measure.protocol import ServerLife
from fakeprefix.storage import read_json

with job(snakemake.log[0]):
    length, fidelity = int(snakemake.wildcards.length), snakemake.params.measure["fidelity"]
    life = ServerLife.of_run(
        Path(snakemake.output.rows),
        f"fidelity/{length}",
        snakemake.params.server,
        snakemake.params.run,
        snakemake.params.measure,
        read_json(snakemake.input.summary),
        snakemake.input.model,
        snakemake.input.mmproj,
        snakemake.input.server_config,
        snakemake.log[0],
    )
    measure_fidelity(
        life,
        length,
        fidelity["new_tokens"],
        fidelity["fills"],
        length <= fidelity["cached_up_to"],
        Rounds(fidelity["min_rounds"], fidelity["max_rounds"], snakemake.params.margin, fidelity["budget_s"]),
        Path(snakemake.output.logits),
    )
