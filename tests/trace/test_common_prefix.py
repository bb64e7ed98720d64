import numpy as np
import pytest
from fakeprefix.errors import TraceError
from fakeprefix.trace.common_prefix import ImageIds, PrefixIndex, RenderedPrompt, TaskSteps, kept_behind_gap
from fakeprefix.trace.steps import StepImage
from hypothesis import given
from hypothesis import strategies as st


def ids(*ranges):
    return np.concatenate([np.arange(first, last) for first, last in ranges]).astype(np.int64)


def steps(*prompts):
    task = TaskSteps("t", "keep_all")
    return [
        task.add(RenderedPrompt(number, prompt) if not isinstance(prompt, RenderedPrompt) else prompt)
        for number, prompt in enumerate(prompts)
    ]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8))
def test_the_longest_known_prefix_is_that_of_a_plain_comparison(sequences):
    index, seen = PrefixIndex(), []
    for sequence in sequences:
        array = np.array(sequence, dtype=np.int64)
        expected = 0
        for other in seen:
            same = 0
            while same < min(len(other), len(sequence)) and other[same] == sequence[same]:
                same += 1
            expected = max(expected, same)
        assert index.longest(array) == expected
        index.add(array, expected)
        seen.append(sequence)


def test_the_prefix_is_what_is_common_and_not_the_previous_length():
    first, second = steps(ids((0, 100)), ids((0, 90), (500, 520)))
    assert (first.prefix_tokens, first.new_tokens) == (0, 100)
    assert (second.prefix_tokens, second.new_tokens) == (90, 20)
    assert second.visible == ((0, 89),)


def test_a_prefix_may_come_from_any_earlier_prompt_of_the_task():
    *_, third = steps(ids((0, 100)), ids((900, 950)), ids((0, 100), (200, 230)))
    assert (third.prefix_tokens, third.new_tokens) == (100, 30)


def test_one_token_at_least_is_computed():
    _, again = steps(ids((0, 100)), ids((0, 100)))
    assert (again.prefix_tokens, again.new_tokens) == (99, 1)


def test_an_image_is_present_as_a_whole_or_not_at_all():
    image = StepImage("a.png", 64, 64, 40)
    cells = ImageIds().cells("digest", 40)
    prompt = RenderedPrompt(0, np.concatenate([ids((0, 50)), cells]), ((50, image),))
    _, again = steps(prompt, RenderedPrompt(1, prompt.ids, prompt.images))
    # backing off by one token would cut the image
    assert (again.prefix_tokens, again.new_tokens, again.image_tokens) == (50, 40, 40)
    assert again.images == (image,)


def test_history_that_goes_on_behind_something_that_is_gone_is_a_hole():
    before = ids((0, 100), (1000, 1040), (2000, 2100))
    now = ids((0, 100), (7, 9), (2000, 2100), (3000, 3030))
    _, step = steps(before, now)
    assert step.visible == ((0, 99), (140, 239))
    assert (step.prefix_tokens, step.new_tokens) == (200, len(now) - 200)


def test_a_rewind_is_no_hole_and_neither_is_something_put_in():
    assert kept_behind_gap(ids((0, 100)), ids((0, 60), (500, 600)), 60) is None
    inserted = ids((0, 60), (500, 540), (60, 100), (700, 720))
    assert kept_behind_gap(ids((0, 100)), inserted, 60) is None


def test_a_prefix_of_another_prompt_than_the_previous_one_makes_no_hole():
    # two agents take turns; the second one's text has a few tokens of the first one's next text in it
    template = ids((9000, 9020))
    first, other = ids((0, 1000)), np.concatenate([ids((5000, 6500)), template])
    again = np.concatenate([first, template, ids((7000, 7100))])
    *_, step = steps(first, other, again)
    assert step.visible == ((0, 999),)
    assert (step.prefix_tokens, step.new_tokens) == (1000, 120)


def test_a_retried_answer_with_some_words_in_common_is_no_hole():
    template = ids((9000, 9020))
    before = np.concatenate([ids((0, 500)), ids((1000, 1200)), template])
    now = np.concatenate([ids((0, 500)), ids((2000, 2150)), template, ids((3000, 3040))])
    _, step = steps(before, now)
    assert step.visible == ((0, 499),)


def test_two_things_that_are_gone_at_once_are_a_hole_at_the_first():
    before = ids((0, 100), (1000, 1060), (100, 200), (2000, 2060), (200, 300))
    now = ids((0, 100), (7, 9), (100, 200), (7, 9), (200, 300), (5000, 5040))
    _, step = steps(before, now)
    assert step.visible == ((0, 99), (160, 259))
    assert step.prefix_tokens == 200


def test_images_behind_the_hole_are_kept_apart_from_the_new_ones():
    images = ImageIds()
    old, kept, new = (StepImage(f"{name}.png", 64, 64, 20) for name in ("old", "kept", "new"))

    def prompt(number, *parts):
        pieces, found, at = [], [], 0
        for part in parts:
            if isinstance(part, StepImage):
                found.append((at, part))
                part = images.cells(part.file, part.tokens)
            pieces.append(part)
            at += len(part)
        return RenderedPrompt(number, np.concatenate(pieces), tuple(found))

    _, step = steps(
        prompt(0, ids((0, 50)), old, ids((100, 150)), kept, ids((200, 250))),
        prompt(1, ids((0, 50)), ids((9000, 9003)), ids((100, 150)), kept, ids((200, 250)), new, ids((300, 310))),
    )
    assert step.behind_hole == (kept,)
    assert step.images == (new,)
    assert step.visible == ((0, 49), (70, 189))
    assert step.image_tokens == 20
    # 3 tokens of a placeholder, the new image, and the text behind it
    assert step.new_tokens == 3 + 20 + 10


@pytest.mark.parametrize(("numbers", "message"), [((1, 1), "comes after step 1"), ((2, 1), "comes after step 2")])
def test_step_numbers_must_increase(numbers, message):
    task = TaskSteps("t", "keep_all")
    task.add(RenderedPrompt(numbers[0], ids((0, 10))))
    with pytest.raises(TraceError, match=message):
        task.add(RenderedPrompt(numbers[1], ids((0, 20))))


def test_an_empty_prompt_is_refused():
    with pytest.raises(TraceError, match="prompt is empty"):
        TaskSteps("t", "keep_all").add(RenderedPrompt(0, ids((0, 0))))
