import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from conftest import ROOT
from fakeprefix.engine import source
from fakeprefix.engine.source import (
    Series,
    apply_series,
    commit_tree,
    engine_key,
    load_series,
    prepare_source,
    tree_diff,
)
from fakeprefix.errors import EngineError
from fakeprefix.settings.reading import resolve
from fakeprefix.storage import read_json, sha256_file

FILES = {"CMakeLists.txt": "project(engine)\n", "src/a.cpp": "int a() {\n    return 1;\n}\n"}
PATCH = """\
diff --git a/src/a.cpp b/src/a.cpp
--- a/src/a.cpp
+++ b/src/a.cpp
@@ -1,3 +1,3 @@
 int a() {
-    return 1;
+    return 2;
 }
diff --git a/src/b.cpp b/src/b.cpp
new file mode 100644
--- /dev/null
+++ b/src/b.cpp
@@ -0,0 +1 @@
+int b();
"""


def write_tree(folder, files=FILES):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = write_tree(tmp_path / "upstream")
    git(folder, "init", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "base")
    return folder, git(folder, "rev-parse", "HEAD")


@pytest.fixture
def series(tmp_path):
    folder = tmp_path / "patches" / "abcdef1"
    folder.mkdir(parents=True)
    (folder / "0001-change.patch").write_text(PATCH)
    (tmp_path / "patches" / "series.yaml").write_text("abcdef1: [abcdef1]\n")
    return load_series(tmp_path / "patches", "abcdef1")


def prepare(tmp_path, spec, series):
    tree, manifest = tmp_path / "engine" / "source", tmp_path / "engine" / "source.json"
    prepare_source(spec, series, tmp_path / "downloads", tree, manifest)
    return tree, read_json(manifest)


def test_a_commit_of_a_git_repository_is_fetched_and_patched(tmp_path, repository, series):
    folder, commit = repository
    tree, manifest = prepare(tmp_path, {"kind": "git", "url": str(folder), "commit": commit}, series)
    assert "return 2" in (tree / "src" / "a.cpp").read_text()
    assert manifest["upstream_commit"] == commit
    assert manifest["source"] == {"kind": "git", "url": str(folder), "commit": commit}
    assert manifest["series_sha256"] == series.sha256
    assert "return 1" in (folder / "src" / "a.cpp").read_text()


def test_a_commit_that_does_not_exist_is_one_line(tmp_path, repository, series):
    folder, _ = repository
    with pytest.raises(EngineError, match="cannot get commit") as error:
        prepare(tmp_path, {"kind": "git", "url": str(folder), "commit": "0" * 40}, series)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "engine").iterdir()) == []


def test_a_checkout_is_copied_with_its_changes_and_never_modified(tmp_path, repository, series):
    folder, commit = repository
    (folder / "CMakeLists.txt").write_text("project(changed)\n")
    before = git(folder, "status", "--porcelain")
    tree, manifest = prepare(tmp_path, {"kind": "path", "path": str(folder)}, series)
    assert (tree / "CMakeLists.txt").read_text() == "project(changed)\n"
    assert manifest["upstream_commit"] == commit
    assert manifest["source"] == {"kind": "path", "path": str(folder), "commit": commit}
    assert git(folder, "status", "--porcelain") == before
    assert git(folder, "rev-parse", "HEAD") == commit


def test_a_folder_that_is_no_checkout_is_refused(tmp_path, series):
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError, match="not a checkout of the engine"):
        prepare(tmp_path, {"kind": "path", "path": str(tmp_path / "empty")}, series)


def sdist(tmp_path, monkeypatch, files=FILES, alter=False, beside=None):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in ({f"vendor/llama.cpp/{n}": c for n, c in files.items()} | (beside or {})).items():
            member = tarfile.TarInfo(f"package-1.0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    archive = tmp_path / "package-1.0.tar.gz"
    archive.write_bytes(data.getvalue())
    digest = sha256_file(archive)

    def download(command, timeout_s):
        if command[1:4] != ["-m", "pip", "download"]:
            return subprocess.run(command, capture_output=True, text=True)
        target = command[command.index("--dest") + 1]
        content = data.getvalue()
        (Path(target) / "package-1.0.tar.gz").write_bytes(content[:-20] if alter else content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(source, "_run", download)
    return {"kind": "sdist", "package": "package==1.0", "sha256": digest}


def test_the_vendored_tree_of_a_source_distribution_is_unpacked(tmp_path, monkeypatch, series):
    files = FILES | {".git": "gitdir: ../../.git/modules/nowhere\n"}
    tree, _ = prepare(tmp_path, sdist(tmp_path, monkeypatch, files), series)
    assert "return 2" in (tree / "src" / "a.cpp").read_text()
    assert (tree / ".git").is_dir()


def test_the_manifest_names_the_commit_that_the_distribution_states_and_its_digest(tmp_path, monkeypatch, series):
    changelog = "## [1.0]\n\n- feat: update llama.cpp to ggml-org/llama.cpp@abcdef1\n"
    spec = sdist(tmp_path, monkeypatch, beside={"CHANGELOG.md": changelog})
    unused = {"url": "https://example.org", "commit": "0" * 40, "path": ""}
    _, manifest = prepare(tmp_path, spec | unused, series)
    assert manifest["source"] == spec | {"commit": "abcdef1"}
    assert manifest["upstream_commit"] == "abcdef1"


def test_a_distribution_that_states_no_commit_names_none(tmp_path, monkeypatch, series):
    _, manifest = prepare(tmp_path, sdist(tmp_path, monkeypatch) | {"commit": "0" * 40}, series)
    assert (manifest["source"]["commit"], manifest["upstream_commit"]) == ("", "")


def test_a_download_that_was_cut_short_is_refused_and_leaves_nothing(tmp_path, monkeypatch, series):
    spec = sdist(tmp_path, monkeypatch, alter=True)
    with pytest.raises(EngineError, match="altered or cut short"):
        prepare(tmp_path, spec, series)
    assert list((tmp_path / "downloads").iterdir()) == []
    assert list((tmp_path / "engine").iterdir()) == []


def test_a_damaged_archive_in_the_cache_is_fetched_again(tmp_path, monkeypatch, series):
    spec = sdist(tmp_path, monkeypatch)
    cached = tmp_path / "downloads" / f"{spec['sha256']}.tar.gz"
    cached.parent.mkdir()
    cached.write_bytes(b"half")
    prepare(tmp_path, spec, series)
    assert sha256_file(cached) == spec["sha256"]


def test_a_patch_that_does_not_apply_names_patch_file_and_hunk_and_leaves_nothing(tmp_path, repository, series):
    folder, _ = repository
    (folder / "src" / "a.cpp").write_text("int other();\n")
    git(folder, "commit", "-am", "moved")
    spec = {"kind": "git", "url": str(folder), "commit": git(folder, "rev-parse", "HEAD")}
    with pytest.raises(EngineError) as error:
        prepare(tmp_path, spec, series)
    assert "0001-change.patch" in str(error.value)
    assert "src/a.cpp, hunk at line 1" in str(error.value)
    assert list((tmp_path / "engine").iterdir()) == []


def test_the_diff_is_exactly_what_was_applied_new_files_included(tmp_path, series):
    tree = write_tree(tmp_path / "tree")
    commit_tree(tree)
    apply_series(tree, series)
    diff = tree_diff(tree)
    again = write_tree(tmp_path / "again")
    commit_tree(again)
    subprocess.run(["git", "apply", "--index", "-"], cwd=again, input=diff, text=True, check=True)
    assert tree_diff(again) == diff
    assert "src/b.cpp" in diff


def test_the_committed_tree_depends_on_the_files_only(tmp_path):
    assert commit_tree(write_tree(tmp_path / "one")) == commit_tree(write_tree(tmp_path / "two"))


def test_the_key_changes_with_source_patches_and_flags(tmp_path, series):
    spec, build = {"kind": "sdist", "sha256": "0" * 64}, {"native": True}
    key = engine_key(spec, series, build, "cpu")
    assert key == engine_key(dict(spec), series, dict(build), "cpu")
    assert key != engine_key(spec | {"sha256": "1" * 64}, series, build, "cpu")
    assert key != engine_key(spec, series, build, "another cpu")
    assert engine_key(spec, series, {"native": False}, "a") == engine_key(spec, series, {"native": False}, "b")
    (series.folder / "0002-more.patch").write_text(PATCH)
    other = Series(series.folder, (*series.patches, series.folder / "0002-more.patch"), ())
    assert key != engine_key(spec, other, build, "cpu")


def test_the_key_of_the_shipped_configuration_is_decided_by_the_digest_and_by_nothing_written_afterwards():
    engine = resolve({}).model_dump(mode="json")["engine"]
    shipped = load_series(ROOT / "patches", "465b1f0e7")
    digest = "b9eb9957de3776c2b1ae2beeccb52d5603e4e84afd94ae0d46bf96e04cbead6a"
    flags, code = (sha256_file(Path(source.__file__).with_name(name)) for name in ("flags.cmake", "build.py"))
    what = [f"sdist {digest}", shipped.sha256, True, "a cpu", "cpu", flags, code]
    expected = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    assert engine_key(engine["source"], shipped, engine["build"], "a cpu") == expected


def test_a_series_that_is_missing_is_refused(tmp_path):
    with pytest.raises(EngineError, match="has no patches"):
        load_series(tmp_path, "1234567")
