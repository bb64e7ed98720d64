"""Where the control groups of this process are: from the root of their hierarchy down to its own."""

import re
from pathlib import Path, PurePosixPath

ROOT = Path("/")
# mountinfo writes blanks and backslashes of a path in octal
OCTAL = re.compile(r"\\(\d{3})")


def cgroup_folders(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders that can hold files of a controller, outermost first; none where no control groups are seen.

    Version 1 has a hierarchy for each controller, version 2 one for all. Where both are mounted a controller
    belongs to one of them, and the folders of the other have no files of it.

    Args:
        controller: its name in version 1, for example ``cpu`` or ``memory``.
        root: that ``/proc`` and ``/sys`` are below.
    """
    try:
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    own: dict[str, str] = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        # version 2 names no controller
        own |= dict.fromkeys(controllers.split(","), path)
    folders: list[Path] = []
    for line in mounts:
        place, _, kind = line.partition(" - ")
        what = kind.split()
        version1 = what[0] == "cgroup" and controller in what[-1].split(",")
        if version1 or what[0] == "cgroup2":
            top, mounted_at = (OCTAL.sub(lambda found: chr(int(found[1], 8)), part) for part in place.split()[3:5])
            group = own.get(controller if version1 else "", top)
            folders += _down_to(root / mounted_at.lstrip("/"), PurePosixPath(top), PurePosixPath(group))
    return folders


def _down_to(mounted_at: Path, top: PurePosixPath, own: PurePosixPath) -> list[Path]:
    """The mount point and the folders below it down to the own group; of a group outside of the mount no more."""
    inside = own.relative_to(top).parts if own.is_relative_to(top) and ".." not in own.parts else ()
    folders = [mounted_at]
    for part in inside:
        folders.append(folders[-1] / part)
    return folders
