import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from fakeprefix.storage import read_json, replacing, sha256_files, write_json, write_table, write_text


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "file.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError), replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    target = tmp_path / "file.txt"
    with pytest.raises(OSError), replacing(target), full.open("w") as file:
        file.write("x" * 10_000)
        file.flush()
    assert list(tmp_path.iterdir()) == []


def test_json_refuses_nan_and_keeps_unicode(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()
    write_json(tmp_path / "a.json", {"x": "é"})
    assert read_json(tmp_path / "a.json") == {"x": "é"}
    assert "é" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "a.json").read_text())


def test_a_table_with_a_wrong_type_is_not_written(tmp_path):
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        write_table(tmp_path / "t.parquet", [{"n": "many"}], schema)
    assert not (tmp_path / "t.parquet").exists()


def test_the_digest_of_files_depends_on_names_and_contents_but_not_on_order(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    files = [tmp_path / "a", tmp_path / "b"]
    digest = sha256_files(files, tmp_path)
    assert digest == sha256_files(reversed(files), tmp_path)
    (tmp_path / "b").write_text("3")
    assert digest != sha256_files(files, tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_file_has_the_permissions_that_the_umask_leaves(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode
