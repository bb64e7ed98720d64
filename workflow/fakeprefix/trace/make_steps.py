"""The steps of a run, wherever they come from, and their screenshots."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fakeprefix.model.vision import ImageGeometry
from fakeprefix.progress import counted
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.process import running_server
from fakeprefix.settings import EngineRun, Trace
from fakeprefix.storage import write_json
from fakeprefix.trace.desktop import desktop_steps, draw_screenshots
from fakeprefix.trace.eviction import evicted_steps
from fakeprefix.trace.grid import grid_steps
from fakeprefix.trace.importing import CONVERSATIONS, Problems, format_of, import_steps
from fakeprefix.trace.rendering import Renderer
from fakeprefix.trace.steps import Step, write_steps

log = logging.getLogger(__name__)

# for rendering and counting only; nothing is computed
TOKENIZER_CONTEXT = 256


@dataclass(frozen=True)
class TokenizerServer:
    """What counts conversations: a server with the model, started for it.

    Attributes:
        program: ``llama-server``.
        run: how the engine runs.
        model: the model, or the first of its parts.
        log: of the server.
    """

    program: Path
    run: EngineRun
    model: Path | None
    log: Path


def format_of_trace(trace: Trace) -> str:
    """The format of the configured steps, or their source if they come from no file.

    A path that is not there has none; the rule that reads it says so.

    Raises:
        TraceError: the format cannot be told.
    """
    path = Path(trace.path)
    if trace.source != "file" or not path.exists():
        return trace.source
    return format_of(path, trace.format)


def make_steps(
    trace: Trace,
    name: str,
    geometry: ImageGeometry | None,
    tokenizer: TokenizerServer,
    steps: Path,
    images: Path,
    summary: Path,
) -> None:
    """Write the steps as Parquet, their screenshots, and what the import found.

    Args:
        name: see `format_of_trace`.
        geometry: of images; None for a model without a projector.
        tokenizer: what to start where conversations have to be counted.
        steps, images, summary: file, folder and file to write.

    Raises:
        TraceError: the trace cannot be used.
    """
    images.mkdir(parents=True, exist_ok=True)
    problems = Problems(skip=trace.on_error == "skip")
    if trace.source == "file":
        with _renderer(name, tokenizer, geometry, trace.eviction.placeholder) as renderer:
            found = import_steps(Path(trace.path), name, problems, images, renderer, trace.eviction)
            n_steps = write_steps(steps, counted(found, "importing steps"))
    else:
        n_steps = write_steps(steps, _own_steps(trace, geometry, images))
    if problems.n_skipped:
        log.warning("%d records were skipped; the first: %s", problems.n_skipped, problems.reasons[0])
    write_json(summary, problems.summary(name, n_steps).as_dict())


def _own_steps(trace: Trace, geometry: ImageGeometry | None, images: Path) -> Iterator[Step]:
    if trace.source == "grid":
        yield from grid_steps(trace.grid.prefix_tokens, trace.grid.new_tokens)
        return
    found = desktop_steps(trace.seed, geometry)
    draw_screenshots(found, images)
    yield from found
    if trace.eviction.keep_last_images:
        yield from evicted_steps(found, trace.eviction.keep_last_images, trace.eviction.placeholder_tokens)


@contextmanager
def _renderer(
    name: str, tokenizer: TokenizerServer, geometry: ImageGeometry | None, placeholder: str
) -> Iterator[Renderer | None]:
    if name not in CONVERSATIONS or tokenizer.model is None:
        yield None
        return
    settings = EngineSettings.from_config(tokenizer.run.as_params(), TOKENIZER_CONTEXT)
    with running_server(tokenizer.program, settings, tokenizer.model, None, tokenizer.log) as life:
        marker = life.client.props()["media_marker"]
        yield Renderer(life.client, marker, geometry, placeholder)
