import pytest
from fakeprefix.machine import cpu


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


def test_a_quota_below_the_visible_cores_is_warned_about(monkeypatch):
    monkeypatch.setattr(cpu, "read_file", lambda path: "50000 100000" if "cpu.max" in str(path) else "x: y")
    assert "0.5 CPUs" in cpu.cpu()["warnings"][0]
