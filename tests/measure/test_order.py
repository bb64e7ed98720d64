from collections import Counter
from itertools import islice, pairwise

import pytest
from fakeprefix.measure.order import balanced_orders, williams_design


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_everything_stands_at_every_place_and_behind_everything_else_equally_often(n):
    design = williams_design(n)
    places = Counter((place, item) for order in design for place, item in enumerate(order))
    assert set(places.values()) == {len(design) // n}
    assert len(places) == n * n
    followers = Counter(pair for order in design for pair in pairwise(order))
    assert len(followers) == n * (n - 1)
    assert len(set(followers.values())) <= 1


def test_orders_go_on_for_ever_and_depend_on_the_seed_only():
    first, again, other = (list(islice(balanced_orders(5, seed), 25)) for seed in ("a", "a", "b"))
    assert first == again != other
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in first)
