"""Operations on several logical runs over one pool of slots: the reference model that the engine is tested against.

Every operation works on a private candidate, which is published only if all of it is valid, so a
refused operation leaves the state exactly as it was.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fakeprefix.errors import TraceError
from fakeprefix.trace.logical_run import GROUP, Hole, HoleError, Run, Token, hole_of


class CapacityError(TraceError):
    """There are not enough free slots."""


class Sequences:
    """Several sequences over one pool of slots.

    Args:
        capacity: physical slots.

    A slot belongs to every sequence that has a token in it: `fork` shares slots, `copy` does not.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise TraceError(f"capacity = {capacity}, must be >= 1")
        self.capacity = capacity
        self._runs: dict[int, Run] = {}
        self._next_slot = 0

    def run(self, sequence: int) -> Run:
        """The run of a sequence, empty if it does not exist."""
        return self._runs.get(sequence, Run())

    def sequences(self) -> list[int]:
        """Sequences that have tokens."""
        return sorted(name for name, run in self._runs.items() if run.tokens)

    def free_slots(self) -> int:
        return self.capacity - len(self._used())

    def append(self, sequence: int, n: int = 1, *, at: int | None = None, extent: int = 1) -> None:
        """Append `n` tokens; of text with `extent` 1, of one image if they share a position and cover `extent`.

        Args:
            at: the first position. It must be exactly where the run ends; an empty run may begin anywhere.

        Raises:
            HoleError: `at` lies behind the end of the run.
            TraceError: `at` lies inside of the run, or a number is not positive.
            CapacityError: there are not enough slots.
        """
        if n < 1 or extent < 1:
            raise TraceError(f"n = {n}, extent = {extent}: must be >= 1")
        run = self.run(sequence)
        position = run.end if at is None else at
        if position < 0:
            raise TraceError(f"position {position} is negative")
        if run.tokens and position > run.end:
            raise HoleError(Hole(run.end, len(run.tokens)))
        if run.tokens and position < run.end:
            raise TraceError(f"position {position} is taken, the run ends at {run.end}")
        slots = self._allocate(n)
        if extent > 1:
            new = tuple(Token(position, position + extent, slot) for slot in slots)
        else:
            new = tuple(Token(position + i, position + i + 1, slot) for i, slot in enumerate(slots))
        advanced = new[-1].end - position
        self._publish({sequence: Run(run.tokens + new, max(0, run.reserved - advanced))}, slots)

    def reserve(self, sequence: int, n: int) -> None:
        """Set `n` positions aside behind the run; they are not live and have no slots yet.

        Raises:
            CapacityError: there could never be so many tokens.
        """
        if n < 0:
            raise TraceError(f"n = {n}, must be >= 0")
        if n > self.free_slots():
            raise CapacityError(f"{n} positions cannot be reserved, {self.free_slots()} slots are free")
        self._publish({sequence: replace(self.run(sequence), reserved=n)})

    def remove(self, sequence: int, first: int, last: int) -> None:
        """Remove the tokens at positions ``first..last``: a beginning, an end, everything or nothing.

        Raises:
            HoleError: what is left would not be one run.
        """
        run = self.run(sequence)
        kept = tuple(token for token in run.tokens if not first <= token.position <= last)
        if hole := hole_of(kept):
            raise HoleError(hole)
        self._publish({sequence: replace(run, tokens=kept)})

    def rewind(self, sequence: int, position: int) -> None:
        """Forget everything from `position` on.

        Raises:
            TraceError: `position` lies inside of an image, or behind the end.
        """
        run = self.run(sequence)
        if position > run.end:
            raise TraceError(f"position {position} lies behind the end of the run, {run.end}")
        kept = tuple(token for token in run.tokens if token.position < position)
        if kept and max(token.end for token in kept) > position:
            raise TraceError(f"position {position} lies inside of an image")
        self._publish({sequence: Run(kept)})

    def evict_oldest(self, sequence: int, n: int) -> None:
        """Drop the oldest tokens, at least `n` of them; an image goes as a whole. Groups anchor anew.

        Raises:
            TraceError: there are fewer than `n`.
        """
        run = self.run(sequence)
        if not 0 <= n <= len(run.tokens):
            raise TraceError(f"n = {n}, the run has {len(run.tokens)} tokens")
        if n == 0:
            return
        position = run.tokens[n - 1].position
        self._publish({sequence: replace(run, tokens=tuple(t for t in run.tokens if t.position > position))})

    def shift(self, sequence: int, delta: int) -> None:
        """Move the whole run to other positions; its tokens stay where they are.

        Raises:
            TraceError: a position would become negative.
        """
        run = self.run(sequence)
        if run.tokens and run.tokens[0].position + delta < 0:
            raise TraceError(f"delta = {delta}: position {run.tokens[0].position + delta} is negative")
        moved = tuple(Token(t.position + delta, t.end + delta, t.slot) for t in run.tokens)
        self._publish({sequence: replace(run, tokens=moved)})

    def fork(self, source: int, target: int) -> None:
        """`target` becomes a second owner of the tokens of `source`; both go on independently."""
        if source != target:
            self._publish({target: Run(self.run(source).tokens)})

    def copy(self, source: int, target: int) -> None:
        """`target` becomes an equal run in slots of its own.

        Raises:
            CapacityError: there are not enough slots.
        """
        if source == target:
            return
        tokens = self.run(source).tokens
        slots = self._allocate(len(tokens), freed=target)
        copied = tuple(replace(token, slot=slot) for token, slot in zip(tokens, slots, strict=True))
        self._publish({target: Run(copied)}, slots)

    def reset(self, sequence: int) -> None:
        """Forget a sequence."""
        self._publish({sequence: Run()})

    def fabricate(self, sequence: int, n: int) -> None:
        """The sequence becomes exactly the positions ``[0, n)`` in slots of its own.

        Raises:
            CapacityError: there are not `n` slots that are free or belong to this sequence alone.
        """
        if n < 0:
            raise TraceError(f"n = {n}, must be >= 0")
        slots = self._allocate(n, freed=sequence, lowest=True)
        self._publish({sequence: Run(tuple(Token(i, i + 1, slot) for i, slot in enumerate(slots)))}, slots)

    def compact(self) -> None:
        """Move all tokens to the lowest slots; positions do not change."""
        moved = {slot: i for i, slot in enumerate(sorted(self._used()))}
        runs = {
            name: replace(run, tokens=tuple(replace(token, slot=moved[token.slot]) for token in run.tokens))
            for name, run in self._runs.items()
        }
        self._publish(runs)
        self._next_slot = len(moved) % self.capacity

    def serialize(self, sequence: int) -> str:
        """The run of a sequence as JSON; slots are left out, they mean nothing elsewhere."""
        run = self.run(sequence)
        return json.dumps({"tokens": [[t.position, t.end] for t in run.tokens], "reserved": run.reserved})

    def restore(self, sequence: int, text: str) -> None:
        """Replace the run of a sequence by a serialized one, or change nothing.

        Raises:
            HoleError: the serialized run has a hole.
            TraceError: it is damaged.
            CapacityError: there are not enough slots.
        """
        pairs, reserved = _parse(text)
        if hole := hole_of(Token(position, end, 0) for position, end in pairs):
            raise HoleError(hole)
        slots = self._allocate(len(pairs), freed=sequence)
        tokens = tuple(Token(position, end, slot) for (position, end), slot in zip(pairs, slots, strict=True))
        self._publish({sequence: Run(tokens, reserved)}, slots)

    def state(self) -> tuple[int, int, tuple[tuple[int, Run], ...]]:
        """Everything there is, for comparison."""
        return self.capacity, self._next_slot, tuple(sorted(self._runs.items()))

    def _used(self, without: int | None = None) -> set[int]:
        return {token.slot for name, run in self._runs.items() if name != without for token in run.tokens}

    def _allocate(self, n: int, *, freed: int | None = None, lowest: bool = False) -> list[int]:
        """`n` free slots, from the ring's next one on; those of `freed` alone count as free."""
        used = self._used(without=freed)
        if n > self.capacity - len(used):
            raise CapacityError(f"{n} slots are needed, {self.capacity - len(used)} of {self.capacity} are free")
        start = 0 if lowest else self._next_slot
        return list(_first(n, (slot % self.capacity for slot in range(start, start + self.capacity)), used))

    def _publish(self, candidate: dict[int, Run], slots: Sequence[int] = ()) -> None:
        """Check all of the candidate, then make it the state; the only place that changes anything."""
        for run in candidate.values():
            if hole := hole_of(run.tokens):
                raise HoleError(hole)
            _check_partition(run)
        runs = {name: run for name, run in (self._runs | candidate).items() if run.tokens or run.reserved}
        self._runs = runs
        if slots:
            self._next_slot = (slots[-1] + 1) % self.capacity


def _first(n: int, slots: Iterator[int], used: set[int]) -> Iterator[int]:
    for slot in slots:
        if n == 0:
            return
        if slot not in used:
            n -= 1
            yield slot


def _check_partition(run: Run) -> None:
    parts = [token for group in run.groups() for token in group] + list(run.tail())
    if tuple(parts) != run.tokens or len(run.tail()) >= GROUP:
        raise TraceError("groups and tail do not partition the run")


def _parse(text: str) -> tuple[list[tuple[int, int]], int]:
    try:
        values = json.loads(text)
        pairs, reserved = [(position, end) for position, end in values["tokens"]], values["reserved"]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"a serialized run is damaged ({type(error).__name__})") from None
    numbers = [number for pair in pairs for number in pair] + [reserved]
    if any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in numbers):
        raise TraceError("a serialized run is damaged (a position is not a number)")
    if any(end <= position for position, end in pairs) or pairs != sorted(pairs):
        raise TraceError("a serialized run is damaged (positions are not in order)")
    return pairs, reserved
