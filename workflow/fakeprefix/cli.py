"""The command ``fakeprefix``: what is no stage of the workflow, one function a subcommand."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from fakeprefix import __version__
from fakeprefix.doctor import examine
from fakeprefix.errors import FakePrefixError
from fakeprefix.report.comparison import write_comparison
from fakeprefix.report.rebuild import rebuild
from fakeprefix.runs.archive import restore, verify_archive
from fakeprefix.runs.folder import verify
from fakeprefix.settings import Trace
from fakeprefix.trace.import_log import STEPS, import_log
from fakeprefix.trace.importing import FORMATS

RESULTS = Path("results")
ABOUT = "What is no stage of the workflow. To measure, use snakemake or make reproduce."
Command = Callable[[argparse.Namespace], int]
FAILED, USAGE, INTERRUPTED = 1, 2, 130


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"error: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Returns:
        0 if it succeeded, 1 if it did not (one line on stderr says why), 130 if it was interrupted. Unusable
        arguments end the process with status 2.
    """
    options = parser().parse_args(arguments)
    run: Command = options.run
    try:
        return run(options)
    except FakePrefixError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename or options.command}: {error.strerror or error}")
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> Parser:
    """The parser of the command and of all subcommands."""
    top = Parser(
        prog="fakeprefix", description="What is no stage of the workflow. To measure, use snakemake or make reproduce."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, run: Command, words: str, example: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name, help=words, description=f"{words[0].upper()}{words[1:]}.", epilog=f"Example: fakeprefix {example}"
        )
        added.set_defaults(run=run)
        return added

    command = add(
        "verify", verify_run, "say whether an archive or a sealed run is intact", "verify results/archive/NAME.tar.zst"
    )
    command.add_argument("archive", metavar="ARCHIVE", type=_path, help="an archive, or a run folder")
    command = add("restore", restore_run, "make a run folder of an archive", "restore results/archive/NAME.tar.zst")
    command.add_argument("archive", metavar="ARCHIVE", type=_path)
    command.add_argument("--results", type=_path, default=RESULTS, help="where the run folder goes (%(default)s)")
    command = add(
        "rebuild",
        rebuild_run,
        "make analysis and report of a sealed run once more, without the engine",
        "rebuild results/NAME",
    )
    command.add_argument("folder", metavar="RUN", type=_path, help="a sealed run folder; it is not touched")
    command.add_argument("--output", type=_path, help="a new folder (results/rebuilt/NAME)")
    command = add("compare", compare_runs, "put sealed runs side by side", "compare results/A results/B")
    command.add_argument(
        "folders", metavar="RUN", type=_path, nargs="*", help="run folders; the first is the reference"
    )
    command.add_argument("--output", type=_path, help="a folder for the page and the table (results/compare/TIME)")
    command = add("import", import_steps, "write the steps of a log in our own form", "import /data/log.jsonl")
    command.add_argument("log", metavar="LOG", type=_path, help="a file, or a folder with files of one format")
    command.add_argument("--output", type=_path, help="a new folder for steps.parquet and images (LOG's name + -steps)")
    command.add_argument("--format", choices=("auto", *FORMATS), default="auto", help="(%(default)s)")
    command.add_argument("--skip", action="store_true", help="count records that cannot be used, and go on")
    command.add_argument("--model", type=_path, help="GGUF file whose tokenizer counts a log of conversations")
    command.add_argument("--mmproj", type=_path, help="its projector, for screenshots")
    add("doctor", examine_machine, "say what this machine can do", "doctor")
    return top


def verify_run(options: argparse.Namespace) -> int:
    """Say that an archive or a sealed run is intact, or what is damaged, missing or too much."""
    archive: Path = options.archive
    problems = verify(archive) if archive.is_dir() else verify_archive(archive)
    for problem in problems:
        _failed(problem)
    if problems:
        return FAILED
    sys.stdout.write(f"{archive} is intact\n")
    return 0


def restore_run(options: argparse.Namespace) -> int:
    """Make a run folder of an archive, and say where it is."""
    sys.stdout.write(f"{restore(options.archive, options.results)}\n")
    return 0


def rebuild_run(options: argparse.Namespace) -> int:
    """Rebuild a run, and say which of its files came out as they were sealed."""
    output = options.output or RESULTS / "rebuilt" / options.folder.resolve().name
    found = rebuild(options.folder, output)
    sys.stdout.write(f"{output / 'report.html'}: {len(found['same'])} files are as they were sealed")
    sys.stdout.write(f", other: {', '.join(found['other'])}\n" if found["other"] else "\n")
    return 0


def compare_runs(options: argparse.Namespace) -> int:
    """Write a comparison, fair or not; what makes it unfair is said on stderr."""
    output = options.output or RESULTS / "compare" / time.strftime("%Y-%m-%d_%H%M%S")
    for line in write_comparison(options.folders, output):
        sys.stderr.write(f"warning: {line}\n")
    sys.stdout.write(f"{output / 'compare.html'}\n")
    return 0


def import_steps(options: argparse.Namespace) -> int:
    """Import a log, and say how many steps it has, how many records were skipped, and where they are."""
    log: Path = options.log
    output = options.output or Path(f"{log.resolve().stem}-steps")
    trace = Trace(source="file", path=str(log), format=options.format, on_error="skip" if options.skip else "stop")
    found = import_log(trace, output, options.model, options.mmproj)
    if found.skipped:
        sys.stderr.write(f"warning: {found.skipped} records were skipped; the first: {found.reasons[0]}\n")
    sys.stdout.write(f"{output / STEPS}: {found.steps} steps of format {found.format}\n")
    return 0


def examine_machine(_options: argparse.Namespace) -> int:
    """Say what the machine has, a line each, and what to do where something lacks."""
    findings = examine(Path())
    for finding in findings:
        sys.stdout.write(f"{finding.what + ':':<8} {finding.found}\n")
    for finding in findings:
        if finding.remedy:
            sys.stderr.write(f"{'error' if finding.fails else 'warning'}: {finding.what}: {finding.remedy}\n")
    return FAILED if any(finding.fails for finding in findings) else 0


def _failed(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return FAILED


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a file or folder")
    return Path(text)
