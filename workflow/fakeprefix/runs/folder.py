"""Run folders: which one a call of snakemake belongs to, when it starts, when it is sealed."""

import hashlib
import json
import logging
import os
import re
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from fakeprefix.errors import RunError
from fakeprefix.storage import file_entry, read_json, sha256_file, write_json, write_text

log = logging.getLogger(__name__)

ENVIRONMENT_KEY = "FAKEPREFIX_RUN"
PREVIEW = "new-run"
INDEX = ".identities"

# they choose a run folder, they do not change what is measured
NOT_IDENTITY = ("run", "run_name")

# describes an archived run, comes with it when it is restored
CRATE_NAME = "ro-crate-metadata.json"


def identity_of(config: dict[str, Any], series_sha256: str, code_sha: str) -> str:
    """What makes two calls the same experiment: resolved configuration, patches, code."""
    what = {key: value for key, value in config.items() if key not in NOT_IDENTITY}
    text = json.dumps([what, series_sha256, code_sha], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def choose(results: Path, identity: str, requested: str, run_name: str, host: str, *, may_start: bool) -> str:
    """The name of the run folder that this call belongs to. Creates nothing.

    Args:
        results: folder of all runs.
        identity: from `identity_of`.
        requested: ``config["run"]``.
        run_name: last part of a new name.
        host: the machine or kind of node that is measured, part of a new name.
        may_start: this is the main process; a new name is stored by `begin` only, which a dry run never
            reaches. Otherwise `PREVIEW` stands for a run that does not exist yet.

    Raises:
        RunError: the requested run does not exist.
    """
    if name := os.environ.get(ENVIRONMENT_KEY):
        return name
    if requested not in ("", "new"):
        if not (results / requested / "pipeline").is_dir():
            raise RunError(f"config: run = {requested!r}: there is no such run folder in {results}")
        return requested
    current = _indexed(results, identity)
    if current and requested != "new":
        return current
    return new_name(run_name, host) if may_start else PREVIEW


def new_name(run_name: str, host: str, now: datetime | None = None) -> str:
    """``<date>_<time>_<host>_<name>``, in local time."""
    host = re.sub(r"[^a-z0-9-]+", "-", host.split(".")[0].lower()).strip("-") or "host"
    return f"{(now or datetime.now()):%Y-%m-%d_%H%M%S}_{host}_{run_name}"


def begin(
    results: Path, name: str, identity: str, config: dict[str, Any], *, forced: bool, packs: bool = False
) -> None:
    """Create or continue the run folder `name`; called once, when jobs are about to run.

    Args:
        forced: rules are rerun on purpose, which breaks a seal visibly.
        packs: a sealed run is only packed, which leaves it as it is.

    Raises:
        RunError: the run is sealed and nothing was forced, or another process is starting one.
    """
    results.mkdir(parents=True, exist_ok=True)
    with locked(results / ".lock", "another snakemake is starting a run here"):
        folder = results / name
        if is_sealed(folder) and not packs:
            if not forced:
                raise RunError(
                    f"{folder} is sealed and is not written to again; rerun a rule with -R RULE, or start another "
                    "run with --config run=new"
                )
            break_seal(folder)
        if not (folder / "pipeline").is_dir():
            folder.mkdir(exist_ok=True)
            write_text(folder / "pipeline" / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        write_text(results / INDEX / identity, name + "\n")
        link = results / "current"
        temporary = results / f".current.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(name)
        temporary.replace(link)


def is_sealed(folder: Path) -> bool:
    """True if the run's manifest has been written."""
    return (folder / "manifest.json").is_file()


def break_seal(folder: Path) -> None:
    """Remember the old manifest's digest, so that the next one shows that the run was changed."""
    manifest = folder / "manifest.json"
    history = folder / "pipeline" / "broken_seals.json"
    earlier = read_json(history) if history.is_file() else []
    broken = {"manifest_sha256": sha256_file(manifest), "broken_at": datetime.now().astimezone().isoformat()}
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
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise RunError(f"{folder} differs from its seal ({'; '.join(differences[:3])}{more}); it is not {purpose}")


def is_outside_seal(name: Path) -> bool:
    """Logs, the manifest itself, an archive's metadata, hidden and temporary files are not part of a seal."""
    hidden = any(part.startswith(".") for part in name.parts)
    return (
        name.parts[0] == "logs" or name.as_posix() in ("manifest.json", CRATE_NAME) or hidden or name.suffix == ".tmp"
    )


def supersede(folder: Path, file: Path) -> Path | None:
    """Move an earlier attempt's rows to ``raw/superseded/``; None if there were none."""
    if not file.is_file():
        return None
    stamp = datetime.fromtimestamp(file.stat().st_mtime).strftime("%Y%m%dT%H%M%S")
    relative = file.relative_to(folder / "raw")
    target = folder / "raw" / "superseded" / relative.parent / f"{file.name.lstrip('.').split('.')[0]}.{stamp}.jsonl"
    number = 1
    while target.exists():
        target = target.with_name(f"{target.name.split('.')[0]}.{stamp}-{number}.jsonl")
        number += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    return file.rename(target)


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
