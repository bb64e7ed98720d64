"""The reference model of the prefix contract, against a naive list of positions."""

import json

import pytest
from fakeprefix.errors import TraceError
from fakeprefix.trace.logical_run import GROUP, Hole, HoleError
from fakeprefix.trace.sequences import CapacityError, Sequences
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

CAPACITY = 40
SEQUENCES = st.integers(0, 2)


def positions(store, sequence=0):
    return [token.position for token in store.run(sequence).tokens]


def filled(at=0, n=10, capacity=CAPACITY):
    store = Sequences(capacity)
    store.append(0, n, at=at)
    return store


def refused(store, error, operation):
    """The operation raises, and nothing has changed."""
    before = store.state()
    with pytest.raises(error) as caught:
        operation()
    assert store.state() == before
    return caught.value


@pytest.mark.parametrize("first", [0, 100, 4096])
def test_left_padding_and_a_shifted_start_are_legal_and_move_the_groups(first):
    store = filled(first, 5)
    run = store.run(0)
    assert positions(store) == list(range(first, first + 5))
    assert [[t.position for t in group] for group in run.groups()] == [list(range(first, first + GROUP))]
    assert [t.position for t in run.tail()] == [first + 4]


def test_an_internal_hole_is_refused_with_its_position_and_cost():
    store = filled(100, 2)
    error = refused(store, HoleError, lambda: store.append(0, 2, at=103))
    assert error.hole == Hole(102, 2)
    assert str(error) == "position 102 would be missing, 2 live tokens before it would be orphaned"


def test_removing_a_middle_range_is_refused_and_either_end_is_not():
    store = filled(0, 10)
    error = refused(store, HoleError, lambda: store.remove(0, 3, 5))
    assert error.hole == Hole(3, 3)
    store.remove(0, 0, 2)
    store.remove(0, 8, 99)
    assert positions(store) == [3, 4, 5, 6, 7]
    assert store.run(0).groups()[0][0].position == 3


def test_each_append_is_exactly_one_further():
    store = filled(0, 3)
    refused(store, TraceError, lambda: store.append(0, 1, at=2))
    refused(store, TraceError, lambda: store.append(0, 0))
    refused(store, TraceError, lambda: store.append(1, 1, at=-1))
    store.append(0, 1, at=3)
    assert positions(store) == [0, 1, 2, 3]


def test_an_image_shares_one_position_and_advances_by_its_extent():
    store = filled(0, 2)
    store.append(0, 6, extent=3)
    store.append(0, 1)
    assert positions(store) == [0, 1, 2, 2, 2, 2, 2, 2, 5]
    refused(store, TraceError, lambda: store.rewind(0, 3))
    store.rewind(0, 2)
    assert positions(store) == [0, 1]


def test_slots_wrap_when_the_oldest_are_evicted_and_positions_go_on():
    store = filled(0, 8, capacity=8)
    refused(store, CapacityError, lambda: store.append(0))
    store.evict_oldest(0, 3)
    store.append(0, 3)
    assert positions(store) == list(range(3, 11))
    assert [token.slot for token in store.run(0).tokens] == [3, 4, 5, 6, 7, 0, 1, 2]
    store.compact()
    assert positions(store) == list(range(3, 11))
    assert {token.slot for token in store.run(0).tokens} == set(range(8))


def test_evicting_into_an_image_drops_all_of_it():
    store = filled(0, 1)
    store.append(0, 4, extent=2)
    store.append(0, 2)
    store.evict_oldest(0, 2)
    assert positions(store) == [3, 4]


def test_a_fork_shares_slots_and_a_copy_does_not():
    store = filled(0, 6)
    store.fork(0, 1)
    assert store.free_slots() == CAPACITY - 6
    store.copy(0, 2)
    assert store.free_slots() == CAPACITY - 12
    store.append(1, 2)
    store.rewind(0, 3)
    assert positions(store, 1) == list(range(8))
    assert positions(store, 2) == list(range(6))
    assert positions(store) == [0, 1, 2]


def test_a_shift_moves_positions_and_not_slots():
    store = filled(5, 4)
    before = [token.slot for token in store.run(0).tokens]
    refused(store, TraceError, lambda: store.shift(0, -6))
    store.shift(0, -5)
    assert positions(store) == [0, 1, 2, 3]
    assert [token.slot for token in store.run(0).tokens] == before


def test_reserving_is_bounded_and_used_up_by_appending():
    store = filled(0, 2, capacity=10)
    refused(store, CapacityError, lambda: store.reserve(0, 9))
    store.reserve(0, 8)
    store.append(0, 3)
    assert store.run(0).reserved == 5


def test_serializing_and_restoring_gives_the_same_run_in_other_slots():
    store = filled(7, 5)
    text = store.serialize(0)
    other = Sequences(CAPACITY)
    other.append(3, 4)
    other.restore(0, text)
    assert positions(other) == positions(store)
    assert not {t.slot for t in other.run(0).tokens} & {t.slot for t in other.run(3).tokens}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"tokens": [[0, 1], [2, 3]], "reserved": 0}', HoleError),
        ('{"tokens": [[1, 2], [0, 1]], "reserved": 0}', TraceError),
        ('{"tokens": [[0, 0]], "reserved": 0}', TraceError),
        ('{"tokens": [[0, 1]]}', TraceError),
        ('{"tokens": [[0, true]], "reserved": 0}', TraceError),
        ('{"tokens": [[0', TraceError),
        ("[]", TraceError),
        (json.dumps({"tokens": [[i, i + 1] for i in range(99)], "reserved": 0}), CapacityError),
    ],
)
def test_a_damaged_run_is_not_restored_and_changes_nothing(text, error):
    store = filled(0, 5)
    refused(store, error, lambda: store.restore(0, text))


@pytest.mark.parametrize("n", [1, CAPACITY - 1, CAPACITY])
def test_a_fabricated_prefix_replaces_the_sequence_and_never_another(n):
    store = filled(50, 7)
    store.fabricate(0, n)
    assert positions(store) == list(range(n))
    store.reset(0)
    store.append(1, 3)
    refused(store, CapacityError, lambda: store.fabricate(0, CAPACITY))
    assert positions(store, 1) == [0, 1, 2]


class Machine(RuleBasedStateMachine):
    """Random operations; beside the store, each sequence is a plain list of (position, end)."""

    def __init__(self):
        super().__init__()
        self.store = Sequences(CAPACITY)
        self.naive: dict[int, list[tuple[int, int]]] = {}

    def attempt(self, sequence, expected, operation):
        """`expected` is the new list, or None if the contract forbids it."""
        before = self.store.state()
        try:
            operation()
        except CapacityError:
            assert self.store.state() == before
        except TraceError:
            assert self.store.state() == before
            assert expected is None
        else:
            assert expected is not None
            self.naive[sequence] = expected

    @rule(sequence=SEQUENCES, n=st.integers(1, 6), offset=st.integers(-2, 2), extent=st.integers(1, 3))
    def append(self, sequence, n, offset, extent):
        old = self.naive.get(sequence, [])
        end = max((e for _, e in old), default=0)
        at = end + offset
        new = [(at, at + extent)] * n if extent > 1 else [(at + i, at + i + 1) for i in range(n)]
        legal = at >= 0 if not old else offset == 0
        self.attempt(
            sequence, old + new if legal else None, lambda: self.store.append(sequence, n, at=at, extent=extent)
        )

    @rule(sequence=SEQUENCES, first=st.integers(0, 60), length=st.integers(0, 20))
    def remove(self, sequence, first, length):
        kept = [(p, e) for p, e in self.naive.get(sequence, []) if not first <= p <= first + length]
        covered = {q for p, e in kept for q in range(p, e)}
        whole = not covered or covered == set(range(min(covered), max(covered) + 1))
        self.attempt(sequence, kept if whole else None, lambda: self.store.remove(sequence, first, first + length))

    @rule(sequence=SEQUENCES, n=st.integers(0, 8))
    def evict(self, sequence, n):
        old = self.naive.get(sequence, [])
        kept = None
        if n <= len(old):
            kept = [(p, e) for p, e in old if p > old[n - 1][0]] if n else old
        self.attempt(sequence, kept, lambda: self.store.evict_oldest(sequence, n))

    @rule(sequence=SEQUENCES, delta=st.integers(-10, 10))
    def shift(self, sequence, delta):
        moved = [(p + delta, e + delta) for p, e in self.naive.get(sequence, [])]
        self.attempt(
            sequence, moved if all(p >= 0 for p, _ in moved) else None, lambda: self.store.shift(sequence, delta)
        )

    @rule(source=SEQUENCES, other=SEQUENCES, shared=st.booleans())
    def duplicate(self, source, other, shared):
        operation = self.store.fork if shared else self.store.copy
        self.attempt(other, list(self.naive.get(source, [])), lambda: operation(source, other))

    @rule(source=SEQUENCES, other=SEQUENCES)
    def move_by_file(self, source, other):
        text = self.store.serialize(source)
        self.attempt(other, list(self.naive.get(source, [])), lambda: self.store.restore(other, text))

    @rule(sequence=SEQUENCES, n=st.integers(0, CAPACITY + 2))
    def fabricate(self, sequence, n):
        self.attempt(sequence, [(i, i + 1) for i in range(n)], lambda: self.store.fabricate(sequence, n))

    @precondition(lambda self: self.store.sequences())
    @rule()
    def compact(self):
        self.store.compact()

    @invariant()
    def agrees(self):
        for sequence in range(3):
            run = self.store.run(sequence)
            assert [(t.position, t.end) for t in run.tokens] == self.naive.get(sequence, [])
            assert len({t.slot for t in run.tokens}) == len(run.tokens)
            assert all(0 <= t.slot < CAPACITY for t in run.tokens)


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
