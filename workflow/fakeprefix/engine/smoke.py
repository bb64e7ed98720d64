"""One request on the user's own model must register before hours are spent on timings."""

from pathlib import Path
from typing import Any

from fakeprefix.errors import EngineError
from fakeprefix.machine.devices import CPU, listed_devices
from fakeprefix.server.client import Timings
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.server.exact_prompts import Image, PromptBuilder, Segment
from fakeprefix.server.process import running_server
from fakeprefix.server.registered import expected_counts, mismatch
from fakeprefix.storage import write_json
from fakeprefix.trace.desktop import mark, screenshot
from fakeprefix.trace.steps import StepImage

PREFIX, NEW = 300, 32


def fill_of_run(measure: dict[str, Any]) -> str | None:
    """The fill of a run's measuring jobs; None if it fabricates nothing."""
    fabricates = "fake_prefix" in measure["arms"] or measure["fidelity"]["prefix_tokens"]
    return measure["fill"] if fabricates else None


def smoke_test(
    binary: Path,
    settings: EngineSettings,
    model: Path,
    mmproj: Path | None,
    image: StepImage | None,
    fill: str | None,
    backend: str,
    output: Path,
    log_path: Path,
) -> None:
    """Start the timing build on the model, send one fake-prefix request, and write what the server settled on.

    Args:
        fill: content of fabricated cells; None if the run fabricates none, the request is then a whole prompt.
        backend: that the build is for; it must see a device of that kind.
        image: one of the trace's images; an image of its size must have as many tokens as the trace says.

    Raises:
        EngineError: the model's memory cannot hold a fabricated prefix, or the request did not register.
        ServerError: the server did not start.
    """
    devices = listed_devices(binary)
    if backend != CPU and not devices:
        raise EngineError(f"engine.build.backend: {backend}, and the engine sees no device; look at its driver")
    log_path.unlink(missing_ok=True)
    with running_server(binary, settings, model, mmproj, log_path) as server:
        props = server.client.props()
        if fill is not None and (reason := props["fake_prefix_unsupported"]):
            raise EngineError(
                f"model: a prefix cannot be fabricated: {reason}; measure it with measure.arms: "
                "[baseline, state_restore] and measure.fidelity.prefix_tokens: []"
            )
        builder = PromptBuilder(server.client, props["media_marker"])
        drawn, new = None, NEW
        if image:
            drawn = Image(mark(screenshot(image.width, image.height, "smoke"), "smoke"), image.tokens)
            new += image.tokens
        prompt = builder.prompt([Segment(PREFIX, "smoke/prefix"), Segment(NEW, "smoke/new", drawn)])
        options = {} if fill is None else {"n_fake_cached": PREFIX, "fake_fill": fill}
        timings = Timings.from_answer(server.client.complete(prompt, **builder.one_word_answer, **options))
        source = "none" if fill is None else "fake"
        expected = expected_counts(PREFIX, new, source, props["resolved"]["memory_type"])
        if problem := mismatch(expected, timings):
            size = (
                f"; an image of {image.width}x{image.height} was taken to have {image.tokens} tokens" if image else ""
            )
            raise EngineError(f"the smoke request did not register: {problem}{size}")
    write_json(
        output,
        {
            "resolved": props["resolved"],
            "requested": settings.as_dict(),
            "modalities": props["modalities"],
            "build_info": props["build_info"],
            "devices": devices,
            "start_s": round(server.start_s, 3),
        },
    )
