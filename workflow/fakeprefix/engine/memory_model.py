"""What each memory type of the engine answers to each operation: the table of ``patches/README.md`` as code.

The engine accepts some things that the contract of `fakeprefix.trace.logical_run` forbids; this model says
which, and that the hole is reported. It is compared with the real memory by a driver program.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Position = int
OPEN_END = 2**31 - 1
N_PER_UBATCH = 64
"""Most tokens of one operation; more would be split, and a failure could leave a part of them."""


@dataclass(frozen=True)
class SequenceView:
    """What is reported of a sequence; the fields of ``llama_memory_seq_run_info`` and the two last positions."""

    first: int
    last: int
    end: int
    cells: int
    hole: int
    orphaned: int
    attn: int
    recr: int


@dataclass
class Cell:
    """An attention cell: its position, the end of what it covers, and who owns it."""

    position: Position
    end: Position
    owners: set[int]


@dataclass
class StateCell:
    """A recurrent state: the position that it has reached, and who shares it."""

    position: Position
    owners: set[int]


@dataclass
class Saved:
    """A saved sequence."""

    cells: list[tuple[Position, Position]]
    state: Position | None


@dataclass
class EngineMemory:
    """Model of one context's memory.

    Attributes:
        kind: ``attention``, ``recurrent`` or ``hybrid``.
        capacity: attention cells of one stream.
        n_seq: sequences.
        unified: one stream for all sequences, else one each.
        mrope: positions may jump forward, images share one, nothing can be shifted.
    """

    kind: str
    capacity: int
    n_seq: int
    unified: bool
    mrope: bool
    streams: list[list[Cell]] = field(init=False)
    states: list[StateCell] = field(init=False)
    saved: dict[str, Saved] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    has_tile: bool = False

    def __post_init__(self) -> None:
        self.clear()

    @property
    def has_attention(self) -> bool:
        return self.kind != "recurrent"

    @property
    def has_state(self) -> bool:
        return self.kind != "attention"

    # ---- what is there

    def stream(self, seq: int) -> list[Cell]:
        return self.streams[0 if self.unified else seq]

    def cells_of(self, seq: int) -> list[Cell]:
        return sorted((c for c in self.stream(seq) if seq in c.owners), key=lambda c: (c.position, c.end))

    def state_of(self, seq: int) -> StateCell | None:
        return next((state for state in self.states if seq in state.owners), None)

    def last_attention(self, seq: int) -> int:
        return max((cell.position for cell in self.cells_of(seq)), default=-1) if self.has_attention else -1

    def last_state(self, seq: int) -> int:
        state = self.state_of(seq)
        return state.position if state else -1

    def last(self, seq: int) -> int:
        """The last position as the engine's batches see it: the smaller one of a hybrid memory."""
        lasts = [self.last_attention(seq)] * self.has_attention + [self.last_state(seq)] * self.has_state
        return min(lasts)

    def is_empty(self, seq: int) -> bool:
        return not (self.has_attention and self.cells_of(seq)) and self.state_of(seq) is None

    def view(self, seq: int) -> SequenceView:
        attn, recr = self.last_attention(seq), self.last_state(seq)
        if not self.has_attention:
            return SequenceView(recr, recr, recr + 1, 0, -1, 0, -1, recr)
        cells = self.cells_of(seq)
        hole, orphaned, end = -1, 0, cells[0].end if cells else 0
        for i, cell in enumerate(cells):
            if cell.position > end and hole < 0:
                hole, orphaned = end, i
            end = max(end, cell.end)
        if self.has_state and hole < 0 and attn != recr:
            hole, orphaned = min(attn, recr) + 1, len(cells)
        first = cells[0].position if cells else -1
        return SequenceView(first, attn, end, len(cells), hole, orphaned, attn, recr)

    # ---- what can be done to it; every operation returns whether the engine accepts it

    def decode(self, seq: int, position: int, n: int) -> bool:
        """Text: exactly one further, or with M-RoPE anywhere behind the last position."""
        last = self.last(seq)
        if last >= 0 and (position <= last if self.mrope else position != last + 1):
            return False
        return self._place(seq, [(position + i, position + i + 1) for i in range(n)])

    def image(self, seq: int, position: int, nx: int, ny: int) -> bool:
        """Embeddings that share one position, which may even be the last one."""
        last = self.last(seq)
        if last >= 0 and position < last:
            return False
        # row and column are positions of their own, so a token covers up to the larger of them
        return self._place(seq, [(position, position + max(i // nx, i % nx) + 1) for i in range(nx * ny)])

    def _place(self, seq: int, spans: list[tuple[int, int]]) -> bool:
        # a valid batch first applies the copies between streams
        self.pending.clear()
        if self.has_attention:
            if len(spans) > self.capacity - len(self.stream(seq)):
                return False
            self.stream(seq).extend(Cell(position, end, {seq}) for position, end in spans)
        if self.has_state:
            self._drop_state(seq)
            self.states.append(StateCell(spans[-1][0], {seq}))
        return True

    def rm(self, seq: int, p0: int, p1: int) -> bool:
        """Any range of attention cells, also from the middle; of a recurrent state everything or nothing."""
        first, last = max(p0, 0), OPEN_END if p1 < 0 else p1
        state = self.state_of(seq)
        if self.has_state and state:
            if 0 < first <= state.position < last:
                return False
            if first <= state.position < last:
                self._drop_state(seq)
        if self.has_attention:
            self._disown(seq, lambda cell: first <= cell.position < last)
        return True

    def cp(self, source: int, target: int) -> bool:
        """Everything, to an empty sequence (onto another the engine would mix both, or abort)."""
        if self.has_attention:
            if self.unified:
                for cell in self.cells_of(source):
                    cell.owners.add(target)
            else:
                self.streams[target] = [Cell(c.position, c.end, {target}) for c in self.cells_of(source)]
                self.pending |= {source, target}
        if self.has_state and (state := self.state_of(source)):
            state.owners.add(target)
        return True

    def keep(self, seq: int) -> bool:
        """Forget all other sequences; with split streams only the recurrent states of them are forgotten."""
        if self.has_attention:
            index = 0 if self.unified else seq
            self.streams[index] = [Cell(c.position, c.end, {seq}) for c in self.cells_of(seq)]
        if self.has_state:
            self.states = [StateCell(state.position, {seq}) for state in self.states if seq in state.owners]
        return True

    def add(self, seq: int, delta: int) -> bool:
        """Shift all positions; shared cells move for everybody."""
        if self.has_attention:
            for cell in self.cells_of(seq):
                cell.position += delta
                cell.end += delta
        if self.has_state and delta and (state := self.state_of(seq)):
            state.position += delta
        return True

    def dry(self, seq: int, n: int, fill: str) -> bool:
        """Whether a prefix could be fabricated."""
        if n < 0 or (fill == "tile" and not self.has_tile):
            return False
        if self.has_attention:
            if not self.unified and seq in self.pending:
                return False
            own = sum(cell.owners == {seq} for cell in self.stream(seq))
            return n <= self.capacity - len(self.stream(seq)) + own
        return True

    def fake(self, seq: int, n: int, fill: str) -> bool:
        """The sequence becomes exactly ``[0, n)``, or nothing changes in either memory."""
        if not self.dry(seq, n, fill):
            return False
        if self.has_attention:
            self._disown(seq, lambda cell: True)
            self.stream(seq).extend(Cell(i, i + 1, {seq}) for i in range(n))
        if self.has_state:
            self._drop_state(seq)
            if n:
                self.states.append(StateCell(n - 1, {seq}))
        return True

    def tile(self, seq: int) -> bool:
        """A tile must be one run that is not empty."""
        view = self.view(seq)
        whole = view.hole < 0 and view.last >= 0
        self.has_tile |= whole
        return whole

    def save(self, seq: int, name: str) -> bool:
        state = self.state_of(seq)
        cells = [(cell.position, cell.end) for cell in self.cells_of(seq)] if self.has_attention else []
        self.saved[name] = Saved(cells, state.position if state else None)
        return True

    def load(self, seq: int, name: str) -> bool:
        """Not atomic in the engine: without room the cells are gone and the recurrent state is not."""
        saved = self.saved[name]
        if self.has_attention and saved.cells:
            self._disown(seq, lambda cell: True)
            if len(saved.cells) > self.capacity - len(self.stream(seq)):
                return False
            self.stream(seq).extend(Cell(position, end, {seq}) for position, end in saved.cells)
        if self.has_state:
            self._drop_state(seq)
            if saved.state is not None:
                self.states.append(StateCell(saved.state, {seq}))
        return True

    def clear(self) -> bool:
        self.streams = [[] for _ in range(1 if self.unified else self.n_seq)]
        self.states = []
        return True

    def apply(self, command: str) -> bool:
        """Run a command of the driver's language."""
        name, *arguments = command.split()
        values: list[Any] = [int(a) if a.lstrip("-").isdigit() else a for a in arguments]
        return bool(getattr(self, name)(*values))

    def _disown(self, seq: int, which: Callable[[Cell], bool]) -> None:
        cells = self.stream(seq)
        for cell in cells:
            if seq in cell.owners and which(cell):
                cell.owners.discard(seq)
        cells[:] = [cell for cell in cells if cell.owners]

    def _drop_state(self, seq: int) -> None:
        for state in self.states:
            state.owners.discard(seq)
        self.states = [state for state in self.states if state.owners]
