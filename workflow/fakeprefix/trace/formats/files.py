"""Reading text files of traces, with one clear line for what is wrong in them."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue

from fakeprefix.errors import TraceError


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        TraceError: it is missing, empty or not UTF-8.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file; trace.path is relative to the folder where snakemake runs")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8 (byte {error.start}); convert it first") from None
    if not text.strip():
        raise TraceError(f"{path}: is empty")
    return text


def read_json_file(path: Path) -> JsonValue:
    """The value of a JSON file.

    Raises:
        TraceError: it is missing, empty, not UTF-8 or not JSON.
    """
    try:
        value: JsonValue = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise TraceError(f"{path}: is nested too deeply") from None
    return value


def fields_of(value: JsonValue) -> dict[str, JsonValue]:
    """The fields of an object, none if the value is something else."""
    return value if isinstance(value, dict) else {}


def json_lines(path: Path) -> Iterator[tuple[str, JsonValue | TraceError]]:
    """The values of a JSON Lines file with where they are, one line in memory at a time.

    A line that is not JSON comes as the error, so that its reader can skip it.

    Raises:
        TraceError: the file is missing, empty or not UTF-8.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file; trace.path is relative to the folder where snakemake runs")
    any_line = False
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                any_line = True
                where = f"{path}, line {number}"
                try:
                    yield where, json.loads(line)
                except json.JSONDecodeError as error:
                    yield where, TraceError(f"{where}: not JSON ({error.msg})")
                except RecursionError:
                    yield where, TraceError(f"{where}: is nested too deeply")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8 ({error.reason}); convert it first") from None
    if not any_line:
        raise TraceError(f"{path}: is empty")


def whole_number(value: object, name: str, where: str, at_least: int = 0) -> int:
    """An integer field.

    Raises:
        TraceError: another type, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(f"{where}: {name} = {value!r}, must be an integer")
    if value < at_least:
        raise TraceError(f"{where}: {name} = {value}, must be >= {at_least}")
    return value


def seconds(value: object, name: str, where: str) -> float | None:
    """A time in seconds, or None where it was not recorded.

    Raises:
        TraceError: not a number, or negative.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TraceError(f"{where}: {name} = {value!r}, must be seconds >= 0")
    return float(value)
