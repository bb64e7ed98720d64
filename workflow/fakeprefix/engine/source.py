"""Fetch the engine's source from one of three places and apply our patch series to a copy of it."""

import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import git
import yaml
from backports import tarfile

from fakeprefix.engine.provenance import describe_source, stated_commit
from fakeprefix.errors import EngineError
from fakeprefix.storage import sha256_file, sha256_files, write_json

log = logging.getLogger(__name__)

VENDORED = "vendor/llama.cpp"
# the only commit of a fetched tree must not depend on who makes it and when
COMMIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "engine",
    "GIT_AUTHOR_EMAIL": "engine@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "engine",
    "GIT_COMMITTER_EMAIL": "engine@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}
DOWNLOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Series:
    """A patch series.

    Attributes:
        folder: the folder with the numbered patches.
        patches: the patches in the order they are applied.
        serves: engine commits that it is known to apply to.
    """

    folder: Path
    patches: tuple[Path, ...]
    serves: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return sha256_files(self.patches, self.folder)


def load_series(patches: Path, name: str) -> Series:
    """The series below `patches`, with the commits that ``series.yaml`` lists for it.

    Raises:
        EngineError: there is no such series, or it is empty.
    """
    folder = patches / name
    files = tuple(sorted(folder.glob("[0-9][0-9][0-9][0-9]-*.patch")))
    if not files:
        raise EngineError(f"engine.series: {folder} has no patches")
    table = yaml.safe_load((patches / "series.yaml").read_text(encoding="utf-8"))
    return Series(folder, files, tuple(table.get(name, ())))


def source_state(spec: dict[str, Any]) -> str:
    """What identifies the source: digest, commit, or the state of the user's checkout."""
    if spec["kind"] == "sdist":
        return f"sdist {spec['sha256']}"
    if spec["kind"] == "git":
        return f"git {spec['commit']}"
    path = Path(spec["path"]).expanduser()
    try:
        repo = git.Repo(path)
        changes = hashlib.sha256(repo.git.diff("HEAD").encode()).hexdigest()
        return f"path {repo.head.commit.hexsha} {changes}"
    except (git.InvalidGitRepositoryError, git.NoSuchPathError, git.GitCommandError, ValueError) as error:
        if path.is_dir():
            return f"path {sha256_files((f for f in path.rglob('*') if f.is_file()), path)}"
        raise EngineError(f"engine.source.path: {path} is not a folder ({type(error).__name__})") from None


def engine_key(spec: dict[str, Any], series: Series, build: dict[str, Any], cpu: str) -> str:
    """Name of the folder below ``resources/engine``: source, patches and flags decide it."""
    flags = sha256_file(Path(__file__).with_name("flags.cmake"))
    code = sha256_file(Path(__file__).with_name("build.py"))
    cpu = cpu if build["native"] else ""
    what = [source_state(spec), series.sha256, build["native"], cpu, build.get("backend", "cpu"), flags, code]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]


def engine_folder(root: Path, engine: dict[str, Any], cpu: str) -> Path:
    """Folder of the engine that a project builds.

    Args:
        root: of the project.
        engine: section ``engine`` of the configuration.
        cpu: the machine's, see `fakeprefix.machine.cpu.this_cpu`.
    """
    series = load_series(root / "patches", engine["series"])
    return root / "resources" / "engine" / engine_key(engine["source"], series, engine["build"], cpu)


def prepare_source(spec: dict[str, Any], series: Series, downloads: Path, tree: Path, manifest: Path) -> None:
    """Fetch, verify and patch; `tree` appears only when all of it has succeeded.

    Writes `manifest` last: source, the engine's own commit, id of the fetched tree, the series and its sha256.

    Raises:
        EngineError: a fetch failed, a digest differs, or a patch does not apply.
    """
    tree.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{tree.name}.", dir=tree.parent))
    try:
        copy = work / "tree"
        commit = {"sdist": _fetch_sdist, "git": _fetch_git, "path": _fetch_path}[spec["kind"]](spec, downloads, copy)
        described = describe_source(spec, commit)
        commit = described["commit"]
        if commit and not any(commit.startswith(served) or served.startswith(commit) for served in series.serves):
            log.warning("the series %s is not known to serve %s, trying", series.folder.name, commit)
        base = commit_tree(copy)
        apply_series(copy, series)
        if tree.exists():
            shutil.rmtree(tree)
        copy.rename(tree)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    write_json(
        manifest,
        {
            "source": described,
            "upstream_commit": commit,
            "base_tree": base,
            "series": series.folder.name,
            "series_sha256": series.sha256,
            "patches": [patch.name for patch in series.patches],
        },
    )


def _fetch_sdist(spec: dict[str, Any], downloads: Path, copy: Path) -> str:
    changelog = ""
    archive = downloads / f"{spec['sha256']}.tar.gz"
    if not archive.is_file() or sha256_file(archive) != spec["sha256"]:
        _download_sdist(spec, archive)
    log.info("unpacking %s", spec["package"])
    try:
        with tarfile.open(archive) as tar:
            members = []
            for member in tar.getmembers():
                _, _, below = member.name.partition("/")
                if below.startswith(f"{VENDORED}/"):
                    member.name = below.removeprefix(f"{VENDORED}/")
                    members.append(member)
                elif below == "CHANGELOG.md" and (file := tar.extractfile(member)):
                    changelog = file.read().decode("utf-8", "replace")
            tar.extractall(copy, members, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise EngineError(f"{archive}: cannot be unpacked ({error})") from error
    if not (copy / "CMakeLists.txt").is_file():
        raise EngineError(f"{spec['package']}: has no {VENDORED} in it")
    return stated_commit(changelog, spec["package"].partition("==")[2])


def _download_sdist(spec: dict[str, Any], archive: Path) -> None:
    name = spec["package"].split("==")[0]
    log.info("downloading %s", spec["package"])
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-binary", name, "--dest", folder, spec["package"]]
        done = _run(command, DOWNLOAD_TIMEOUT_S)
        files = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or not files:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EngineError(f"engine.source: downloading {spec['package']} failed: {last}")
        digest = sha256_file(files[0])
        if digest != spec["sha256"]:
            raise EngineError(
                f"engine.source: {files[0].name} has the sha256 {digest}, expected {spec['sha256']}; "
                "it was altered or cut short and is not used"
            )
        files[0].rename(archive)


def _fetch_git(spec: dict[str, Any], downloads: Path, copy: Path) -> str:
    log.info("cloning %s", spec["url"])
    try:
        repo = git.Repo.clone_from(spec["url"], copy, no_checkout=True)
        repo.git.checkout("--detach", spec["commit"])
    except git.GitCommandError as error:
        last = (error.stderr.strip().splitlines() or [str(error.status)])[-1].strip(" '")
        raise EngineError(f"engine.source: cannot get commit {spec['commit'][:9]} from {spec['url']}: {last}") from None
    return repo.head.commit.hexsha


def _fetch_path(spec: dict[str, Any], downloads: Path, copy: Path) -> str:
    path = Path(spec["path"]).expanduser()
    if not (path / "CMakeLists.txt").is_file():
        raise EngineError(f"engine.source.path: {path} is not a checkout of the engine, it has no CMakeLists.txt")
    log.info("copying %s", path)
    shutil.copytree(path, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "build", "build-*"))
    try:
        return git.Repo(path).head.commit.hexsha
    except (git.InvalidGitRepositoryError, git.GitCommandError, ValueError):
        return ""


def commit_tree(tree: Path) -> str:
    """Make the tree a repository of its own with one commit, so that diffs and ``git apply`` work.

    Returns the id of the committed tree, which depends on the files only.
    """
    marker = tree / ".git"
    # the source distribution has a .git file that points nowhere
    if marker.is_dir():
        shutil.rmtree(marker)
    else:
        marker.unlink(missing_ok=True)
    repo = git.Repo.init(tree, initial_branch="engine")
    with repo.config_writer() as config:
        config.set_value("core", "autocrlf", "false")
        config.set_value("gc", "auto", "0")
    repo.git.add("--all", "--force", ".")
    repo.git.execute(["git", "commit", "--quiet", "--no-gpg-sign", "-m", "engine as fetched"], env=COMMIT_IDENTITY)
    return repo.head.commit.tree.hexsha


def apply_series(tree: Path, series: Series) -> None:
    """Apply every patch to the index and the files, each only after ``git apply --check``.

    Raises:
        EngineError: a patch does not apply; the message names the patch, the file and the hunk's line.
    """
    for patch in series.patches:
        for arguments in (["--check"], ["--index"]):
            done = _run(["git", "-C", str(tree), "apply", *arguments, str(patch.resolve())], 60.0)
            if done.returncode:
                raise EngineError(f"{series.folder.name}/{patch.name}: {describe_failure(done.stderr)}")
        log.info("applied %s", patch.name)


def describe_failure(stderr: str) -> str:
    """What ``git apply`` complained about: the file and the line where the hunk begins."""
    if match := re.search(r"patch failed: (?P<file>.+):(?P<line>\d+)", stderr):
        return f"does not apply: {match['file']}, hunk at line {match['line']}"
    lines = stderr.strip().splitlines()
    return f"does not apply: {lines[-1] if lines else 'no message'}"


def tree_diff(tree: Path) -> str:
    """The exact difference between what was fetched and what is built."""
    return f"{git.Repo(tree).git.diff('--cached', '--binary', 'HEAD')}\n"


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise EngineError(f"{command[0]} did not end within {timeout_s:.0f} s: {' '.join(command)}") from None
