"""The settings: read once, checked, frozen. A rule hands its script the section that it needs, as plain values."""

from fakeprefix.settings.checks import require_files, require_node_settings
from fakeprefix.settings.reading import resolve
from fakeprefix.settings.sections import (
    ALL_LAYERS,
    Analysis,
    Engine,
    EngineBuild,
    EngineRun,
    EngineSource,
    Eviction,
    FidelityTurns,
    Grid,
    Measure,
    Model,
    Plan,
    ProbeRequest,
    Repetitions,
    Section,
    Settings,
    Trace,
)

__all__ = [
    "ALL_LAYERS",
    "Analysis",
    "Engine",
    "EngineBuild",
    "EngineRun",
    "EngineSource",
    "Eviction",
    "FidelityTurns",
    "Grid",
    "Measure",
    "Model",
    "Plan",
    "ProbeRequest",
    "Repetitions",
    "Section",
    "Settings",
    "Trace",
    "require_files",
    "require_node_settings",
    "resolve",
]
