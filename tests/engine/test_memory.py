"""The engine's memory, with real asserts and sanitizers, against the model of it."""

import os
from collections import Counter

import pytest
from conftest import engine_folder, required
from fakeprefix.engine.memory_check import Driver, Setup, compare, disagreement
from fakeprefix.engine.memory_model import EngineMemory
from fakeprefix.model.presets import MICRO_SHAPES
from fakeprefix.model.synthetic import write_micro_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.engine

N_CTX, N_SEQ = 768, 3
SETUPS = [(kind, unified) for kind in MICRO_SHAPES for unified in (True, False)]
# `make test-memory` asks for more
EXAMPLES, OPERATIONS = int(os.environ.get("MEMORY_EXAMPLES", "50")), 40


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("micro")
    for kind in MICRO_SHAPES:
        write_micro_model(kind, folder / kind / "model.gguf")
    return folder


@pytest.fixture(scope="module")
def binary():
    return required(engine_folder() / "build-checked" / "bin" / "memory_driver")


@pytest.fixture
def tried(binary, models, request):
    """A driver and its model for the kind and division that the test asks for."""
    kind, unified = request.param
    setup = Setup(models / kind / "model.gguf", N_CTX, N_SEQ, unified)
    with Driver(binary, setup) as driver:
        yield driver, driver.memory(setup)


def every_setup(*kinds):
    chosen = [(kind, unified) for kind, unified in SETUPS if not kinds or kind in kinds]
    return pytest.mark.parametrize(
        "tried", chosen, indirect=True, ids=lambda p: f"{p[0]}-{'unified' if p[1] else 'split'}"
    )


def play(tried, *commands):
    """Run commands in both; they must agree after each. Returns the last answer and whether it was accepted."""
    driver, memory = tried
    for command in commands:
        ok = memory.apply(command)
        answer = driver.run(command)
        assert disagreement(command, ok, memory, answer) is None
    return ok, memory


def unchanged(tried, command):
    """The command is refused by both and changes nothing."""
    _, memory = tried
    before = [memory.view(seq) for seq in range(N_SEQ)]
    ok, _ = play(tried, command)
    assert not ok
    assert [memory.view(seq) for seq in range(N_SEQ)] == before


def agree_on_generated_operations(driver, memory, counts):
    raw = st.tuples(*[st.integers(0, 999)] * 4)

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(raw, min_size=OPERATIONS, max_size=OPERATIONS))
    def agree(raws):
        compare(driver, memory, raws, counts)

    agree()


def test_ten_thousand_generated_operations_agree(binary, models):
    counts: Counter[str] = Counter()
    for kind, unified in SETUPS:
        setup = Setup(models / kind / "model.gguf", N_CTX, N_SEQ, unified)
        with Driver(binary, setup) as driver:
            agree_on_generated_operations(driver, driver.memory(setup), counts)
    assert sum(counts.values()) >= 10_000
    for operation in ("decode", "rm", "cp", "keep", "fake", "dry", "tile", "save", "load", "image", "add"):
        assert any(name.startswith(operation) for name in counts), operation


@every_setup()
def test_a_left_padded_sequence_anchors_at_its_first_position(tried):
    _, memory = play(tried, "decode 0 100 5")
    view = memory.view(0)
    assert view.last == 104
    assert view.hole == -1


@every_setup("attention", "hybrid")
def test_removing_a_middle_range_is_accepted_and_reported_as_a_hole(tried):
    _, memory = play(tried, "decode 0 0 10", "rm 0 3 5")
    assert (memory.view(0).hole, memory.view(0).orphaned) == (3, 3)


@every_setup("hybrid")
def test_a_hole_in_the_sequence_cannot_become_a_tile(tried):
    play(tried, "decode 0 0 10", "rm 0 3 5")
    unchanged(tried, "tile 0")


@every_setup("hybrid")
def test_a_jump_of_positions_is_accepted_under_mrope_and_reported(tried):
    ok, memory = play(tried, "decode 0 0 4", "decode 0 6 2")
    assert ok
    assert (memory.view(0).hole, memory.view(0).orphaned) == (4, 4)


@every_setup("hybrid")
def test_an_image_is_no_hole(tried):
    _, memory = play(tried, "decode 0 0 4", "image 0 4 3 2", "decode 0 7 2")
    assert memory.view(0).hole == -1
    assert memory.view(0).cells == 4 + 6 + 2


@every_setup("recurrent", "hybrid")
def test_rewinding_a_recurrent_state_is_refused_and_changes_nothing(tried):
    play(tried, "decode 0 0 10")
    unchanged(tried, "rm 0 5 -1")


@every_setup("attention")
def test_attention_rewinds_and_evicts_and_shifts(tried):
    _, memory = play(tried, "decode 0 0 10", "rm 0 6 -1", "rm 0 0 2", "add 0 -2", "decode 0 4 3")
    assert (memory.view(0).first, memory.view(0).last, memory.view(0).hole) == (0, 6, -1)


@every_setup()
def test_a_copy_is_equal_and_goes_its_own_way(tried):
    _, memory = play(tried, "decode 0 0 8", "cp 0 1", "decode 1 8 3", "rm 0 -1 -1")
    assert memory.view(1).last == 10
    assert memory.is_empty(0)


@every_setup()
@pytest.mark.parametrize("fill", ["zero", "random"])
def test_a_fabricated_prefix_of_every_boundary_length(tried, fill):
    _, memory = tried
    for n in (1, memory.capacity - 1, memory.capacity):
        ok, _ = play(tried, f"fake 0 {n} {fill}")
        assert ok
        assert memory.view(0).last == n - 1
    if memory.has_attention:
        unchanged(tried, f"fake 0 {memory.capacity + 1} {fill}")
    unchanged(tried, f"fake 0 -1 {fill}")


@every_setup()
def test_a_tile_is_needed_first_and_a_dry_run_changes_nothing(tried):
    unchanged(tried, "fake 0 20 tile")
    play(tried, "decode 1 0 16", "tile 1")
    _, memory = play(tried, "dry 0 20 tile")
    assert memory.is_empty(0)
    ok, _ = play(tried, "fake 0 20 tile")
    assert ok


@every_setup()
def test_a_prefix_over_a_used_slot_replaces_all_of_it(tried):
    _, memory = play(tried, "decode 0 40 20", "fake 0 12 zero")
    view = memory.view(0)
    assert view.last == 11
    assert view.cells == (12 if memory.has_attention else 0)


@every_setup()
@pytest.mark.parametrize("fill", ["zero", "random", "tile"])
def test_a_living_neighbour_gives_the_logits_that_it_gives_alone(tried, fill):
    driver, _ = tried
    play(tried, "decode 1 0 16", "tile 1", "decode 1 16 9", "save 1 a")
    alone = driver.run("logits 1 25")["logits"]
    assert len(alone) == 8
    play(tried, "load 1 a", f"fake 0 200 {fill}", f"fake 0 90 {fill}", "decode 0 90 5")
    assert driver.run("logits 1 25")["logits"] == alone


@every_setup()
@pytest.mark.parametrize("fill", ["zero", "random", "tile"])
def test_the_same_prefix_gives_the_same_logits_whatever_was_there(tried, fill):
    driver, _ = tried
    play(tried, "decode 0 0 16", "tile 0")
    answers = []
    for before in ("rm 0 -1 -1", "fake 0 300 random", "decode 0 300 30"):
        play(tried, before, f"fake 0 64 {fill}")
        answers.append(driver.run("logits 0 64")["logits"])
        play(tried, "rm 0 -1 -1", "fake 0 300 random")
    assert answers[0] == answers[1] == answers[2]


@every_setup()
def test_fills_differ_in_what_the_next_token_sees(tried):
    driver, _ = tried
    play(tried, "decode 0 0 16", "tile 0")
    answers = set()
    for fill in ("zero", "random", "tile"):
        play(tried, f"fake 0 64 {fill}")
        answers.add(tuple(driver.run("logits 0 64")["logits"]))
    assert len(answers) == 3


@every_setup()
def test_a_saved_sequence_comes_back_with_the_same_logits(tried):
    driver, _ = tried
    play(tried, "decode 0 0 20", "save 0 a")
    before = driver.run("logits 0 20")["logits"]
    play(tried, "rm 0 -1 -1", "fake 1 50 random", "load 0 a")
    assert driver.run("logits 0 20")["logits"] == before


# with split streams a sequence always has room for itself
@pytest.mark.parametrize("tried", [("attention", True), ("hybrid", True)], indirect=True)
def test_a_restore_without_room_is_refused_and_what_it_leaves_is_reported(tried):
    _, memory = tried
    play(tried, "fake 0 100 zero", "save 0 a", "rm 0 -1 -1", f"fake 1 {memory.capacity - 50} zero", "fake 0 20 zero")
    ok, _ = play(tried, "load 0 a")
    assert not ok
    assert memory.view(0).cells == 0
    assert (memory.view(0).hole >= 0) == memory.has_state


def test_the_model_itself_knows_an_empty_memory():
    memory = EngineMemory("hybrid", 256, 2, True, True)
    assert memory.is_empty(0)
    assert memory.view(0).hole == -1
