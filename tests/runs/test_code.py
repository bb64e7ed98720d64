"""The digest of a result's code follows imports; no list of names is kept by hand."""

from pathlib import Path

import pytest
from conftest import WORKFLOW
from fakeprefix.runs.code import code_files, code_sha256, imported_modules

SCRIPTS = WORKFLOW / "scripts"


def files_of(script: str) -> set[str]:
    return {path.relative_to(WORKFLOW).as_posix() for path in code_files([SCRIPTS / f"{script}.py"], WORKFLOW)}


def test_what_measures_includes_what_it_imports_through_others():
    files = files_of("measure")
    assert "scripts/measure.py" in files
    # imported by the driver, by the server's process, and by the package of both
    assert {
        "fakeprefix/measure/session.py",
        "fakeprefix/machine/commands.py",
        "fakeprefix/measure/__init__.py",
    } <= files


@pytest.mark.parametrize(
    "script", ["measure", "fidelity", "depth_rate", "measurements", "smoke", "trace", "plan", "host"]
)
def test_no_analysis_and_no_report_is_behind_a_raw_row(script):
    assert not [file for file in files_of(script) if file.startswith(("fakeprefix/analysis", "fakeprefix/report"))]


def test_a_change_counts_where_it_is_imported_and_only_there(tmp_path: Path):
    for name in ("one", "other"):
        script = tmp_path / "scripts" / f"{name}.py"
        script.parent.mkdir(exist_ok=True)
        script.write_text("from fakeprefix.measure import records\n" if name == "one" else "import json\n")
    one, other = (tmp_path / "scripts" / f"{name}.py" for name in ("one", "other"))
    assert imported_modules(one) == {"fakeprefix.measure", "fakeprefix.measure.records"}
    assert imported_modules(other) == set()
    before = code_sha256([other], tmp_path)
    other.write_text("import json  # changed\n")
    assert code_sha256([other], tmp_path) != before


def test_what_a_module_is_named_by_is_found_in_both_forms_of_import(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import fakeprefix.storage\nfrom fakeprefix.runs.folder import seal\n")
    assert {"fakeprefix.storage", "fakeprefix.runs.folder"} <= imported_modules(script)
