"""Snapshot of the machine and of this repository."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.machine.repositories import repository, repository_diff
from fakeprefix.machine.snapshot import write_snapshot
from fakeprefix.storage import write_text

with job(snakemake.log[0]):
    repositories = {"pipeline": Path.cwd()}
    if snakemake.params.engine_source:
        repositories["engine_source"] = Path(snakemake.params.engine_source).expanduser()
    write_snapshot(Path(snakemake.output.snapshot).parent, repositories)
    state = repository(Path.cwd())
    write_text(snakemake.output.commit, f"{state.get('commit', state.get('absent'))}\n")
    write_text(snakemake.output.diff, repository_diff(Path.cwd()))
