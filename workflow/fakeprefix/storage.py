"""Files that are either whole or absent: everything is written to a temporary name and renamed."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block ends without an error.

    The file gets the permissions that the umask leaves.

    Raises:
        OSError: the folder cannot be written to, or the disk is full. Nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    # not mkstemp: its files are 0600 whatever the umask says
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN is refused: it is not JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_table(path: str | Path, rows: Iterable[dict[str, Any]] | pa.Table, schema: pa.Schema) -> None:
    """Write rows as Parquet with exactly `schema`, atomically.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit its column.
    """
    table = rows.cast(schema) if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=schema)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


@contextmanager
def table_writer(path: str | Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Write Parquet batch by batch, so that no more than one is in memory; the file appears when it is whole."""
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        yield writer


def sha256_file(path: str | Path) -> str:
    """Hex digest of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entry(path: Path) -> dict[str, Any]:
    """Digest and size of a file, as manifests hold them."""
    return {"sha256": sha256_file(path), "bytes": path.stat().st_size}


def sha256_files(paths: Iterable[Path], root: Path) -> str:
    """Hex digest over names (relative to `root`) and contents, independent of the order given."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(bytes.fromhex(sha256_file(path)))
    return digest.hexdigest()
