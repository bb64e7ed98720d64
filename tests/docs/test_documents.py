"""The documents: the site builds strictly, its links lead somewhere, its generated parts are current."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from conftest import ROOT
from fakeprefix.settings import resolve
from shown_commands import FILE, blocks

OUTSIDE_DOCS = [*ROOT.glob("*.md"), *(ROOT / "config").glob("*.md"), *(ROOT / "patches").glob("*.md")]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *OUTSIDE_DOCS])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Site(HTMLParser):
    """Where a built page leads, what it loads, and which anchors it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Site]:
    return {page: Site(page) for page in site.rglob("*.html")}


def test_every_page_is_in_the_navigation(site):
    nav = yaml.unsafe_load((ROOT / "mkdocs.yml").read_text().replace("!relative $config_dir", "."))["nav"]
    named = set(re.findall(r"[\w/-]+\.md", str(nav)))
    assert named == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert {page.with_suffix(".html").name for page in map(Path, named)} <= {page.name for page in site.rglob("*.html")}


def test_internal_links_and_anchors_of_the_site_exist(built):
    assert len(built) > 20
    for page, content in built.items():
        if page.name == "404.html":
            continue
        for link in content.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.name}: {link}"
            if parts.fragment and target in built:
                assert unquote(parts.fragment) in built[target].anchors, f"{page.name}: {link}"


def test_the_site_loads_nothing_from_elsewhere(built):
    for page, content in built.items():
        for source in content.loaded:
            assert not urlsplit(source).netloc, f"{page.name} loads {source}"


@pytest.mark.parametrize("page", OUTSIDE_DOCS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_pages_outside_of_the_site_lead_to_files_and_headings(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = page.parent / parts.path
        assert target.exists(), f"{page.name}: {link}"
        if parts.fragment:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert parts.fragment in {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings}, link


def test_generated_parts_are_current():
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_settings_that_a_page_shows_are_valid(page):
    for block in blocks(page):
        is_settings = block.language == "yaml" and (not FILE.match(block.mark) or "config/" in block.mark)
        if is_settings:
            assert resolve(yaml.safe_load(block.text)), block.where


def test_readme_is_at_most_a_screen_and_a_half():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 75


def test_the_citation_file_has_what_its_format_demands():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert all("name" in author for author in citation["authors"])
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{citation["version"]}"' in project
    assert f'text = "{citation["license"]}"' in project


def test_commit_hooks_use_the_tools_of_the_environment():
    hooks = [
        hook
        for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
        for hook in repository["hooks"]
    ]
    assert {hook["entry"].split()[0] for hook in hooks} == {
        f".venv/bin/{tool}" for tool in ("ruff", "snakefmt", "mypy")
    }
    assert all(hook["language"] == "system" for hook in hooks)
