import io

import pytest
from fakeprefix.errors import TraceError
from fakeprefix.measure.depth_rate import chunks
from fakeprefix.measure.requests import arm_request, image_loader, prefix_segments, texts_behind_images
from fakeprefix.trace.steps import Step, StepImage
from PIL import Image as Picture


@pytest.fixture
def trace(tmp_path):
    for name in ("0.png", "1.png", "2.png"):
        Picture.new("RGB", (64, 32), "white").save(tmp_path / name)
    steps, prefix = [], 50
    for number in range(3):
        steps.append(Step("t", number, prefix, 30, 4, (StepImage(f"{number}.png", 64, 32, 4),)))
        prefix += 30
    return steps, image_loader(tmp_path)


def total(segments):
    return sum(segment.text_tokens + (segment.image.tokens if segment.image else 0) for segment in segments)


def test_all_arms_have_the_same_length_and_the_same_new_content(trace):
    steps, load = trace
    baseline = arm_request("baseline", steps[2], steps, 1, "tile", load)
    fake = arm_request("fake_prefix", steps[2], steps, 1, "tile", load)
    assert total(baseline.segments) == total(fake.segments) == 110 + 30
    assert baseline.segments[-1] == fake.segments[-1]
    assert fake.options == {"n_fake_cached": 110, "fake_fill": "tile"}
    assert (baseline.prefix_source, fake.prefix_source) == ("none", "fake")


def test_new_content_differs_between_repetitions_in_text_and_in_pixels(trace):
    steps, load = trace
    one, other = (arm_request("fake_prefix", steps[1], steps, repetition, "tile", load) for repetition in (0, 1))
    assert one.segments[-1].seed != other.segments[-1].seed
    assert one.segments[-1].image.data != other.segments[-1].image.data
    assert one.segments[-1].image.tokens == other.segments[-1].image.tokens


def test_a_history_with_images_is_rebuilt_with_them(trace):
    steps, load = trace
    segments, label = prefix_segments(steps[2], steps, "s", load)
    assert label == "images"
    assert sum(segment.image is not None for segment in segments) == 2
    assert total(segments) == steps[2].prefix_tokens


def test_a_history_that_does_not_add_up_is_text_and_says_so(trace):
    steps, load = trace
    longer = Step("t", 2, 999, 30, 4, steps[2].images)
    segments, label = prefix_segments(longer, steps, "s", load)
    assert (label, total(segments)) == ("text-equivalent", 999)
    assert prefix_segments(Step("t", 0, 10, 5), [], "s", load)[1] == "text"


def test_a_step_without_a_prefix_fabricates_nothing(trace):
    _, load = trace
    request = arm_request("fake_prefix", Step("t", 0, 0, 5), [], 0, "tile", load)
    assert request.options == {}
    assert request.prefix_source == "none"


def test_images_outside_missing_broken_or_of_another_size_are_refused(tmp_path):
    load = image_loader(tmp_path)
    (tmp_path / "text.png").write_text("no image")
    Picture.new("RGB", (8, 8)).save(tmp_path / "small.png")
    for file, message in (
        ("../x.png", "outside"),
        ("gone.png", "not a readable"),
        ("text.png", "not a readable"),
        ("small.png", "8x8"),
    ):
        with pytest.raises(TraceError, match=message):
            load(StepImage(file, 64, 32, 4), "s")


def test_a_marked_image_keeps_its_size(trace):
    _, load = trace
    assert Picture.open(io.BytesIO(load(StepImage("0.png", 64, 32, 4), "s").data)).size == (64, 32)


@pytest.mark.parametrize(
    ("step", "pieces"),
    [
        (Step("t", 0, 10, 77), [77]),
        (Step("t", 0, 10, 400, 302, (StepImage("a", 640, 480, 302),)), [1, 300, 99]),
        (Step("t", 0, 10, 700, 604, (StepImage("a", 640, 480, 302),) * 2), [1, 300, 50, 300, 49]),
    ],
)
def test_the_chunks_of_a_step_are_those_that_the_engine_computes(step, pieces):
    assert chunks(step) == pieces
    assert sum(pieces) == step.new_tokens


def test_images_of_a_step_are_kept_apart_by_text():
    shot = StepImage("a", 640, 480, 302)
    assert texts_behind_images(Step("t", 0, 10, 3 * 302 + 8, 3 * 302, (shot,) * 3)) == [3, 3, 2]
    with pytest.raises(TraceError, match="frames of a video"):
        Step("t", 0, 10, 3 * 302 + 1, 3 * 302, (shot,) * 3)


def test_images_of_which_only_the_count_is_known_are_sent_as_text(trace):
    _, load = trace
    request = arm_request("fake_prefix", Step("t", 0, 300, 420, 302), [], 0, "tile", load)
    assert total(request.segments) == 300 + 420
