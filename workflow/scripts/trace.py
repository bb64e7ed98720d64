"""Steps of the configured source, and their screenshots."""

from contextlib import nullcontext
from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.timing_lock import timing_slot
from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.storage import read_json
from fakeprefix.trace.importing import CONVERSATIONS
from fakeprefix.trace.make_steps import make_steps

# the whole model is loaded for its tokenizer: not beside a timing job
slot = timing_slot() if snakemake.params.format in CONVERSATIONS else nullcontext()

with job(snakemake.log[0]), slot:
    make_steps(
        snakemake.params.trace,
        snakemake.params.format,
        ModelFacts.from_dict(read_json(snakemake.input.facts)).image,
        Path(snakemake.output.steps),
        Path(snakemake.output.images),
        Path(snakemake.output.summary),
        server=Path(snakemake.params.server),
        run=snakemake.params.run,
        model=[Path(file) for file in snakemake.input.model],
        log_path=Path(snakemake.log[0]).with_suffix(".server.log"),
    )
