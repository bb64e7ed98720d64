"""Run folders: which one a call of snakemake belongs to, when it starts, when it is sealed."""

import logging
import os
import re
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from fakeprefix.errors import RunError
from fakeprefix.runs.identity import CONFIG_FILE, IDENTITY_FILE, Identity, analysed_otherwise, measured_otherwise
from fakeprefix.storage import file_entry, read_json, sha256_file, write_json, write_text

log = logging.getLogger(__name__)

ENVIRONMENT_KEY = "FAKEPREFIX_RUN"
PREVIEW = "new-run"
INDEX = ".identities"

# a name that was given is begun within minutes, or never
RESERVED_S = 86_400.0

# with these a damaged run is written to on purpose, or no run is looked at
FORCING = {"-R", "--forcerun", "-F", "--forceall", "--unlock", "--lint", "-l", "--list", "--list-rules", "--help", "-h"}

# describes an archived run, comes with it when it is restored
CRATE_NAME = "ro-crate-metadata.json"


def choose(
    results: Path, identity: Identity, requested: str, run_name: str, host: str, *, may_start: bool, reserved: Path
) -> str:
    """The name of the run folder that this call belongs to. Creates nothing in `results`.

    Args:
        results: folder of all runs.
        identity: from `fakeprefix.runs.identity.identity_of`.
        requested: ``config["run"]``.
        run_name: last part of a new name.
        host: the machine or kind of node that is measured, part of a new name.
        may_start: this is the main process; a new name is stored by `begin` only, which a dry run never
            reaches. Otherwise `PREVIEW` stands for a run that does not exist yet.
        reserved: folder for names that are given and not begun, in Snakemake's own folder.

    Raises:
        RunError: the requested run does not exist, or was measured with other settings, content or code.
    """
    if name := os.environ.get(ENVIRONMENT_KEY):
        return name
    if requested not in ("", "new"):
        if not (results / requested / "pipeline").is_dir():
            raise RunError(f"config: run = {requested!r}: there is no such run folder in {results}")
        if keys := measured_otherwise(results / requested, identity):
            raise RunError(
                f"config: run = {requested!r} is another experiment, it differs in: {', '.join(keys)}; "
                "leave out run to measure with these settings"
            )
        return requested
    current = _indexed(results, identity.name)
    if current and requested != "new":
        return current
    return reserve(results, new_name(run_name, host), reserved) if may_start else PREVIEW


def new_name(run_name: str, host: str, now: datetime | None = None) -> str:
    """``<date>_<time>_<host>_<name>``, in local time."""
    host = re.sub(r"[^a-z0-9-]+", "-", host.split(".")[0].lower()).strip("-") or "host"
    return f"{(now or datetime.now()):%Y-%m-%d_%H%M%S}_{host}_{run_name}"


def reserve(results: Path, name: str, reserved: Path) -> str:
    """`name`, or `name` with a number where a run has it or another call was given it in the same second.

    The paths of all jobs follow from the name, so it has to be the only one before `begin` makes the folder.

    Args:
        reserved: folder that gets an empty file a name; files older than `RESERVED_S` are removed.

    Raises:
        RunError: the folder cannot be written to.
    """
    try:
        reserved.mkdir(parents=True, exist_ok=True)
        for file in reserved.iterdir():
            with suppress(FileNotFoundError):
                if time.time() - file.stat().st_mtime > RESERVED_S:
                    file.unlink()
        candidate, number = name, 1
        while (results / candidate).exists() or not _touched(reserved / candidate):
            number += 1
            candidate = f"{name}-{number}"
    except OSError as error:
        raise RunError(f"{reserved}: {error.strerror}") from None
    return candidate


def _touched(file: Path) -> bool:
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def require_undamaged(results: Path, name: str, arguments: Sequence[str]) -> None:
    """Refuse a sealed run that is not as it was sealed, unless rules are rerun on purpose.

    Args:
        arguments: of the command line; Snakemake's settings are not there yet when its Snakefile is read.

    Raises:
        RunError: a file was changed or removed; the message says which, and what to do.
    """
    folder = results / name
    if os.environ.get(ENVIRONMENT_KEY) or not is_sealed(folder) or FORCING & _options(arguments):
        return
    # a file that somebody added is not damage
    if differences := [line for line in verify(folder) if not line.startswith("extra:")]:
        raise RunError(
            f"{folder} differs from its seal ({_first(differences)}); restore it from its archive, start another "
            "run with --config run=new, or make it again from a rule on with -R RULE"
        )


def _options(arguments: Sequence[str]) -> set[str]:
    # short options may have their value attached: -Rmeasure_baseline
    return {word[:2] if re.match(r"-[^-]", word) else word.split("=")[0] for word in arguments}


def begin(
    results: Path, name: str, identity: Identity, config: dict[str, Any], *, forced: bool, packs: bool = False
) -> None:
    """Create or continue the run folder `name`; called once, when jobs are about to run.

    Args:
        forced: rules are rerun on purpose, which breaks a seal visibly. So does another analysis.
        packs: a sealed run is only packed, which leaves it as it is.

    Raises:
        RunError: the run is sealed, nothing was forced and it is analysed as before; or another process is
            starting one.
    """
    results.mkdir(parents=True, exist_ok=True)
    with locked(results / ".lock", "another snakemake is starting a run here"):
        folder = results / name
        reanalysed = analysed_otherwise(folder, identity)
        if is_sealed(folder) and (reanalysed or not packs):
            if not forced and not reanalysed:
                raise RunError(
                    f"{folder} is sealed and is not written to again; rerun a rule with -R RULE, or start another "
                    "run with --config run=new"
                )
            break_seal(folder, reanalysed)
        if not (folder / "pipeline").is_dir():
            _create(folder)
            _record(folder, identity, config)
        elif reanalysed:
            _record(folder, identity, config)
        # of an older run it is not known which code and content it was measured with
        if (folder / IDENTITY_FILE).is_file():
            write_text(results / INDEX / identity.name, name + "\n")
        link = results / "current"
        temporary = results / f".current.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(name)
        temporary.replace(link)


def _create(folder: Path) -> None:
    try:
        folder.mkdir()
    except FileExistsError:
        # a call that was killed between the two leaves an empty folder, which nobody else has begun
        if any(folder.iterdir()):
            raise RunError(f"{folder} exists and is no run folder") from None


def _record(folder: Path, identity: Identity, config: dict[str, Any]) -> None:
    write_text(folder / CONFIG_FILE, yaml.safe_dump(config, sort_keys=False))
    write_json(folder / IDENTITY_FILE, identity.as_json())


def is_sealed(folder: Path) -> bool:
    """True if the run's manifest has been written."""
    return (folder / "manifest.json").is_file()


def break_seal(folder: Path, reanalysed: Sequence[str] = ()) -> None:
    """Remember the old manifest's digest, so that the next one shows that the run was changed.

    Args:
        reanalysed: keys of the analysis that changed.
    """
    manifest = folder / "manifest.json"
    history = folder / "pipeline" / "broken_seals.json"
    earlier = read_json(history) if history.is_file() else []
    broken = {
        "manifest_sha256": sha256_file(manifest),
        "broken_at": datetime.now().astimezone().isoformat(),
        "analysed_otherwise": list(reanalysed),
        # a rule that is rerun does not mend what else was damaged
        "differences": verify(folder),
    }
    write_json(history, [*earlier, broken])
    manifest.unlink()


def seal(folder: Path) -> dict[str, Any]:
    """Write ``manifest.json`` with the sha256 of every file, last.

    Logs are left out: Snakemake still writes to them.
    """
    files = {
        path.relative_to(folder).as_posix(): file_entry(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not is_outside_seal(path.relative_to(folder))
    }
    history = folder / "pipeline" / "broken_seals.json"
    manifest = {
        "run": folder.name,
        "sealed_at": datetime.now().astimezone().isoformat(),
        "broken_seals": read_json(history) if history.is_file() else [],
        "files": files,
    }
    write_json(folder / "manifest.json", manifest)
    return manifest


def verify(folder: Path) -> list[str]:
    """Differences between a sealed run and its manifest, one line each; empty if there are none.

    Raises:
        RunError: the run is not sealed.
    """
    if not is_sealed(folder):
        raise RunError(f"{folder} is not sealed: manifest.json is missing")
    files = read_json(folder / "manifest.json")["files"]
    lines = []
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            lines.append(f"missing: {name}")
        elif sha256_file(path) != entry["sha256"]:
            lines.append(f"changed: {name}")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.as_posix() not in files and not is_outside_seal(name):
            lines.append(f"extra: {name.as_posix()}")
    return lines


def require_intact(folder: Path, purpose: str) -> None:
    """Refuse a run that is not as it was sealed.

    Args:
        purpose: what is not done with it then, for example ``packed``.

    Raises:
        RunError: it is not sealed, or differs from its seal; the message says in what.
    """
    if differences := verify(folder):
        raise RunError(f"{folder} differs from its seal ({_first(differences)}); it is not {purpose}")


def _first(differences: Sequence[str]) -> str:
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return "; ".join(differences[:3]) + more


def is_outside_seal(name: Path) -> bool:
    """Logs, the manifest itself, an archive's metadata, hidden and temporary files are not part of a seal."""
    hidden = any(part.startswith(".") for part in name.parts)
    return (
        name.parts[0] == "logs" or name.as_posix() in ("manifest.json", CRATE_NAME) or hidden or name.suffix == ".tmp"
    )


@contextmanager
def locked(path: Path, message: str, timeout_s: float = 10.0):
    """Hold a file lock, or raise RunError with `message`."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout:
        raise RunError(f"{message} ({path} is locked)") from None
    try:
        yield
    finally:
        lock.release()


def _indexed(results: Path, identity: str) -> str | None:
    try:
        name = (results / INDEX / identity).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return name if (results / name / "pipeline").is_dir() else None


def announce(folder: Path) -> None:
    """Say where the run is and what it found."""
    summary = read_json(folder / "summary.json")
    log.info("run folder: %s", folder)
    log.info("report:     %s", folder / "report.html")
    log.info("verdict:    %s", summary["verdict"])
