"""The command lines that the documents show, and how each of them is run.

In front of a block of commands a comment says how: ``<!-- run: now -->`` without the engine, ``<!-- run: small -->``
on a cut-down run with it, ``<!-- run: needs NAME; reason -->`` where it cannot be run here. In front of any other block
``<!-- file: NAME -->`` writes it into the project before the page's commands run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from small_run import environment_of_a_user

SHELLS = ("bash", "console", "sh")
NEEDS = ("cluster", "gpu", "hours", "network", "slurm", "the tests")
FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,})(?P<language>\w*)")
RUN = re.compile(r"<!-- run: (?P<how>now|small|needs (?P<need>[\w ]+?)(; (?P<reason>.+))?) -->")
FILE = re.compile(r"<!-- file: (?P<name>\S+) -->")
# programs that a reader has elsewhere, not where the tests run
ELSEWHERE = ("docker", "kubectl", "podman", "pre-commit", "sacct", "scancel", "squeue")
CONDA = " --sdm conda"
PROFILE = re.compile(r"\s--profile\s+\S+")
EXECUTOR = re.compile(r"\s--(slurm|kubernetes)-\S+(\s+[^-\s]\S*)?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the file that it stands in.
        line: number of its fence, from 1.
        language: as the fence says.
        text: what is between the fences, without their indentation.
        mark: the comment in front of it, empty without.
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def is_shown_command(self) -> bool:
        return self.language in SHELLS

    @property
    def where(self) -> str:
        return f"{self.page}, line {self.line}"

    @property
    def script(self) -> str:
        """What a reader types; of a console only the lines behind the prompt."""
        if self.language != "console":
            return self.text
        return "\n".join(line[2:] for line in self.text.splitlines() if line.startswith(("$ ", "> ")))

    @property
    def how(self) -> str:
        """``now``, ``small`` or ``needs``.

        Raises:
            ValueError: there is no mark, or it lacks what it needs and why.
        """
        found = RUN.fullmatch(self.mark)
        if not found:
            raise ValueError(f"{self.where}: a block of commands needs <!-- run: ... --> in front, has {self.mark!r}")
        if found["need"] and (found["need"] not in NEEDS or not found["reason"]):
            raise ValueError(f"{self.where}: say what it needs ({', '.join(NEEDS)}) and, behind a semicolon, why")
        return found["how"].split()[0]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page with the comment in front of each."""
    fence, start, mark, body = None, 0, "", []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if fence is None:
            if found := FENCE.match(line):
                fence, start, body = found, number, []
            elif line.strip():
                mark = line.strip()
        elif line.strip() == fence["ticks"]:
            text = "\n".join(line.removeprefix(fence["indent"]) for line in body) + "\n"
            yield Block(page, start, fence["language"], text, mark)
            fence, mark = None, ""
        else:
            body.append(line)
    if fence is not None:
        raise ValueError(f"{page}, line {start}: the block has no end")


def give_environment(folder: Path) -> Path:
    """Give a copy of the project a ``.venv`` of links, so that ``make`` installs nothing into the real one."""
    environment = folder / ".venv"
    environment.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith("."):
            (environment / entry.name).symlink_to(entry)
    for file in ("requirements.lock", "requirements-test.lock", "pyproject.toml"):
        os.utime(folder / file, (0, 0))
    for stamp in (".packages", ".complete", ".test-complete"):
        (environment / stamp).touch()
    return folder


def write_files(page: Path, folder: Path, replace: dict[str, str]) -> None:
    """Write the blocks of a page that are files."""
    for block in blocks(page):
        if found := FILE.fullmatch(block.mark):
            target = folder / found["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(replaced(block.text, replace), encoding="utf-8")


def replaced(text: str, replace: dict[str, str]) -> str:
    for word, by in replace.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", by, text)
    return text


def run(script: str, folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run commands in a copy of the project as a reader with its environment would."""
    path = os.pathsep.join((str(folder / ".venv" / "bin"), os.environ["PATH"]))
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment_of_a_user() | {"PATH": path},
        check=False,
    )


def command_lines(script: str) -> list[str]:
    """Single commands of a script, without comments and continuation lines."""
    joined = script.replace("\\\n", " ")
    lines = (shlex.join(shlex.split(line, comments=True)) for line in joined.splitlines())
    return [part for line in lines for part in re.split(r" '?(?:&&|\|)'? ", line) if part]


def problem_of(command: str, folder: Path) -> str | None:
    """Why a command that cannot be run here cannot be right either; None if nothing is found."""
    words = shlex.split(command)
    program = words[0]
    if program == "make":
        check = shlex.join([program, "--dry-run", *words[1:]])
    elif program == "snakemake":
        check = EXECUTOR.sub("", PROFILE.sub("", shlex.join(words))).replace(CONDA, "") + " --dry-run --quiet"
    elif program in ("pip", "fakeprefix"):
        check = f"{program} {words[1]} --help"
    elif program in ELSEWHERE:
        return None
    else:
        return None if shutil.which(program) or program in ("cd", "export") else f"there is no program {program}"
    done = run(check, folder, 120)
    return None if done.returncode == 0 else f"{check}\n{done.stdout}{done.stderr}"
