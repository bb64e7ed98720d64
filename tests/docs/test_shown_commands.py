"""Every command line that README and the documents show is run, or is at least one that can be given."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, contract_verdict, required
from fakeprefix.runs.shared import models_folder
from shown_commands import (
    Block,
    blocks,
    command_lines,
    give_environment,
    problem_of,
    replaced,
    run,
    write_files,
)
from small_run import CUT_DOWN, copy_project

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "config/*.md", "patches/*.md", "workflow/profiles/*/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
SHOWN = {page: [block for block in blocks(page) if block.is_shown_command] for page in PAGES}
# what a small run cuts down in the overlays that the project ships, too
SMALL_SECTIONS = {name: CUT_DOWN[name] for name in ("plan", "measure", "analysis")}
SMALL_GRID = CUT_DOWN["trace"]["grid"]


def pages_with(how: str) -> list[object]:
    found = [page for page, shown in SHOWN.items() if any(block.how == how for block in shown)]
    return [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in found]


def run_block(block: Block, folder: Path, replace: dict[str, str], timeout_s: float) -> None:
    done = run(replaced(block.script, replace), folder, timeout_s)
    assert done.returncode == 0, f"{block.where}\n{block.script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def user_files(folder: Path) -> dict[str, str]:
    """A user's trace and log below a folder that stands for ``/data``."""
    folder.mkdir()
    steps = [{"task_id": "t1", "step": n, "prefix_tokens": 300 + 100 * n, "new_tokens": 48} for n in range(4)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    messages, lines = [], []
    for n in range(3):
        messages = [*messages, {"role": "user", "content": f"Step {n}: " + "open the next window and read it. " * 12}]
        lines.append(json.dumps({"task_id": "t1", "messages": messages}) + "\n")
        messages = [*messages, {"role": "assistant", "content": "Done."}]
    (folder / "log.jsonl").write_text("".join(lines))
    return {"/data": str(folder)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy as after ``make reproduce`` has installed the packages, without an engine."""
    folder = give_environment(copy_project(tmp_path_factory.mktemp("shown") / "project"))
    (folder / "resources").unlink()
    return folder, user_files(tmp_path_factory.mktemp("user") / "data")


@pytest.fixture(scope="module")
def small_project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy with engine and model, in which every shipped configuration is cut down."""
    contract_verdict()
    folder = give_environment(copy_project(tmp_path_factory.mktemp("shown-small") / "project"))
    for path in (folder / "config").glob("*.yaml"):
        path.write_text(yaml.safe_dump(cut_down(yaml.safe_load(path.read_text()), path.name)))
    replace = user_files(tmp_path_factory.mktemp("user") / "data")
    tiny = models_folder(ROOT) / "tiny-hybrid-1"
    for name in ("model.gguf", "mmproj.gguf"):
        (Path(replace["/data"]) / name).symlink_to(required(tiny / name))
    return folder, replace


def cut_down(config: dict, name: str) -> dict:
    """The configuration of a file with as little to measure as makes a report."""
    small = config | SMALL_SECTIONS
    # deep-short.yaml is laid over deep.yaml and names no source of its own
    if name == "config.yaml" or "grid" in config.get("trace", {}):
        small["trace"] = {"source": "grid", "grid": SMALL_GRID}
    if "preset" in config.get("model", {}):
        small["model"] = {"preset": "tiny-hybrid"}
    return small


def names_of_runs(folder: Path) -> dict[str, str]:
    """What stands for the names of runs: the current one, and the two newest sealed ones."""
    current = folder / "results" / "current"
    sealed = sorted(path.parent.name for path in (folder / "results").glob("2*/manifest.json"))
    names = dict(zip(("A", "B"), sealed[-2:], strict=False))
    return names | ({"NAME": current.readlink().name} if current.is_symlink() else {})


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_every_block_of_commands_says_how_it_is_run(page):
    for block in blocks(page):
        assert block.language, f"{block.where}: a block without a language"
        if block.is_shown_command:
            assert block.how
            done = subprocess.run(["bash", "-n"], input=block.script, capture_output=True, text=True)
            assert done.returncode == 0, f"{block.where}: {done.stderr}"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_no_command_hides_in_an_indented_block(page):
    in_fence = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        shown = (
            line.startswith("    ") and line.split() and line.split()[0] in ("make", "snakemake", "fakeprefix", "pip")
        )
        assert in_fence or not shown, f"{page}, line {number}: put it into a block with a mark"


@pytest.mark.parametrize("page", pages_with("now"))
def test_commands_that_need_no_engine_run_as_shown(page, project):
    folder, replace = project
    write_files(page, folder, replace)
    for block in SHOWN[page]:
        if block.how == "now":
            run_block(block, folder, replace | names_of_runs(folder), timeout_s=120)


@pytest.mark.parametrize("page", pages_with("needs"))
def test_commands_that_need_something_else_can_at_least_be_given(page, project):
    folder, replace = project
    write_files(page, folder, replace)
    for block in SHOWN[page]:
        if block.how == "needs":
            for command in command_lines(replaced(block.script, replace)):
                assert (problem := problem_of(command, folder)) is None, f"{block.where}: {command}\n{problem}"


@pytest.mark.workflow
@pytest.mark.parametrize("page", pages_with("small"))
def test_commands_of_a_page_run_on_a_small_run(page, small_project):
    folder, replace = small_project
    write_files(page, folder, replace)
    for block in SHOWN[page]:
        if block.how != "needs":
            run_block(block, folder, replace | names_of_runs(folder), timeout_s=900)
