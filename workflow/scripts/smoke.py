"""One request on the user's model, and what the server settled on."""

from pathlib import Path

from fakeprefix.engine.smoke import fill_of_run, smoke_test
from fakeprefix.jobs import job
from fakeprefix.measure.timing_lock import timing_slot
from fakeprefix.planning.steps import MEASURED, read_planned
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.storage import read_json

with job(snakemake.log[0]), timing_slot():
    n_ctx = read_json(snakemake.input.summary)["n_ctx"]
    images = [image for item in read_planned(Path(snakemake.input.plan), MEASURED) for image in item.step.images]
    smoke_test(
        Path(snakemake.params.server),
        EngineSettings.from_config(snakemake.params.run, n_ctx),
        Path(snakemake.input.model),
        Path(snakemake.input.mmproj[0]) if snakemake.input.mmproj else None,
        images[0] if images else None,
        fill_of_run(snakemake.params.measure),
        snakemake.params.backend,
        Path(snakemake.output.server_config),
        Path(snakemake.log[0]).with_name("server.log"),
    )
