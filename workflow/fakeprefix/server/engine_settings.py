"""Engine settings, given alike to the server and to ``llama-bench``, with nothing left to a default."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EngineSettings:
    """How the engine runs.

    Attributes:
        threads: threads for decode, and for prefill as well.
        n_batch, n_ubatch: logical and physical batch size in tokens.
        flash_attn: ``on``, ``off`` or ``auto``.
        cache_type_k, cache_type_v: type of the KV cells, for example ``f16``.
        n_ctx: context in tokens for the one sequence.
        n_gpu_layers: layers kept on a GPU, 0 for a CPU.
    """

    threads: int
    n_batch: int
    n_ubatch: int
    flash_attn: str
    cache_type_k: str
    cache_type_v: str
    n_ctx: int
    n_gpu_layers: int = 0

    @classmethod
    def from_config(cls, engine: dict[str, Any], n_ctx: int) -> "EngineSettings":
        """From the ``engine.run`` section of the configuration."""
        return cls(n_ctx=n_ctx, **engine)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def server_arguments(self, model: Path, mmproj: Path | None, port: int, parallel: int = 1) -> list[str]:
        """Arguments of ``llama-server``: one slot, no prompt cache, no checkpoints, no speculation."""
        arguments = ["--model", str(model)]
        if mmproj is not None:
            arguments += ["--mmproj", str(mmproj)]
            if self.n_gpu_layers == 0:
                arguments += ["--no-mmproj-offload"]
        return [
            *arguments,
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--ctx-size", str(self.n_ctx), "--parallel", str(parallel)),
            *("--batch-size", str(self.n_batch), "--ubatch-size", str(self.n_ubatch)),
            *("--threads", str(self.threads), "--threads-batch", str(self.threads)),
            *("--flash-attn", self.flash_attn),
            *("--cache-type-k", self.cache_type_k, "--cache-type-v", self.cache_type_v),
            *("--n-gpu-layers", str(self.n_gpu_layers), "-fit", "off"),
            *("--ctx-checkpoints", "0", "--cache-ram", "0", "--no-cache-idle-slots"),
            *("--no-webui", "--no-warmup", "--jinja", "--log-colors", "off"),
        ]

    def bench_arguments(self) -> list[str]:
        """The same settings as arguments of ``llama-bench``."""
        return [
            *("--batch-size", str(self.n_batch), "--ubatch-size", str(self.n_ubatch)),
            *("--threads", str(self.threads)),
            *("--flash-attn", self.flash_attn),
            *("--cache-type-k", self.cache_type_k, "--cache-type-v", self.cache_type_v),
            *("--n-gpu-layers", str(self.n_gpu_layers)),
        ]
