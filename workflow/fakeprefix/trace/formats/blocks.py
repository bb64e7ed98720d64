"""Traces of block hashes: the prefix is the longest chain of whole blocks that an earlier request has."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import JsonValue

from fakeprefix.errors import TraceError
from fakeprefix.trace.formats.conversation import OnProblem
from fakeprefix.trace.formats.files import fields_of, json_lines, read_json_file, seconds, whole_number
from fakeprefix.trace.steps import Step

MOONCAKE_BLOCK = 512


class BlockTree:
    """All chains of whole blocks that were seen, as a tree."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._nodes = 1

    def longest(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that an earlier chain has too."""
        node = 0
        for number, block in enumerate(blocks):
            node = self._children.get((node, block), 0)
            if not node:
                return number
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Remember a chain and all of its beginnings."""
        node = 0
        for block in blocks:
            key = (node, block)
            if key not in self._children:
                self._children[key] = self._nodes
                self._nodes += 1
            node = self._children[key]


def block_step(
    tree: BlockTree,
    task_id: str,
    step: int,
    tokens: int,
    blocks: JsonValue,
    block_size: int,
    where: str,
    recorded_wall_s: float | None = None,
) -> Step:
    """One step from a request's length and block hashes; remembers the request.

    Only whole blocks count, and at least one token is computed.

    Raises:
        TraceError: fewer hashes than whole blocks, or hashes that are no integers.
    """
    hashes = _integers(blocks, where)
    n_whole = tokens // block_size
    if len(hashes) < n_whole:
        raise TraceError(
            f"{where}: {tokens} tokens are {n_whole} whole blocks of {block_size}, hash_ids has {len(hashes)}"
        )
    whole = hashes[:n_whole]
    prefix = min(tree.longest(whole), (tokens - 1) // block_size) * block_size
    tree.add(whole)
    visible = ((0, prefix - 1),) if prefix else ()
    return Step(task_id, step, prefix, tokens - prefix, visible=visible, recorded_wall_s=recorded_wall_s)


def _integers(values: JsonValue, where: str) -> list[int]:
    found = [value for value in values if isinstance(value, int)] if isinstance(values, list) else []
    # a truth value is an integer to Python
    if not isinstance(values, list) or len(found) < len(values) or any(isinstance(value, bool) for value in found):
        raise TraceError(f"{where}: hash_ids must be a list of integers")
    return found


def kv_cache_tester(path: Path, on_problem: OnProblem) -> Iterator[Step]:
    """A trace of kv-cache-tester: one task, its requests with counts and hashes of blocks.

    Raises:
        TraceError: the file is not of this format.
    """
    content = fields_of(read_json_file(path))
    requests = content.get("requests")
    if not isinstance(requests, list):
        raise TraceError(f"{path}: has no list of requests")
    block_size = whole_number(content.get("block_size"), "block_size", str(path), 1)
    tree, task = BlockTree(), str(content.get("id", path.stem))
    for number, request in enumerate(requests):
        where = f"{path}, request {number}"
        try:
            if not isinstance(request, dict):
                raise TraceError(f"{where}: is not an object")
            yield block_step(
                tree,
                task,
                number,
                whole_number(request.get("in"), "in", where, 1),
                request.get("hash_ids"),
                block_size,
                where,
                recorded_wall_s=seconds(request.get("api_time"), "api_time", where),
            )
        except TraceError as error:
            on_problem(error, task)


def mooncake(path: Path, on_problem: OnProblem) -> Iterator[Step]:
    """A trace of Mooncake: one scope of requests, a prefix may come from any earlier one of them.

    Raises:
        TraceError: the file cannot be read.
    """
    tree = BlockTree()
    for number, (where, row) in enumerate(json_lines(path)):
        try:
            if isinstance(row, TraceError):
                raise row
            if not isinstance(row, dict):
                raise TraceError(f"{where}: is not an object")
            tokens = whole_number(row.get("input_length"), "input_length", where, 1)
            yield block_step(tree, path.stem, number, tokens, row.get("hash_ids"), MOONCAKE_BLOCK, where)
        except TraceError as error:
            on_problem(error, path.stem)
