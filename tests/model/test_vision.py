import pytest
from fakeprefix.errors import ModelError
from fakeprefix.model.vision import ImageGeometry
from hypothesis import given
from hypothesis import strategies as st

GEOMETRY = ImageGeometry(16, 2)


def test_the_known_sizes():
    assert GEOMETRY.tokens(640, 480) == 300 + 2
    assert GEOMETRY.grid(1280, 720) == (40, 23)
    assert GEOMETRY.positions(640, 480) == 20 + 2


@given(st.integers(1, 8000), st.integers(1, 8000))
def test_an_image_never_has_more_tokens_than_the_engine_allows(width, height):
    columns, rows = GEOMETRY.grid(width, height)
    assert columns >= 1
    assert rows >= 1
    if max(width, height) <= 50 * min(width, height):
        assert columns * rows <= GEOMETRY.max_tokens


def test_an_image_without_pixels_is_refused():
    with pytest.raises(ModelError):
        GEOMETRY.grid(0, 10)
