"""The package as it is installed: a wheel that is built without a network, its files and its command."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]


def call(*command, folder, **environment):
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools writes beside the source."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(
        ROOT / "workflow" / "fakeprefix",
        source / "workflow" / "fakeprefix",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", source / "dist"]
    call(*PIP, "wheel", *options, source, folder=source)
    (found,) = (source / "dist").glob("fakeprefix-*.whl")
    return found


def test_a_wheel_has_every_file_of_the_package(wheel):
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if name.startswith("fakeprefix/")}
    expected = {
        path.relative_to(ROOT / "workflow").as_posix()
        for path in (ROOT / "workflow" / "fakeprefix").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "fakeprefix/report/templates/report.html.jinja" in packed
    assert packed == expected


def test_the_installed_command_and_module_work_outside_of_the_checkout(wheel, tmp_path):
    target = tmp_path / "site"
    call(*PIP, "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel, folder=tmp_path)
    for command in ([sys.executable, "-m", "fakeprefix"], [target / "bin" / "fakeprefix"]):
        said = call(*command, "--help", folder=tmp_path, PYTHONPATH=str(target))
        assert said.startswith("usage: fakeprefix ")
    where = call(
        sys.executable, "-c", "import fakeprefix; print(fakeprefix.__file__)", folder=tmp_path, PYTHONPATH=str(target)
    )
    assert where.strip() == str(target / "fakeprefix" / "__init__.py")
