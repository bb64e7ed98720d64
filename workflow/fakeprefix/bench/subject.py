"""What is measured: the timing build and the tiny model of this checkout."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fakeprefix.engine.source import engine_folder, load_series
from fakeprefix.engine_facts import COLUMN_WIDTH, columns_read
from fakeprefix.errors import EngineError
from fakeprefix.machine.cpu import this_cpu
from fakeprefix.runs.shared import models_folder
from fakeprefix.server.engine_settings import EngineSettings
from fakeprefix.settings import resolve

PRESET = "tiny-hybrid-1"


@dataclass(frozen=True)
class Subject:
    """Files of the measured engine and model.

    Attributes:
        server, bench: programs of the timing build.
        model: the tiny synthetic model.
        engine: folder of the engine.
        experiments: folder with the series' experiments.
        run: section ``engine.run`` of the default configuration.
        log: gets the output of all programs.
    """

    server: Path
    bench: Path
    model: Path
    engine: Path
    experiments: Path
    run: dict[str, Any]
    log: Path

    def settings(self, tokens: int) -> EngineSettings:
        """Engine settings with a context for so many tokens and the few that are decoded."""
        return EngineSettings.from_config(self.run, columns_read(tokens) + COLUMN_WIDTH)


def subject_of(root: Path, log: Path) -> Subject:
    """The subject below a project's folder.

    Raises:
        EngineError: it is not built yet.
    """
    config = resolve(yaml.safe_load((root / "config" / "config.yaml").read_text(encoding="utf-8"))).as_params()
    engine = engine_folder(root, config["engine"], this_cpu())
    programs = engine / "build-fast" / "bin"
    model = models_folder(root) / PRESET / "model.gguf"
    for path in (programs / "llama-server", programs / "llama-bench", model):
        if not path.is_file():
            raise EngineError(f"{path} is missing; `make test-resources` builds it")
    series = load_series(root / "patches", config["engine"]["series"])
    return Subject(
        server=programs / "llama-server",
        bench=programs / "llama-bench",
        model=model,
        engine=engine,
        experiments=series.folder / "experiments",
        run=config["engine"]["run"],
        log=log,
    )
