"""Steps of the configured source, and their screenshots."""

from contextlib import nullcontext
from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.measure.timing_lock import timing_slot
from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.settings import EngineRun, Trace
from fakeprefix.storage import read_json
from fakeprefix.trace.importing import CONVERSATIONS
from fakeprefix.trace.make_steps import TokenizerServer, make_steps

# the whole model is loaded for its tokenizer: not beside a timing job
slot = timing_slot() if snakemake.params.format in CONVERSATIONS else nullcontext()

with job(snakemake.log[0]), slot:
    model = list(snakemake.input.model)
    make_steps(
        Trace.of_params(snakemake.params.trace),
        snakemake.params.format,
        ModelFacts.from_dict(read_json(snakemake.input.facts)).image,
        TokenizerServer(
            Path(snakemake.params.server),
            EngineRun.of_params(snakemake.params.run),
            Path(model[0]) if model else None,
            Path(snakemake.log[0]).with_suffix(".server.log"),
        ),
        Path(snakemake.output.steps),
        Path(snakemake.output.images),
        Path(snakemake.output.summary),
    )
