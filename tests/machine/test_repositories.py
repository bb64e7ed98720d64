import subprocess

from fakeprefix.machine import repositories


def git(folder, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True, capture_output=True
    )


def test_a_repository_is_described_with_changes_and_untracked_files_apart(tmp_path):
    git(tmp_path, "init")
    assert "absent" in repositories.repository(tmp_path)
    (tmp_path / "a").write_text("1\n")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "one")
    assert repositories.repository(tmp_path)["dirty"] is False
    (tmp_path / "a").write_text("2\n")
    (tmp_path / "b").write_text("x")
    state = repositories.repository(tmp_path)
    assert (state["dirty"], state["changed_files"], state["untracked_files"]) == (True, 1, 1)
    assert "+2" in repositories.repository_diff(tmp_path)


def test_no_repository_and_a_foreign_one_never_abort(tmp_path, monkeypatch):
    assert repositories.repository(tmp_path)["absent"].endswith("is not a git repository")
    assert "does not exist" in repositories.repository(tmp_path / "gone")["absent"]
    assert repositories.repository_diff(tmp_path) == ""

    def dubious(*arguments, **options):
        raise repositories.git.GitCommandError("git", 128, "fatal: detected dubious ownership in repository")

    monkeypatch.setattr(repositories.git, "Repo", dubious)
    assert "dubious ownership" in repositories.repository(tmp_path)["absent"]
