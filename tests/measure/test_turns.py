import math

import pytest
from fakeprefix.measure.turns import Contestant, contestants, widest_interval

RESTORED = (Contestant("state_restore"), Contestant("state_restore", twin=1))


def test_a_restored_state_runs_twice_and_the_cache_only_where_it_is_affordable():
    assert contestants(["zero", "tile"], False) == [
        Contestant("fake_prefix", "zero"),
        Contestant("fake_prefix", "tile"),
        *RESTORED,
    ]
    assert contestants(["tile"], True)[-1] == Contestant("cached_prefix")


def test_the_widest_interval_of_all_fills_decides():
    steady, noisy = Contestant("fake_prefix", "tile"), Contestant("fake_prefix", "zero")
    restored = {0: 100.0, 1: 100.0, 2: 100.0}
    seen = {steady: {0: 101.0, 1: 101.0, 2: 101.0}, noisy: {0: 90.0, 1: 100.0, 2: 110.0}}
    seen |= dict.fromkeys(RESTORED, restored)
    # t quantile of 2 degrees of freedom, 4.303, times twice the standard error of the logarithms
    logs = [math.log(0.9), 0.0, math.log(1.1)]
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / 2)
    assert widest_interval(seen) == pytest.approx(2 * 4.3027 * deviation / math.sqrt(3), rel=1e-4)
    assert widest_interval({key: value for key, value in seen.items() if key != noisy}) == pytest.approx(0)


def test_rounds_of_which_a_partner_failed_do_not_count():
    fill = Contestant("fake_prefix", "tile")
    seen = {fill: {0: 1.0, 1: 1.0}, RESTORED[0]: {0: 1.0}, RESTORED[1]: {0: 1.0, 1: 1.0}}
    assert widest_interval(seen) == math.inf
