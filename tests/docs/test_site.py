"""The site: it builds without a warning, no link is broken, and it loads nothing from elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

import privrec
from blocks import PAGES, ROOT, blocks_of

pytestmark = pytest.mark.slow

LOADS = {
    *(("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")),
    *(("link", "href"), ("img", "srcset"), ("object", "data"), ("embed", "src"), ("use", "href")),
}
"""Attributes whose address a browser loads without being asked."""


class _Page(HTMLParser):
    """What a page loads, what it links to, and what can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.blocks = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.blocks += tag == "pre"
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if (tag, name) in LOADS and value:
                self.loads.append(value)
            if (tag, name) == ("a", "href") and value:
                self.links.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("docs") / "site"
    # Not `--quiet`: mkdocs then overlooks its own warnings, also with `--strict`.
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, "WARNING" in ran.stderr) == (0, False), ran.stderr
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """Every page of the site, read."""
    found = {}
    for path in site.rglob("*.html"):
        found[path] = _Page()
        found[path].feed(path.read_text(encoding="utf-8"))
    assert len(found) == len(PAGES)  # The README is none of them, and 404.html is one more.
    return found


def test_links_lead_to_a_page_and_an_anchor_of_it(pages: dict[Path, _Page]) -> None:
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            assert target.is_file(), f"{path.name} links to {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, _Page]) -> None:
    """A link may lead elsewhere. Scripts, styles, fonts and pictures are files of the site."""
    for path, page in pages.items():
        assert page.loads
        for address in page.loads:
            assert not urlsplit(address).netloc, f"{path.name} loads {address}"
            if path.name != "404.html":
                assert (path.parent / urlsplit(address).path).is_file(), f"{path.name}: {address}"
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        outside = re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", text)
        assert not outside, f"{style.name} loads {outside}"


def test_search_needs_no_server(site: Path) -> None:
    """A browser does not fetch JSON for a page that is a file; the index is there as a script."""
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __ind")
    assert "assets/iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")


def test_a_browser_searches_in_files_and_asks_nobody(site: Path) -> None:
    """The browser is $PRIVREC_CHROMIUM, or `chromium`; without one this test is skipped."""
    program = os.environ.get("PRIVREC_CHROMIUM") or shutil.which("chromium")
    if program is None and os.environ.get("PRIVREC_BROWSER") != "required":
        pytest.skip("there is no browser")
    asked: list[str] = []
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=180_000
        )
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(120_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{site.as_uri()}/tutorials/own-data.html")
        page.click("input.md-search__input")
        page.keyboard.type("accountant")
        page.wait_for_selector(".md-search-result__link[href*='privacy.html']")
        found = page.eval_on_selector_all(".md-search-result__link", "all => all.map(a => a.href)")
        browser.close()
    assert any("privacy.html" in link for link in found)
    assert wrong == []
    assert [url for url in asked if not url.startswith(site.as_uri())] == []
    assert any(url.endswith("search_index.js") for url in asked)


def test_every_public_name_is_on_the_page_of_the_api(pages: dict[Path, _Page], site: Path) -> None:
    there = pages[site / "api.html"].anchors
    missing = [name for name in privrec.__all__ if f"privrec.{name}" not in there]
    assert not missing


def test_every_block_of_a_page_is_a_fence(pages: dict[Path, _Page], site: Path) -> None:
    """Else it is indented, or a fence that is not seen as one: then no test would run it."""
    for page in PAGES:
        if page not in {"README.md", "docs/api.md", "docs/changelog.md"}:
            built = site / Path(page).relative_to("docs").with_suffix(".html")
            assert pages[built].blocks == len(blocks_of(page)), page


def test_links_of_the_readme_lead_to_files_and_anchors(
    pages: dict[Path, _Page], site: Path
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        parts = urlsplit(link)
        assert parts.scheme or (ROOT / parts.path).is_file(), link
        if parts.fragment and not parts.scheme:
            built = site / Path(parts.path).relative_to("docs").with_suffix(".html")
            assert parts.fragment in pages[built].anchors, link
