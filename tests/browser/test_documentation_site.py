"""The site that `make docs` builds, opened without a server: links, navigation, pictures, search.

What the browser does not show is checked without one.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browsing import Look, expect

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
IN_NAVIGATION = "md-nav__link"


@dataclass
class Read(HTMLParser):
    """What a page links to, loads and can be linked to."""

    links: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    """The links of the navigation."""
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if IN_NAVIGATION in given.get("class", ""):
                self.listed.append(given["href"])
        elif tag == "link":
            self.loaded.append(given.get("href", ""))
        elif "src" in given:
            self.loaded.append(given["src"])


@dataclass(frozen=True)
class Site:
    """The built site."""

    folder: Path
    pages: dict[Path, Read]

    @property
    def start(self) -> str:
        """The address of its first page on this disk."""
        return (self.folder / "index.html").as_uri()

    def missing(self, page: Path, addresses: list[str]) -> Iterator[str]:
        """The addresses within the site, as seen from a page, that lead nowhere."""
        for address in addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            to = self.pages.get(target)
            is_there = target.is_file() and target.is_relative_to(self.folder)
            if not is_there or (
                to and parts.fragment and unquote(parts.fragment) not in to.anchors
            ):
                yield f"{page.relative_to(self.folder)}: {address}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site").resolve()
    py_compile.compile(str(ROOT / "docs" / "site_pages.py"))  # as whoever imports it leaves it
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    pages = {}
    for path in folder.rglob("*.html"):
        if path.name != "404.html":  # its links are those of a server's top folder
            pages[path] = Read()
            pages[path].feed(path.read_text())
    return Site(folder, pages)


def build(home: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of a checkout as `make docs` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=home,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def test_an_anchor_that_is_not_there_stops_the_build(tmp_path: Path):
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "docs" / "reading.md").open("a") as page:
        page.write("\n[Nowhere](tutorial.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "does not contain an anchor '#nowhere'" in done.stderr


def test_no_link_and_no_anchor_leads_nowhere(site: Site):
    assert sum(len(page.links) for page in site.pages.values()) > 1000
    dead = [each for path, page in site.pages.items() for each in site.missing(path, page.links)]
    assert dead == []


def test_nothing_is_loaded_from_another_machine_or_missing(site: Site):
    for path, page in site.pages.items():
        elsewhere = [each for each in page.loaded if urlsplit(each).netloc]
        assert (elsewhere, list(site.missing(path, page.loaded))) == ([], [])
    styles = "".join(path.read_text() for path in site.folder.rglob("*.css"))
    assert "url(http" not in styles and "@import" not in styles


def test_no_program_is_in_the_site(site: Site):
    found = [path.name for path in site.folder.rglob("*") if path.suffix in (".py", ".pyc")]
    assert found == []


def test_every_page_is_in_the_navigation(site: Site):
    start = site.folder / "index.html"
    listed = {(site.folder / urlsplit(each).path).resolve() for each in site.pages[start].listed}
    listed = {start if path == site.folder else path for path in listed}
    assert listed == set(site.pages)
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert documents <= {path.stem for path in listed}


def test_every_picture_is_shown(site: Site):
    shown = {
        (path.parent / each).resolve() for path, page in site.pages.items() for each in page.loaded
    }
    assert [
        path.name for path in IMAGES.iterdir() if site.folder / "images" / path.name not in shown
    ] == []


def test_the_search_works_on_pages_from_a_disk(site: Site, look: Look):
    seen = look(site.start)
    seen.page.get_by_placeholder("Search").press_sequentially("straggler")
    found = seen.page.locator(".md-search-result__item a").first
    expect(found).to_contain_text("Diagnoses")
    found.click()
    expect(seen.page.get_by_role("heading", level=1)).to_contain_text("Diagnoses")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone(site: Site, look: Look, scheme: str):
    seen = look(site.start, width=390, height=844, color_scheme=scheme)
    expected = {"light": "default", "dark": "slate"}[scheme]
    expect(seen.page.locator("body")).to_have_attribute("data-md-color-scheme", expected)
    for name in ("index", "diagnoses", "reference", "benchmarks", "examples/ci"):
        seen.go(f"{site.folder.as_uri()}/{name}.html")
        assert not seen.scrolls_sideways(), name
