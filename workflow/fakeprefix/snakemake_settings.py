"""The three things that Snakemake does not offer in its documented interface, in one place.

Each is covered by a test that runs Snakemake; a new version that changes them fails there.
"""

from collections.abc import Sequence
from typing import Any

TIMING_RESOURCE = "timing"


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
    settings = workflow.dag_settings
    if settings is not None:
        settings.rerun_triggers = frozenset(t for t in settings.rerun_triggers if t.name != "CODE")


def rename_targets(workflow: Any, rules: Sequence[str]) -> None:
    """Let ``snakemake baseline`` mean the target rule ``all_baseline``.

    A rule with wildcards cannot be a target, but ``-R`` needs exactly that rule's name.
    """
    settings = workflow.dag_settings
    if settings is not None and settings.targets:
        settings.targets = [f"all_{target}" if target in rules else target for target in settings.targets]
