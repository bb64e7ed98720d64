"""A log as a folder of our own steps, outside of a run."""

import shutil
import tempfile
from pathlib import Path

from fakeprefix.errors import TraceError
from fakeprefix.model.gguf_file import facts_of_files
from fakeprefix.settings import EngineRun, Trace
from fakeprefix.storage import read_json
from fakeprefix.trace.import_summary import ImportSummary
from fakeprefix.trace.importing import CONVERSATIONS, trace_files
from fakeprefix.trace.make_steps import TokenizerServer, format_of_trace, make_steps

STEPS, IMAGES, SUMMARY = "steps.parquet", "images", "import.json"
SERVERS = "engine/*/build-fast/bin/llama-server"


def import_log(
    trace: Trace, output: Path, model: Path | None, mmproj: Path | None, resources: Path = Path("resources")
) -> ImportSummary:
    """Write the steps of a log, its screenshots and what the import found into a new folder.

    Args:
        trace: where the log is, its format, and what happens to records that cannot be used.
        output: folder that must not exist; it appears when all is in it.
        model, mmproj: whose template and tokenizer count conversations; other formats need none.
        resources: where a workflow has built the engine.

    Raises:
        TraceError: the log cannot be used, or `output` exists.
        ModelError: the model's files cannot be used.
        ServerError: the engine does not start.
    """
    if output.exists():
        raise TraceError(f"{output}: exists already; name a new folder with --output")
    # a path that is not there has no format yet
    trace_files(Path(trace.path))
    name = format_of_trace(trace)
    facts = facts_of_files(model, mmproj) if model else None
    if name in CONVERSATIONS and model is None:
        raise TraceError(f"{trace.path}: {name} is counted by a model's own tokenizer; give --model FILE.gguf")
    program = _newest_server(resources) if name in CONVERSATIONS else Path()
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".tmp", dir=output.parent))
    try:
        tokenizer = TokenizerServer(program, EngineRun(), model, folder / "server.log")
        made = folder / "steps"
        make_steps(
            trace,
            name,
            facts.image if facts else None,
            tokenizer,
            made / STEPS,
            made / IMAGES,
            made / SUMMARY,
        )
        made.rename(output)
    finally:
        shutil.rmtree(folder)
    return ImportSummary.from_dict(read_json(output / SUMMARY))


def _newest_server(resources: Path) -> Path:
    found = sorted(resources.glob(SERVERS), key=lambda path: path.stat().st_mtime)
    if not found:
        raise TraceError(
            f"no engine is built below {resources}, and conversations are counted by it; run "
            "snakemake --cores all engine in the checkout"
        )
    return found[-1]
