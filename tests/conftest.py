"""Shared by all tests: where things are, and the built engine."""

import os
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / "workflow"
sys.path.insert(0, str(WORKFLOW))

from fakeprefix.engine import source  # noqa: E402
from fakeprefix.machine.cpu import this_cpu  # noqa: E402
from fakeprefix.runs.shared import contract_file, models_folder  # noqa: E402
from fakeprefix.server.client import Timings  # noqa: E402
from fakeprefix.settings import resolve  # noqa: E402


def good_timings(prefix: int, new: int, n_kv: int) -> Timings:
    """What the server says about a request over a fabricated prefix that registered."""
    return Timings(
        cache_n=prefix,
        prompt_n=new,
        prompt_ms=5.0,
        predicted_n=1,
        predicted_ms=0.1,
        prefix_source="fake",
        install_ms=1.0,
        install_meta_ms=0.5,
        install_data_ms=0.5,
        install_bytes=10,
        image_encode_ms=0.0,
        n_kv=n_kv,
        seq_pos_max_attn=prefix - 1,
        seq_pos_max_recr=prefix - 1,
    )


def engine_folder() -> Path:
    """Folder of the engine that the default configuration builds."""
    config = resolve(yaml.safe_load((ROOT / "config" / "config.yaml").read_text())).as_params()
    return source.engine_folder(ROOT, config["engine"], this_cpu())


def contract_verdict() -> Path:
    """The file with the verdict of the contract tests."""
    return required(contract_file(engine_folder(), ROOT))


def required(path: Path) -> Path:
    if not path.exists():
        pytest.fail(f"{path} is missing; `make test-resources` builds it")
    return path


@pytest.fixture(scope="session")
def fast_server() -> Path:
    return required(engine_folder() / "build-fast" / "bin" / "llama-server")


@pytest.fixture(scope="session")
def fast_bench() -> Path:
    return required(engine_folder() / "build-fast" / "bin" / "llama-bench")


@pytest.fixture(scope="session")
def checked_server() -> Path:
    return required(engine_folder() / "build-checked" / "bin" / "llama-server")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return required(models_folder(ROOT) / "tiny-hybrid-1" / "model.gguf")


@pytest.fixture(scope="session")
def tiny_mmproj() -> Path:
    return required(models_folder(ROOT) / "tiny-hybrid-1" / "mmproj.gguf")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables by which a running workflow announces itself to its jobs."""
    for name in list(os.environ):
        if name.startswith("FAKEPREFIX_"):
            monkeypatch.delenv(name)
