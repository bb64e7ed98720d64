"""A run's analysis and report again, without the engine."""

import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from fakeprefix.analysis.agreement import Analysis, Settings, analyse, write_analysis
from fakeprefix.errors import RunError
from fakeprefix.planning.steps import measured_buckets, prefix_bound
from fakeprefix.report.page import write_report
from fakeprefix.report.plots import draw_all
from fakeprefix.runs.folder import require_intact
from fakeprefix.storage import read_json, sha256_file, write_json

TEMPLATE = Path(__file__).parent / "templates" / "report.html.jinja"
# what the rules of these names make
MADE = ("analysis", "replay.parquet", "replay.jsonl", "summary.json", "report.html")
NOT_TAKEN = {*MADE, "manifest.json", "logs"}


def rebuild(run: Path, output: Path) -> dict[str, Any]:
    """Make the tables, plots and the report of a sealed run once more; the run itself is not touched.

    Args:
        run: a sealed run folder, a restored one for example.
        output: where the rebuilt run appears, as a whole or not at all.

    Returns:
        What ``rebuilt.json`` holds: the seal, the time, and which files came out as they were sealed and
        which otherwise. Another version of the code or of a library may draw the same figures differently.

    Raises:
        RunError: the run is not sealed, differs from its seal, or `output` exists.
    """
    require_intact(run, "rebuilt")
    if output.exists():
        raise RunError(f"{output} exists already; move it away first")
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".rebuild.", dir=output.parent))
    try:
        # the report names the run after its folder
        folder = work / run.resolve().name
        shutil.copytree(run, folder, ignore=lambda at, names: NOT_TAKEN & set(names) if Path(at) == run else ())
        try:
            draw_folder(folder, analyse_folder(folder))
        except (OSError, KeyError) as error:
            raise RunError(f"{run}: cannot be rebuilt by this version of the code ({error!r})") from error
        sealed = read_json(run / "manifest.json")["files"]
        made = {
            path.relative_to(folder).as_posix(): sha256_file(path)
            for name in MADE
            for path in ([folder / name] if (folder / name).is_file() else sorted((folder / name).rglob("*")))
        }
        found = {
            "run": folder.name,
            "seal_sha256": sha256_file(run / "manifest.json"),
            "rebuilt_at": datetime.now().astimezone().isoformat(),
            "same": sorted(name for name, digest in made.items() if sealed.get(name, {}).get("sha256") == digest),
            "other": sorted(name for name, digest in made.items() if sealed.get(name, {}).get("sha256") != digest),
        }
        write_json(folder / "rebuilt.json", found)
        folder.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found


def analyse_folder(folder: Path) -> Analysis:
    """Write the tables and the verdict of a run folder from its measurements, plan and benchmark samples."""
    config = yaml.safe_load((folder / "pipeline" / "config.yaml").read_text(encoding="utf-8"))
    raw, plan = folder / "raw", folder / "trace" / "plan.parquet"
    rates = config["measure"]["repetitions"]["depth_rate"]
    benched = measured_buckets(
        plan, prefix_bound("depth_rate", read_json(folder / "trace" / "plan.json").get("real_prefix_up_to", 0))
    )
    found = analyse(
        folder / "measurements.parquet",
        plan,
        folder / "trace" / "rejected.parquet",
        [raw / "depth_rate" / f"{bucket}.json" for bucket in benched] if rates else [],
        [raw / "fidelity" / f"{length}.logits.json" for length in config["measure"]["fidelity"]["prefix_tokens"]],
        Settings.of_run(
            config["analysis"],
            config["measure"]["fill"],
            folder / "trace" / "plan.json",
            folder / "trace" / "import.json",
            folder / "engine" / "server_config.json",
        ),
    )
    write_analysis(found, folder)
    return found


def draw_folder(folder: Path, found: Analysis) -> None:
    """Write the plots and the report of a run folder."""
    draw_all(found, folder / "analysis")
    write_report(folder, TEMPLATE)
