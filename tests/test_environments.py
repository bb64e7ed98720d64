"""The conda environments have the pins of the lock file, and every rule names one."""

import re
import tomllib

import pytest
import yaml
from conftest import ROOT

STAGES = sorted(path.stem for path in (ROOT / "envs").glob("*.yaml"))


def locked(file: str = "requirements.lock") -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / file).read_text(), re.M):
        versions.setdefault(name, set()).add(version)
    return versions


def pins(stage):
    dependencies = yaml.safe_load((ROOT / "envs" / f"{stage}.yaml").read_text())["dependencies"]
    (packages,) = (entry["pip"] for entry in dependencies if isinstance(entry, dict))
    return dict(entry.split("==") for entry in packages)


@pytest.mark.parametrize("stage", STAGES)
def test_every_pin_is_the_lock_files(stage):
    lock = locked()
    for name, version in pins(stage).items():
        assert version in lock[name], name


def test_the_lock_files_have_everything_that_the_project_needs_with_digests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["dependencies"]) <= set(locked())
    assert set(project["optional-dependencies"]["test"]) <= set(locked("requirements-test.lock"))
    for file in ("requirements.lock", "requirements-test.lock"):
        text = (ROOT / file).read_text()
        assert text.count("--hash=sha256:") > len(locked(file))
        assert "http" not in text


def test_tests_run_with_the_versions_that_users_get():
    for name, versions in locked().items():
        assert locked("requirements-test.lock")[name] == versions, name


def test_every_rule_names_an_environment_that_exists_and_every_environment_is_used():
    named = set()
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        text = file.read_text()
        named |= set(re.findall(r'"\.\./\.\./envs/(\w+)\.yaml"', text))
        assert text.count("script:") == text.count("conda:"), file.name
    assert named == set(STAGES)
