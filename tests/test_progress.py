import logging
import time

import pytest
from fakeprefix.progress import Progress, counted


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.message for record in caplog.records]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_line_says_how_far_and_how_long_still_but_not_for_every_part(lines):
    clock = Clock()
    progress = Progress("compiling", 100, clock=clock)
    for _ in range(100):
        clock.now += 1
        progress.advance(1, "a.cpp")
    found = lines()
    assert found[0] == "compiling:   1 %, a.cpp, about 2 min left"
    assert found[-1] == "compiling: 100 %, a.cpp, done in 2 min"
    assert 9 <= len(found) <= 12


def test_a_long_part_is_reported_while_it_lasts(lines):
    progress = Progress("prefill", 4, interval_s=0.1)
    with progress.ticking():
        progress.advance(1, "first")
        time.sleep(0.45)
    during = [line for line in lines() if line.startswith("prefill:  25 %, first")]
    assert 2 <= len(during) <= 5
    n = len(lines())
    time.sleep(0.2)
    assert len(lines()) == n, "it goes on after the stage"


def test_a_part_that_fails_ends_the_reports(lines):
    progress = Progress("prefill", 4, interval_s=0.05)
    with pytest.raises(RuntimeError), progress.ticking():
        raise RuntimeError
    n = len(lines())
    time.sleep(0.15)
    assert len(lines()) == n


def test_what_nobody_can_count_beforehand_is_counted(lines, monkeypatch):
    assert list(counted(range(5), "importing steps")) == [0, 1, 2, 3, 4]
    assert lines() == []
    clock = Clock()
    progress = Progress("importing steps", None, clock=clock)
    clock.now = 20.0
    progress.advance(1500)
    assert lines() == ["importing steps: 1,500, 20 s so far"]
