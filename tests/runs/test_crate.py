"""The research-object metadata against the profile of its own version, by an independent validator."""

import json
from pathlib import Path

import pytest
import requests
import rocrate
from fakeprefix.runs.archive import pack, restore
from fakeprefix.runs.folder import CRATE_NAME
from sealed_run import sealed_run
from urllib3 import HTTPResponse

CONTEXT = "https://w3id.org/ro/crate/1.3/context"
PROFILE = "ro-crate-1.3"


@pytest.fixture
def validated(monkeypatch, tmp_path):
    """Validate a crate's folder offline: the library brings the context that the crate names."""
    services = pytest.importorskip("rocrate_validator.services")

    def send(adapter, request, **_):
        assert request.url == CONTEXT, f"{request.url} would have been fetched"
        response = requests.Response()
        response.status_code, response.url, response.request = 200, request.url, request
        response.headers["Content-Type"] = "application/ld+json"
        content = (Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").open("rb")
        response.raw = HTTPResponse(content, status=200, preload_content=False)
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)

    def validate(folder, severity):
        settings = {
            "rocrate_uri": str(folder),
            "profile_identifier": PROFILE,
            "requirement_severity": severity,
            "abort_on_first": severity == "REQUIRED",
            "cache_path": str(tmp_path / "cache"),
        }
        return services.validate(settings)

    return validate


@pytest.fixture
def restored(tmp_path):
    run = sealed_run(tmp_path / "results", "2026-01-01_000000_h_small", drawn=True)
    pack(run, tmp_path / "a.tar.zst")
    return restore(tmp_path / "a.tar.zst", tmp_path / "back")


def test_the_crate_of_an_archive_conforms_to_what_is_required_and_recommended(restored, validated):
    assert json.loads((restored / CRATE_NAME).read_text())["@context"] == CONTEXT
    result = validated(restored, "RECOMMENDED")
    # who publishes it, only its publisher knows
    assert [issue.message for issue in result.get_issues() if "`publisher`" not in issue.message] == []


def test_a_crate_that_lacks_something_does_not(restored, validated):
    metadata = json.loads((restored / CRATE_NAME).read_text())
    (root,) = [entity for entity in metadata["@graph"] if entity["@id"] == "./"]
    del root["datePublished"]
    (restored / CRATE_NAME).write_text(json.dumps(metadata))
    assert not validated(restored, "REQUIRED").passed()
