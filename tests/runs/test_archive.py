import io
import json
import shutil
import tarfile

import pytest
import zstandard
from fakeprefix.errors import RunError
from fakeprefix.runs.archive import pack, restore, verify_archive
from fakeprefix.runs.folder import seal, verify
from fakeprefix.storage import write_json, write_text


@pytest.fixture
def run(tmp_path):
    """A small sealed run with everything that the crate speaks of."""
    folder = tmp_path / "results" / "2026-01-01_000000_host_small"
    write_text(folder / "pipeline" / "config.yaml", "measure: {fill: tile, arms: [baseline]}\nrun_name: small\n")
    write_json(folder / "pipeline" / "model.json", {"preset": "tiny-hybrid", "files": {"model.gguf": "abc"}})
    write_json(
        folder / "engine" / "manifest.json",
        {"series": "465b1f0e7", "series_sha256": "00ff", "source": {"commit": "ab"}},
    )
    write_json(folder / "host" / "snapshot.json", {"host": "h", "uname": {"machine": "x86_64"}, "cpu": {"model": "c"}})
    write_json(folder / "summary.json", {"verdict": "trusted"})
    write_text(folder / "report.html", "<p>report</p>")
    write_text(folder / "raw" / "fake_prefix" / "1.jsonl", "{}\n" * 1000)
    write_text(folder / "raw" / "fake_prefix" / ".1.kept.jsonl", "{}\n")
    write_text(folder / "logs" / "fake_prefix" / "1.log", "log\n")
    write_text(folder / "logs" / "seal" / "seal.log", "log\n")
    seal(folder)
    return folder


@pytest.fixture
def archive(run, tmp_path):
    pack(run, tmp_path / "a.tar.zst")
    return tmp_path / "a.tar.zst"


def members(archive):
    raw = zstandard.ZstdDecompressor().stream_reader(archive.open("rb")).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        return [(member, tar.extractfile(member).read() if member.isreg() else b"") for member in tar]


def rewritten(archive, change):
    """The archive with another list of members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, content in change(members(archive)):
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    archive.write_bytes(zstandard.ZstdCompressor().compress(buffer.getvalue()))
    return archive


def test_the_same_run_gives_the_same_bytes_wherever_and_whenever_it_is_packed(run, archive, tmp_path):
    elsewhere = tmp_path / "elsewhere" / run.name
    shutil.copytree(run, elsewhere)
    (elsewhere / "logs" / "seal" / "seal.log").write_text("sealed again\n")
    pack(elsewhere, tmp_path / "b.tar.zst")
    assert (tmp_path / "b.tar.zst").read_bytes() == archive.read_bytes()


def test_an_archive_has_fixed_times_and_owners_and_no_hidden_files(archive):
    found = members(archive)
    assert len({(member.mtime, member.uid, member.gid, member.mode) for member, _ in found}) == 1
    names = [member.name.split("/", 1)[1] for member, _ in found]
    assert names[0] == "inventory.json"
    assert names[1:] == sorted(names[1:])
    assert "logs/fake_prefix/1.log" in names
    assert not [name for name in names if "kept" in name or "seal.log" in name]


def test_an_intact_archive_is_intact_and_comes_back_as_it_was(run, archive, tmp_path):
    assert verify_archive(archive) == []
    back = restore(archive, tmp_path / "other")
    assert back == tmp_path / "other" / run.name
    assert verify(back) == []
    assert (back / "report.html").read_text() == "<p>report</p>"


def test_the_crate_names_engine_model_parameters_machine_and_files(archive):
    (content,) = [content for member, content in members(archive) if member.name.endswith("ro-crate-metadata.json")]
    graph = {entity["@id"]: entity for entity in json.loads(content)["@graph"]}
    assert "465b1f0e7" in graph["#engine"]["softwareVersion"]
    assert "tiny-hybrid" in graph["#model"]["description"]
    assert graph["#parameter-measure.fill"]["value"] == "tile"
    assert "x86_64" in graph["#machine"]["description"]
    assert graph["raw/fake_prefix/1.jsonl"]["sha256"]
    assert {"@id": "report.html"} in graph["#measurement"]["result"]
    assert graph["./"]["datePublished"]


def test_an_unsealed_run_is_refused_with_what_is_missing(run, tmp_path):
    (run / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"not sealed.*it lacks replay\.parquet"):
        pack(run, tmp_path / "b.tar.zst")
    assert not (tmp_path / "b.tar.zst").exists()


def test_a_run_that_differs_from_its_seal_is_refused(run, tmp_path):
    (run / "report.html").write_text("<p>other</p>")
    with pytest.raises(RunError, match=r"changed: report\.html"):
        pack(run, tmp_path / "b.tar.zst")


def change_report(found):
    return [(member, b"x" if member.name.endswith("report.html") else content) for member, content in found]


def drop_report(found):
    return [item for item in found if not item[0].name.endswith("report.html")]


def add_file(found):
    extra = tarfile.TarInfo(found[0][0].name.replace("inventory.json", "surprise.txt"))
    return [*found, (extra, b"boo")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_report, "damaged: report.html"),
        (drop_report, "missing: report.html"),
        (add_file, "extra: surprise.txt"),
        (lambda found: found[1:], "must be inventory.json"),
    ],
)
def test_what_is_damaged_missing_or_too_much_is_named_and_nothing_is_unpacked(change, expected, archive, tmp_path):
    rewritten(archive, change)
    assert any(expected in line for line in verify_archive(archive))
    with pytest.raises(RunError):
        restore(archive, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("cut", [10, 200, -5])
def test_a_truncated_or_flipped_archive_is_damaged(cut, archive, tmp_path):
    data = bytearray(archive.read_bytes())
    (tmp_path / "cut.tar.zst").write_bytes(data[:cut])
    assert verify_archive(tmp_path / "cut.tar.zst")
    data[len(data) // 2] ^= 255
    (tmp_path / "flipped.tar.zst").write_bytes(data)
    assert verify_archive(tmp_path / "flipped.tar.zst")
    for name in ("cut", "flipped"):
        with pytest.raises(RunError):
            restore(tmp_path / f"{name}.tar.zst", tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []


def evil(name, kind=tarfile.REGTYPE, link=""):
    def change(found):
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        return [*found[:1], (member, b""), *found[1:]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        evil("../outside.txt"),
        evil("/tmp/outside.txt"),
        evil("2026-01-01_000000_host_small/../../outside.txt"),
        evil("2026-01-01_000000_host_small/report.html", tarfile.SYMTYPE, "/etc/passwd"),
        evil("2026-01-01_000000_host_small/report.html", tarfile.LNKTYPE, "../../outside.txt"),
        evil("2026-01-01_000000_host_small/pipe", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_cannot_escape(change, archive, tmp_path):
    rewritten(archive, change)
    assert verify_archive(archive)
    with pytest.raises(RunError, match=r"outside|no plain file"):
        restore(archive, tmp_path / "other")
    assert list((tmp_path / "other").iterdir()) == []
    assert not list(tmp_path.glob("**/outside.txt"))


def test_a_run_that_is_there_already_is_not_touched(run, archive):
    with pytest.raises(RunError, match="exists already"):
        restore(archive, run.parent)
    assert verify(run) == []


def test_a_missing_archive_is_one_clear_line(tmp_path):
    with pytest.raises(RunError, match="no such archive"):
        restore(tmp_path / "nowhere.tar.zst", tmp_path / "other")
