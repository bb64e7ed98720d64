"""Steps of the configured source, and their screenshots."""

from pathlib import Path

from fakeprefix.jobs import job
from fakeprefix.model.gguf_file import ModelFacts
from fakeprefix.storage import read_json
from fakeprefix.trace.desktop import desktop_steps, draw_screenshots
from fakeprefix.trace.grid import grid_steps
from fakeprefix.trace.steps import copy_images, read_steps, write_steps

with job(snakemake.log[0]):
    trace, images = snakemake.params.trace, Path(snakemake.output.images)
    images.mkdir(parents=True, exist_ok=True)
    if trace["source"] == "desktop":
        steps = desktop_steps(trace["seed"], ModelFacts.from_dict(read_json(snakemake.input.facts)).image)
        draw_screenshots(steps, images)
    elif trace["source"] == "grid":
        steps = grid_steps(**trace["grid"])
    else:
        path = Path(snakemake.input.file[0])
        steps = read_steps(path)
        copy_images(steps, path.parent, images)
    write_steps(Path(snakemake.output.steps), steps)
