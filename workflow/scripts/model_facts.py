"""What planning needs to know of the model."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.model.gguf_file import facts_of_files, facts_of_preset
from fakeprefix.storage import write_json

with job(snakemake.log[0]):
    model = snakemake.params.model
    if model["kind"] == "synthetic":
        facts = facts_of_preset(model["preset"], model["shape"])
    else:
        facts = facts_of_files(Path(model["path"]), Path(model["mmproj"]) if model["mmproj"] else None)
    write_json(snakemake.output.facts, facts.as_dict())
