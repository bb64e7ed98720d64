"""What SECURITY.md promises of data: it is shown and never run."""

import subprocess
import sys

from conftest import ROOT
from sealed_run import sealed_run


def test_a_name_from_a_trace_is_shown_as_it_is_and_not_run(tmp_path):
    hostile = "<script>alert(1)</script> $\\frac{1}{$ {{ 7 * 7 }}"
    page = (sealed_run(tmp_path, "r", task=hostile, drawn=True) / "report.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $\\frac{1}{$ {{ 7 * 7 }}" in page


def test_a_tag_in_a_configuration_is_refused_and_not_run(tmp_path):
    witness = tmp_path / "witness"
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(f"run_name: !!python/object/apply:os.mkdir ['{witness}']\n")
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n", "--configfile", str(overlay), "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "not valid JSON or YAML" in done.stdout + done.stderr
    assert not witness.exists()
