from types import SimpleNamespace

import pytest
from fakeprefix.machine import limits


@pytest.mark.parametrize(
    ("content", "quota"), [("max 100000", "unlimited"), ("150000 100000", 1.5), ("x", {"absent": "cpu.max is 'x'"})]
)
def test_the_cgroup_quota_is_in_cpus(content, quota):
    assert limits.cgroup_quota(content) == quota


@pytest.mark.parametrize(
    ("limit", "available"), [("1048576\n", 2**20), ("max\n", 2**30), ("9223372036854771712\n", 2**30)]
)
def test_the_memory_is_the_machines_or_the_containers_if_that_is_less(tmp_path, monkeypatch, limit, available):
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**30))
    monkeypatch.setattr(limits, "MEMORY_LIMITS", (str(tmp_path / "none"), str(tmp_path / "memory.max")))
    (tmp_path / "memory.max").write_text(limit)
    assert limits.available_memory() == available


def test_a_process_that_may_use_one_core_is_given_one_thread(monkeypatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda pid: {3})
    assert limits.usable_cores() == 1
