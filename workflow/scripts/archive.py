"""Pack the sealed run."""

import logging
from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.runs.archive import pack

with job(snakemake.log[0]):
    archive = Path(snakemake.output.archive)
    inventory = pack(Path(snakemake.input.manifest).parent, archive)
    logging.getLogger(__name__).info("%s: %d files", archive, len(inventory["files"]))
