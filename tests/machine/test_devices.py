import pytest
from fakeprefix.engine.build import cmake_flags, settings_of_flavour
from fakeprefix.errors import EngineError
from fakeprefix.machine import devices as device

LISTING = """
Devices:
========
GPU0:
\tdeviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
\tdeviceName         = Some Card
\tdriverName         = some driver
\tdriverInfo         = 1.2.3
GPU1:
\tdeviceType         = PHYSICAL_DEVICE_TYPE_CPU
\tdeviceName         = llvmpipe
\tdriverName         = llvmpipe
\tdriverInfo         = Mesa
"""
SOFTWARE = "llvmpipe, PHYSICAL_DEVICE_TYPE_CPU, llvmpipe, Mesa"


def test_the_cpu_needs_no_device():
    assert device.require_device("cpu") == []


@pytest.mark.parametrize("backend", ["cuda", "vulkan"])
def test_a_machine_without_a_gpu_is_refused_in_one_line(backend, monkeypatch):
    monkeypatch.setattr("fakeprefix.machine.commands.shutil.which", lambda name: None)
    with pytest.raises(EngineError, match=rf"engine\.build\.backend: {backend} needs a GPU.*is not installed") as error:
        device.require_device(backend)
    assert "\n" not in str(error.value)


def test_the_compiler_of_the_kernels_must_be_there(monkeypatch):
    monkeypatch.setattr(device, "nvidia_gpus", lambda: ["Some Card, 550.1, 80000 MiB, 9.0"])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EngineError, match="cuda needs nvcc on the PATH"):
        device.require_device("cuda")


def test_the_memory_of_the_chosen_gpus_is_what_a_model_may_use(monkeypatch):
    asked = []
    cards = "Some Card, 550.1, 80000 MiB, 9.0\nSome Card, 550.1, 80000 MiB, 9.0\n"
    monkeypatch.setattr("fakeprefix.machine.devices.run_command", lambda *command: asked.append(command) or cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.gpu_memory("cuda") == 160_000 * 2**20
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    device.gpu_memory("cuda")
    assert [command[3:] for command in asked] == [(), ("--id=1",)]
    monkeypatch.setattr("fakeprefix.machine.devices.run_command", lambda *_: {"absent": "nvidia-smi is not installed"})
    assert device.gpu_memory("cuda") is None
    assert device.gpu_memory("vulkan") is None
    assert device.gpu_memory("cpu") is None


@pytest.mark.parametrize("memory", ["[N/A]", "[Not Supported]"])
def test_a_gpu_without_memory_of_its_own_has_the_machines(monkeypatch, memory):
    one = f"Some Card, 550.1, {memory}, 12.1\n"
    for cards in (one, f"Some Card, 550.1, 80000 MiB, 9.0\n{one}"):
        monkeypatch.setattr("fakeprefix.machine.devices.run_command", lambda *_, found=cards: found)
        assert device.unified_memory("cuda") is True
        assert device.gpu_memory("cuda") is None
    assert device.unified_memory("cpu") is False


@pytest.mark.parametrize("cards", ["Some Card, 550.1, 80000 MiB, 9.0\n", "Some Card, 550.1, [Unknown Error], 9.0\n"])
def test_a_gpu_that_has_memory_or_does_not_tell_is_not_unified(monkeypatch, cards):
    monkeypatch.setattr("fakeprefix.machine.devices.run_command", lambda *_: cards)
    assert device.unified_memory("cuda") is False


def test_a_device_that_only_emulates_a_gpu_is_taken_only_if_it_is_named(monkeypatch):
    monkeypatch.setattr(device, "vulkan_devices", lambda: [SOFTWARE])
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    with pytest.raises(EngineError, match="emulates a GPU on the CPU; set GGML_VK_VISIBLE_DEVICES=0"):
        device.require_device("vulkan")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    assert device.require_device("vulkan") == [SOFTWARE]


def test_devices_and_drivers_are_read_from_the_listing(monkeypatch):
    monkeypatch.setattr("fakeprefix.machine.devices.run_command", lambda *_: LISTING)
    assert device.vulkan_devices() == ["Some Card, PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, some driver, 1.2.3", SOFTWARE]
    monkeypatch.setattr("fakeprefix.machine.devices.run_command", lambda *_: "Devices:\n")
    assert device.vulkan_devices() == {"absent": "vulkaninfo lists none"}


def test_only_the_fast_build_computes_on_a_gpu():
    assert cmake_flags("fast", True, "cuda")["GGML_CUDA"] == "ON"
    assert cmake_flags("fast", True, "vulkan")["GGML_VULKAN"] == "ON"
    assert not any("CUDA" in name or "VULKAN" in name for name in cmake_flags("fast", True))
    build = {"backend": "cuda", "native": True}
    assert settings_of_flavour("fast", build) == build
    assert settings_of_flavour("checked", build) == build | {"backend": "cpu"}
