"""Where the engine's source really comes from, as manifests name it."""

import re
from typing import Any

# sha256 of a source distribution -> the engine's commit that its own changelog names; for manifests written without it
SDIST_COMMITS = {"b9eb9957de3776c2b1ae2beeccb52d5603e4e84afd94ae0d46bf96e04cbead6a": "465b1f0e7"}
# what of section `engine.source` says where a source of this kind comes from; the rest is not used
FIELDS = {"sdist": ("package", "sha256"), "git": ("url",), "path": ("path",)}
VENDORED_COMMIT = re.compile(r"\bllama\.cpp@(?P<commit>[0-9a-f]{7,40})\b")


def stated_commit(changelog: str, version: str) -> str:
    """The engine's commit that a distribution vendors, from its own changelog; empty if it does not say.

    Args:
        changelog: newest version first, with ``llama.cpp@<commit>`` at each update.
        version: of the distribution; one without an update of its own has that of the version before it.
    """
    _, heading, since = changelog.partition(f"## [{version}]")
    match = VENDORED_COMMIT.search(since) if heading else None
    return match["commit"] if match else ""


def describe_source(spec: dict[str, Any], upstream_commit: str) -> dict[str, Any]:
    """The fields of section ``engine.source`` that were used, with the engine's commit.

    Args:
        spec: the section, or what an earlier manifest holds of it.
        upstream_commit: as found while fetching, empty if it was not.

    Returns:
        `kind`, the fields of that kind, and `commit`, which is empty where nobody knows it.
    """
    kind = spec["kind"]
    commit = upstream_commit
    if not commit and kind == "sdist":
        commit = SDIST_COMMITS.get(spec.get("sha256", ""), "")
    if not commit and kind == "git":
        commit = spec.get("commit", "")
    return {"kind": kind, **{name: spec[name] for name in FIELDS[kind] if name in spec}, "commit": commit}


def with_provenance(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest of source or build that names the engine's real commit, also if an earlier version wrote it.

    Earlier versions put the whole section ``engine.source`` there: beside a source distribution stood the
    commit for `git`, which was not built.
    """
    source = describe_source(manifest["source"], manifest.get("upstream_commit", ""))
    return manifest | {"source": source, "upstream_commit": source["commit"]}
