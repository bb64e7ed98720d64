"""The conda environments have the pins of the lock file, and every rule names one."""

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

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
    assert set(project["optional-dependencies"]["cluster"]) <= set(locked("requirements-cluster.lock"))
    for file in ("requirements.lock", "requirements-test.lock", "requirements-cluster.lock"):
        text = (ROOT / file).read_text()
        assert text.count("--hash=sha256:") > len(locked(file))
        assert "http" not in text


@pytest.mark.parametrize("file", ["requirements-test.lock", "requirements-cluster.lock"])
def test_what_is_installed_besides_has_the_versions_of_the_lock_file(file):
    besides = locked(file)
    assert {name: besides.get(name) for name in locked()} == locked()


def test_every_rule_names_an_environment_that_exists_and_every_environment_is_used():
    named = set()
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        text = file.read_text()
        named |= set(re.findall(r'"\.\./\.\./envs/(\w+)\.yaml"', text))
        assert text.count("script:") == text.count("conda:"), file.name
    assert named == set(STAGES)


def imported(file: Path) -> set[str]:
    """Modules that a file names in its imports, wherever they stand."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages_behind(script: Path) -> set[str]:
    """Distributions that a script imports, itself or by modules of the package."""
    waiting, seen, others = [script], set(), set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in imported(file):
            if name.partition(".")[0] != "fakeprefix":
                others.add(name.partition(".")[0])
                continue
            module = ROOT / "workflow" / name.replace(".", "/")
            waiting += [path for path in (module.with_suffix(".py"), module / "__init__.py") if path.is_file()]
    owners = packages_distributions()
    return {re.sub(r"[-_.]+", "-", owners[name][0]).lower() for name in others if name in owners}


def test_every_environment_has_what_the_scripts_of_its_rules_import():
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"^(?:rule|checkpoint) ", file.read_text(), flags=re.M)[1:]:
            script = re.search(r'"\.\./scripts/(\w+\.py)"', rule)
            if not script:
                continue
            (stage,) = re.findall(r'"\.\./\.\./envs/(\w+)\.yaml"', rule)
            missing = packages_behind(ROOT / "workflow" / "scripts" / script[1]) - set(pins(stage)) - {"snakemake"}
            assert not missing, f"{script[1]} in envs/{stage}.yaml"


def test_the_container_installs_from_the_lock_file_and_pins_nothing_else():
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines)
    copied = next(line for line in lines if line.startswith("COPY") and "requirements.lock" in line)
    assert lines.index(copied) < lines.index("RUN make .venv/.packages") < lines.index("COPY . .")
    assert text.index("make .venv/.complete") > text.index("COPY . .")
    assert "pip install" not in text
    assert "==" not in text
    recipe = (ROOT / "Makefile").read_text()
    assert "--require-hashes" in recipe
    assert "$(INSTALL) requirements.lock" in recipe
    assert lines[-1] == 'CMD ["make", "reproduce"]'


def test_the_image_has_nothing_of_this_machine():
    ignored = (ROOT / ".containerignore").read_text().split()
    assert {".venv", ".snakemake", "resources", "results/*"} <= set(ignored)


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_a_profile_names_only_rules_that_there_are_and_has_a_page(name):
    folder = ROOT / "workflow" / "profiles" / name
    profile = yaml.safe_load((folder / "config.yaml").read_text())
    assert profile["executor"] == name
    rules = set(re.findall(r"^(?:rule|checkpoint|use rule \w+ as) (\w+)", all_rules(), flags=re.MULTILINE))
    assert set(profile.get("set-resources", {})) <= rules
    assert (folder / "README.md").read_text().startswith("# On ")


def test_every_rule_that_holds_the_timing_resource_has_its_node_for_itself():
    blocks = re.split(r"^(?=rule |checkpoint |use rule )", all_rules(), flags=re.MULTILINE)
    timed = {block.split()[1].rstrip(":") for block in blocks if "timing=1" in block}
    timed |= {block.split()[4] for block in blocks if block.startswith("use rule measure_baseline as")}
    profile = yaml.safe_load((ROOT / "workflow" / "profiles" / "slurm" / "config.yaml").read_text())
    exclusive = {rule for rule, found in profile["set-resources"].items() if "--exclusive" in found["slurm_extra"]}
    assert exclusive == timed


def all_rules():
    return "\n".join(path.read_text() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")))
