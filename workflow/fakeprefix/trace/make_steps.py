"""The steps of a run, wherever they come from, and their screenshots."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fakeprefix.model.vision import ImageGeometry
from fakeprefix.progress import counted
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.process import running_server
from fakeprefix.storage import write_json
from fakeprefix.trace.desktop import desktop_steps, draw_screenshots
from fakeprefix.trace.eviction import evicted_steps
from fakeprefix.trace.grid import grid_steps
from fakeprefix.trace.importing import CONVERSATIONS, Eviction, Problems, format_of, import_steps
from fakeprefix.trace.rendering import Renderer
from fakeprefix.trace.steps import Step, write_steps

log = logging.getLogger(__name__)

# for rendering and counting only; nothing is computed
TOKENIZER_CONTEXT = 256


def format_of_trace(trace: dict[str, Any]) -> str:
    """The format of the configured steps, or their source if they come from no file.

    A path that is not there has none; the rule that reads it says so.

    Args:
        trace: section ``trace`` of the configuration.

    Raises:
        TraceError: the format cannot be told.
    """
    path = Path(trace["path"])
    if trace["source"] != "file" or not path.exists():
        return trace["source"]
    return format_of(path, trace["format"])


def make_steps(
    trace: dict[str, Any],
    name: str,
    geometry: ImageGeometry | None,
    steps: Path,
    images: Path,
    summary: Path,
    *,
    server: Path,
    run: dict[str, Any],
    model: list[Path],
    log_path: Path,
) -> None:
    """Write the steps as Parquet, their screenshots, and what the import found.

    Args:
        trace: section ``trace`` of the configuration.
        name: see `format_of_trace`.
        geometry: of images; None for a model without a projector.
        server, run, model: what to start where conversations have to be counted.

    Raises:
        TraceError: the trace cannot be used.
    """
    images.mkdir(parents=True, exist_ok=True)
    problems = Problems(skip=trace["on_error"] == "skip")
    eviction = Eviction(**trace["eviction"])
    if trace["source"] == "file":
        path = Path(trace["path"])
        with _renderer(name, server, run, model, geometry, eviction, log_path) as renderer:
            n_steps = write_steps(
                steps, counted(import_steps(path, name, problems, images, renderer, eviction), "importing steps")
            )
    else:
        n_steps = write_steps(steps, _own_steps(trace, geometry, images, eviction))
    if problems.n_skipped:
        log.warning("%d records were skipped; the first: %s", problems.n_skipped, problems.reasons[0])
    by_task = {task: n for task, n in problems.by_task.items() if task is not None}
    write_json(
        summary,
        {
            "format": name,
            "steps": n_steps,
            "skipped": problems.n_skipped,
            "skipped_by_task": by_task,
            "skipped_of_no_task": problems.by_task.get(None, 0),
            "reasons": problems.reasons,
        },
    )


def _own_steps(
    trace: dict[str, Any], geometry: ImageGeometry | None, images: Path, eviction: Eviction
) -> Iterator[Step]:
    if trace["source"] == "grid":
        yield from grid_steps(**trace["grid"])
        return
    found = desktop_steps(trace["seed"], geometry)
    draw_screenshots(found, images)
    yield from found
    if eviction.keep_last_images:
        yield from evicted_steps(found, eviction.keep_last_images, eviction.placeholder_tokens)


@contextmanager
def _renderer(
    name: str,
    server: Path,
    run: dict[str, Any],
    model: list[Path],
    geometry: ImageGeometry | None,
    eviction: Eviction,
    log_path: Path,
) -> Iterator[Renderer | None]:
    if name not in CONVERSATIONS:
        yield None
        return
    settings = EngineSettings.from_config(run, TOKENIZER_CONTEXT)
    with running_server(server, settings, model[0], None, log_path) as life:
        marker = life.client.props()["media_marker"]
        yield Renderer(life.client, marker, geometry, eviction.placeholder)
