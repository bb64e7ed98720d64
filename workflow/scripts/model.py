"""Names, sizes and digests of the model's files."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.model.gguf_file import describe_files
from fakeprefix.storage import write_json

with job(snakemake.log[0]):
    mmproj = Path(snakemake.input.mmproj[0]) if snakemake.input.mmproj else None
    description = describe_files(Path(snakemake.input.model), mmproj)
    write_json(snakemake.output.manifest, snakemake.params.model | description)
