"""The logical run: the positions that a sequence can see, one contiguous range with any first position.

A prefix may begin anywhere, it may not have a gap. `fakeprefix.trace.sequences` has the operations.

Identity is the position. The physical slot of a token may wrap, be compacted or be used again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fakeprefix.errors import TraceError

GROUP = 4
"""Tokens of a whole group; what is left over is the raw tail of 0 to 3."""


class HoleError(TraceError):
    """An operation would leave a position missing inside of a run.

    Attributes:
        hole: where, and what it would cost.
    """

    def __init__(self, hole: "Hole") -> None:
        super().__init__(
            f"position {hole.position} would be missing, {hole.n_orphaned} live tokens before it would be orphaned"
        )
        self.hole = hole


@dataclass(frozen=True)
class Hole:
    """A gap in a run.

    Attributes:
        position: the first missing position.
        n_orphaned: live tokens before it, which would silently drop out of attention.
    """

    position: int
    n_orphaned: int


def first_hole(ranges: Sequence[tuple[int, int]]) -> Hole | None:
    """The first gap between ranges ``(first, last)``, both ends included; None if they are one run."""
    end = None
    live = 0
    for first, last in sorted(ranges):
        if end is not None and first > end + 1:
            return Hole(end + 1, live)
        # overlapping ranges count a token once
        live += max(0, last - (first if end is None else max(first, end + 1)) + 1)
        end = last if end is None else max(end, last)
    return None


@dataclass(frozen=True)
class Token:
    """One live token.

    Attributes:
        position: its position; all tokens of an image share one.
        end: one past the last position that it covers; ``position + 1`` for text.
        slot: the physical slot that holds it.
    """

    position: int
    end: int
    slot: int


@dataclass(frozen=True)
class Run:
    """The tokens of one sequence in the order of their positions; always contiguous, or empty.

    Attributes:
        tokens: the live tokens.
        reserved: positions behind the run that are set aside for tokens to come.
    """

    tokens: tuple[Token, ...] = ()
    reserved: int = 0

    @property
    def first(self) -> int | None:
        return self.tokens[0].position if self.tokens else None

    @property
    def last(self) -> int | None:
        return self.tokens[-1].position if self.tokens else None

    @property
    def end(self) -> int:
        """The only position at which the run can be continued; 0 if it is empty."""
        return max(token.end for token in self.tokens) if self.tokens else 0

    def groups(self) -> list[tuple[Token, ...]]:
        """Whole groups, anchored at the first live token."""
        whole = len(self.tokens) - len(self.tokens) % GROUP
        return [self.tokens[i : i + GROUP] for i in range(0, whole, GROUP)]

    def tail(self) -> tuple[Token, ...]:
        """The tokens behind the last whole group, 0 to 3."""
        return self.tokens[len(self.tokens) - len(self.tokens) % GROUP :]


def hole_of(tokens: Iterable[Token]) -> Hole | None:
    """The first gap between tokens, or None."""
    end = None
    for seen, token in enumerate(sorted(tokens, key=lambda token: (token.position, token.end))):
        if end is not None and token.position > end:
            return Hole(end, seen)
        end = token.end if end is None else max(end, token.end)
    return None
