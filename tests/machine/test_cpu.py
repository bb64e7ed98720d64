import pytest
from fakeprefix.machine import cpu
from planted_machine import plant, version_2


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor : 0\nmodel name\t: A CPU\nprocessor : 1\nmodel name\t: A CPU", "A CPU"),
        ("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c", "implementer 0x41, part 0xd0c"),
        ("processor : 0", {"absent": "/proc/cpuinfo has no model name"}),
        ({"absent": "gone"}, {"absent": "gone"}),
    ],
)
def test_the_cpu_model_has_a_fallback(cpuinfo, model):
    assert cpu.cpu_model(cpuinfo) == model


def test_a_quota_below_the_visible_cores_is_warned_about(tmp_path):
    plant(version_2(tmp_path, "/a/b"), {"sys/fs/cgroup/a/cpu.max": "50000 100000"})
    found = cpu.cpu(tmp_path)
    assert found["cgroup_quota_cpus"] == 0.5
    assert found["warnings"] == [
        f"the control group may use 0.5 CPUs, {cpu.visible_cores()} are visible: more threads than that throttle"
    ]


def test_no_quota_is_no_warning(tmp_path):
    found = cpu.cpu(version_2(tmp_path))
    assert (found["cgroup_quota_cpus"], found["warnings"]) == ("unlimited", [])
