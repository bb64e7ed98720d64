"""Contract tests on the checked build and the tiny model."""

from pathlib import Path

from fakeprefix.engine.contract import run_contract
from fakeprefix.jobs import job
from fakeprefix.machine.limits import usable_cores
from fakeprefix.model.gguf_file import facts_of_preset

with job(snakemake.log[0]):
    build = Path(snakemake.input.build)
    run_contract(
        build.parent / "build-checked" / "bin",
        build,
        Path(snakemake.input.model),
        Path(snakemake.input.mmproj),
        facts_of_preset("tiny-hybrid").image,
        usable_cores(),
        Path(snakemake.output.contract),
        Path(snakemake.log[0]).with_name("server.log"),
    )
