"""The state of git work trees; whatever is wrong with one, a reason and never an error."""

from pathlib import Path
from typing import TypedDict

import git

from fakeprefix.machine.commands import Absent


class Repository(TypedDict):
    """What the snapshot says of a work tree."""

    commit: str
    branch: str | Absent
    dirty: bool
    changed_files: int
    untracked_files: int
    submodules: int


def repository(path: Path) -> Repository | Absent:
    """State of a git work tree: commit, dirty state, untracked files and submodules counted apart.

    Returns a reason instead where `path` is no repository, belongs to somebody else, or has no
    commit yet; never raises.
    """
    try:
        repo = git.Repo(path, search_parent_directories=False)
        commit = repo.head.commit.hexsha
        changed = repo.git.diff("--name-only", "--ignore-submodules", "HEAD").splitlines()
        return Repository(
            commit=commit,
            branch=Absent(absent="detached") if repo.head.is_detached else repo.active_branch.name,
            dirty=bool(changed),
            changed_files=len(changed),
            untracked_files=len(repo.untracked_files),
            submodules=len(repo.submodules),
        )
    except git.InvalidGitRepositoryError:
        return Absent(absent=f"{path.name} is not a git repository")
    except git.NoSuchPathError:
        return Absent(absent=f"{path.name} does not exist")
    except (git.GitCommandError, ValueError) as error:
        message = str(error).strip()
        if "dubious ownership" in message:
            return Absent(absent="dubious ownership: the repository belongs to another user")
        return Absent(absent=message.splitlines()[0] if message else type(error).__name__)


def repository_diff(path: Path) -> str:
    """Uncommitted changes of tracked files as a patch; empty where there is no repository."""
    try:
        return f"{git.Repo(path).git.diff('--ignore-submodules', 'HEAD')}\n"
    except (git.InvalidGitRepositoryError, git.NoSuchPathError, git.GitCommandError, ValueError):
        return ""
