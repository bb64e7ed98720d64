"""What Snakemake does not offer in its documented interface, in one place.

Each is covered by a test that runs Snakemake; a new version that changes them fails there.
"""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from fakeprefix.storage import read_json, write_json

log = logging.getLogger(__name__)

TIMING_RESOURCE = "timing"
MAIN_PROCESS_FILE = "fakeprefix_main_process.json"
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


def continue_after_a_crash(workflow: Any) -> None:
    """Rerun what a killed snakemake left incomplete, without being asked for ``--rerun-incomplete``.

    Files here are whole or absent, so there is nothing that a person would have to look at first.
    """

    def rerun(settings: Any) -> None:
        settings.force_incomplete = True

    _when_settings_arrive(workflow, rerun)


def remember_main_process(state: Path) -> None:
    """Called by the main process when it holds the lock, so that `free_stale_lock` knows whose it was.

    Args:
        state: Snakemake's folder, ``.snakemake``.
    """
    write_json(state / MAIN_PROCESS_FILE, {"host": socket.gethostname(), "pid": os.getpid()})


def free_stale_lock(state: Path) -> bool:
    """Remove the lock of a main process that was killed; True if there was one.

    Only a lock whose holder is known to have run on this machine goes, and only while no other snakemake
    is alive in this checkout: one on another machine of a shared file system cannot be seen from here.
    """
    locks = list((state / "locks").glob("*.lock"))
    try:
        holder = read_json(state / MAIN_PROCESS_FILE)
    except (OSError, ValueError):
        return False
    if not locks or holder["host"] != socket.gethostname() or _others_alive(state.resolve().parent):
        return False
    for lock in locks:
        lock.unlink(missing_ok=True)
    log.warning("freed the lock of a snakemake that was killed (process %d)", holder["pid"])
    return True


def _others_alive(checkout: Path) -> bool:
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        is_snakemake = any(Path(word).name == "snakemake" for word in words[:4])
        if is_snakemake and process.pid not in family and process.info["cwd"] == str(checkout):
            return True
    return False


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
