import pytest
from fakeprefix.engine.provenance import SDIST_COMMITS, describe_source, stated_commit, with_provenance

DIGEST = "b9eb9957de3776c2b1ae2beeccb52d5603e4e84afd94ae0d46bf96e04cbead6a"
# as the previous version wrote it: the whole section of the configuration
WRITTEN_BEFORE = {
    "source": {
        "kind": "sdist",
        "package": "llama-cpp-python==0.3.27",
        "sha256": DIGEST,
        "url": "https://github.com/ggml-org/llama.cpp",
        "commit": "da87e9b612592ccd2a2e783eff631346459b9de0",
        "path": "",
    },
    "upstream_commit": "",
    "series": "465b1f0e7",
}
CHANGELOG = """\
## [Unreleased]

## [0.3.28]

- fix: nothing of the engine

## [0.3.27]

- feat: update llama.cpp to ggml-org/llama.cpp@465b1f0e7

## [0.3.26]

- feat: update llama.cpp to ggml-org/llama.cpp@7c158fbb4
"""


def test_a_manifest_of_the_previous_version_gets_the_real_commit_and_keeps_the_digest():
    manifest = with_provenance(WRITTEN_BEFORE)
    assert manifest["source"] == {
        "kind": "sdist",
        "package": "llama-cpp-python==0.3.27",
        "sha256": DIGEST,
        "commit": "465b1f0e7",
    }
    assert manifest["upstream_commit"] == "465b1f0e7"
    assert manifest["series"] == "465b1f0e7"
    assert with_provenance(manifest) == manifest


def test_a_distribution_that_nobody_knows_has_no_commit_rather_than_a_wrong_one():
    source = WRITTEN_BEFORE["source"] | {"sha256": "0" * 64}
    assert with_provenance({"source": source, "upstream_commit": ""})["source"]["commit"] == ""


def test_what_was_found_while_fetching_counts_before_the_table():
    assert describe_source(WRITTEN_BEFORE["source"], "abcdef1")["commit"] == "abcdef1"


@pytest.mark.parametrize(
    ("spec", "upstream", "commit"),
    [
        ({"kind": "path", "path": "tree", "commit": "0" * 40}, "1" * 40, "1" * 40),
        ({"kind": "path", "path": "no repository", "commit": "0" * 40}, "", ""),
        ({"kind": "git", "url": "u", "commit": "2" * 40}, "2" * 40, "2" * 40),
        ({"kind": "git", "commit": "2" * 40}, "", "2" * 40),
    ],
)
def test_a_git_tree_is_named_by_its_own_commit(spec, upstream, commit):
    assert with_provenance({"source": spec, "upstream_commit": upstream})["source"]["commit"] == commit


@pytest.mark.parametrize(
    ("version", "commit"),
    [("0.3.27", "465b1f0e7"), ("0.3.26", "7c158fbb4"), ("0.3.28", "465b1f0e7"), ("0.3.2", ""), ("9.9", "")],
)
def test_the_commit_is_read_in_the_changelog_of_the_version(version, commit):
    assert stated_commit(CHANGELOG, version) == commit


def test_the_shipped_distribution_is_in_the_table():
    assert SDIST_COMMITS[DIGEST] == "465b1f0e7"
