"""Sealed runs as one file: packed reproducibly, verified, and unpacked without trusting the archive."""

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

import zstandard

from fakeprefix.errors import RunError
from fakeprefix.runs.crate import run_crate
from fakeprefix.runs.folder import CRATE_NAME, is_sealed, require_intact
from fakeprefix.storage import file_entry, read_json, replacing, sha256_file

INVENTORY = "inventory.json"
ZSTD_LEVEL = 10
# what is written while a run is sealed or packed, and would differ from one packing to the next
NOT_PACKED = ("logs/seal/", "logs/archive/")
# an archive that unpacks to more is refused; the largest runs have a few GiB of rows
MAX_BYTES = 64 * 2**30


def pack(folder: Path, archive: Path) -> dict[str, Any]:
    """Pack a sealed run into one file; the same run gives the same bytes.

    Members are sorted, with fixed times (of the seal), owners and modes. The first member is the
    inventory with the sha256 of every other one; a research-object crate describes them.

    Returns:
        The inventory.

    Raises:
        RunError: the run is not sealed, or differs from its seal; the message says in what.
    """
    if not is_sealed(folder):
        missing = [name for name in ("report.html", "summary.json", "replay.parquet") if not (folder / name).is_file()]
        lacks = f"; it lacks {', '.join(missing)}" if missing else ""
        raise RunError(f"{folder} is not sealed: manifest.json is missing{lacks}; finish the run first")
    require_intact(folder, "packed")
    sealed = read_json(folder / "manifest.json")
    sealed_at = datetime.fromisoformat(sealed["sealed_at"])
    names = packed_names(folder)
    crate = _json_bytes(run_crate(folder, names))
    # what is sealed was verified a moment ago
    contents = {name: sealed["files"].get(name) or file_entry(folder / name) for name in names}
    contents[CRATE_NAME] = {"sha256": hashlib.sha256(crate).hexdigest(), "bytes": len(crate)}
    inventory = {"run": folder.name, "files": dict(sorted(contents.items()))}
    with replacing(archive) as temporary:
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        with (
            temporary.open("wb") as file,
            compressor.stream_writer(file) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _add(tar, folder.name, INVENTORY, io.BytesIO(_json_bytes(inventory)), sealed_at)
            for name in inventory["files"]:
                if name == CRATE_NAME:
                    _add(tar, folder.name, name, io.BytesIO(crate), sealed_at)
                else:
                    with (folder / name).open("rb") as member:
                        _add(tar, folder.name, name, member, sealed_at)
    return inventory


def packed_names(folder: Path) -> list[str]:
    """Files of a run that are packed, relative and sorted; links and hidden files are not."""
    return sorted(
        name
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        for name in [path.relative_to(folder).as_posix()]
        if not name.startswith(NOT_PACKED) and not any(part.startswith(".") for part in PurePosixPath(name).parts)
    )


def verify_archive(archive: Path) -> list[str]:
    """What is wrong with an archive, one line each; empty if it is intact.

    Raises:
        RunError: there is no such file.
    """
    problems, seen, inventory = [], set(), None
    try:
        with _reading(archive):
            for member, stream in _members(archive):
                _, name = _checked_name(member)
                if inventory is None:
                    inventory = _read_inventory(name, stream)
                    continue
                entry = inventory["files"].get(name)
                if entry is None or name in seen:
                    problems.append(f"extra: {name}")
                    continue
                seen.add(name)
                if hashlib.file_digest(stream, "sha256").hexdigest() != entry["sha256"]:
                    problems.append(f"damaged: {name}")
    except RunError as error:
        problems.append(str(error))
    if inventory is not None:
        problems += [f"missing: {name}" for name in inventory["files"] if name not in seen]
    return problems


def restore(archive: Path, results: Path) -> Path:
    """Unpack an archive as a run folder below `results`; it appears only if all of it is intact.

    Returns:
        The run folder.

    Raises:
        RunError: the archive is damaged, has a member that is no plain file or lies outside of the run's
            folder, or the run folder exists already.
    """
    results.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".restore.", dir=results))
    try:
        inventory: dict[str, Any] | None = None
        run = ""
        left: set[str] = set()
        for member, stream in _members(archive):
            root, name = _checked_name(member)
            if inventory is None:
                inventory, run = _read_inventory(name, stream), root
                left = set(inventory["files"])
                if (results / run).exists():
                    raise RunError(f"{results / run} exists already; move it away first")
                continue
            if root != run or name not in left:
                raise RunError(f"{archive}: extra: {member.name}")
            left.remove(name)
            target = work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file, _reading(archive):
                shutil.copyfileobj(stream, file)
            if sha256_file(target) != inventory["files"][name]["sha256"]:
                raise RunError(f"{archive}: damaged: {name}")
        if inventory is None or left:
            raise RunError(f"{archive}: missing: {min(left) if left else INVENTORY}")
        work.chmod(0o755)
        return work.rename(results / run)
    finally:
        if work.exists():
            shutil.rmtree(work)


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.is_file():
        raise RunError(f"{archive}: no such archive")
    with (
        archive.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        yield tar


def _members(archive: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Members with their content, in order; damage of the container is an error of the archive."""
    total = 0
    try:
        with _reading(archive), _opened(archive) as tar:
            for member in tar:
                total += member.size
                if total > MAX_BYTES:
                    raise RunError(f"{archive}: unpacks to more than {MAX_BYTES // 2**30} GiB")
                if not member.isreg():
                    raise RunError(f"{archive}: {member.name} is no plain file")
                yield member, tar.extractfile(member)
    except OSError as error:
        raise RunError(f"{archive}: cannot be read ({error.strerror or error})") from None


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Damage that shows while an archive is read, in the middle of a member too, as an error of the archive."""
    try:
        yield
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise RunError(f"{archive}: damaged or not an archive of a run ({error})") from None


def _checked_name(member: tarfile.TarInfo) -> tuple[str, str]:
    """Run and name of a member.

    Raises:
        RunError: the name leads out of the run's folder.
    """
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or "\\" in member.name or "\0" in member.name:
        raise RunError(f"{member.name!r} would lie outside of the run's folder")
    return path.parts[0], PurePosixPath(*path.parts[1:]).as_posix()


def _read_inventory(name: str, stream: IO[bytes]) -> dict[str, Any]:
    if name != INVENTORY:
        raise RunError(f"the first member is {name}, must be {INVENTORY}")
    try:
        inventory = json.loads(stream.read())
        files = inventory["files"]
        if not all(isinstance(entry["sha256"], str) for entry in files.values()):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{INVENTORY} is damaged") from None
    return inventory


def _add(tar: tarfile.TarFile, run: str, name: str, content: IO[bytes], when: datetime) -> None:
    member = tarfile.TarInfo(f"{run}/{name}")
    content.seek(0, io.SEEK_END)
    member.size = content.tell()
    content.seek(0)
    member.mtime = int(when.timestamp())
    member.mode = 0o644
    tar.addfile(member, content)


def _json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
