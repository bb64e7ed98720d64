"""The three things that Snakemake does not offer in its documented interface, in one place.

Each is covered by a test that runs Snakemake; a new version that changes them fails there.
"""

from collections.abc import Callable, Sequence
from typing import Any

TIMING_RESOURCE = "timing"
ADJUSTMENTS, SETTINGS = "_fakeprefix_adjustments", "_fakeprefix_dag_settings"


def one_timing_job(workflow: Any) -> None:
    """Limit the resource of timing jobs to one.

    A limit from a profile is replaced as a whole by ``--resources`` on the command line, so it would
    silently be gone there.
    """
    workflow.register_resource(TIMING_RESOURCE, 1)


def content_decides(workflow: Any) -> None:
    """Do not rerun a rule because its script file has a new modification time.

    A checkout touches files, and a timing rule takes hours. Rules have a digest of the package's
    code as a parameter instead, so that content decides.
    """

    def without_code(settings: Any) -> None:
        settings.rerun_triggers = frozenset(t for t in settings.rerun_triggers if t.name != "CODE")

    _when_settings_arrive(workflow, without_code)


def rename_targets(workflow: Any, rules: Sequence[str]) -> None:
    """Let ``snakemake baseline`` mean the target rule ``all_baseline``.

    A rule with wildcards cannot be a target, but ``-R`` needs exactly that rule's name.
    """

    def renamed(settings: Any) -> None:
        if settings.targets:
            settings.targets = {f"all_{target}" if target in rules else target for target in settings.targets}

    _when_settings_arrive(workflow, renamed)


def _when_settings_arrive(workflow: Any, adjust: Callable[[Any], None]) -> None:
    """Call `adjust` with the DAG settings, which the workflow gets only after its Snakefile was read."""
    if ADJUSTMENTS not in workflow.__dict__:
        early = workflow.__dict__.pop("dag_settings", None)
        workflow.__dict__[ADJUSTMENTS] = []
        members = {"dag_settings": property(_get_settings, _set_settings)}
        workflow.__class__ = type(type(workflow).__name__, (type(workflow),), members)
        workflow.dag_settings = early
    workflow.__dict__[ADJUSTMENTS].append(adjust)
    if workflow.dag_settings is not None:
        adjust(workflow.dag_settings)


def _get_settings(workflow: Any) -> Any:
    return workflow.__dict__.get(SETTINGS)


def _set_settings(workflow: Any, settings: Any) -> None:
    workflow.__dict__[SETTINGS] = settings
    if settings is not None:
        for adjust in workflow.__dict__[ADJUSTMENTS]:
            adjust(settings)
