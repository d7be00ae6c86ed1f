"""Reads a page as a browser does, and checks that it is harmless and needs no network."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

VOID = {"meta", "br", "input", "hr", "img", "link"}


class Page(HTMLParser):
    """Tags, their attributes, and the text between them; scripts and styles are kept apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.cells: list[str] = []
        self.scripts: list[str] = []
        self.words = ""
        self._above: list[int] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "html" and self._open[-1:] != ["html"]:
            raise AssertionError(f"not closed before </html>: {self._open}")
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self._open[-1:] != ["style"]:
            data = re.sub(r"[ \n]+", " ", data)  # As a browser shows it.
            self.words += data
            self._above += [len(self.cells)] * len(data)
            if "td" in self._open or "th" in self._open:
                self.cells[-1] += data

    def cells_after(self, words: str) -> list[str]:
        """The cells below these words."""
        return self.cells[self._above[self.words.index(words)] :]

    def values(self, name: str) -> list[str]:
        """The values of an attribute, of all tags."""
        return [value for _, attribute, value in self.attributes if attribute == name]


def charts_in(page: str) -> list[str]:
    """The charts of a page, as SVG."""
    return re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)


def policy_of(page: Page) -> dict[str, str]:
    """The content security policy, by directive."""
    (text,) = (value for value in page.values("content") if "default-src" in value)
    parts = [part.strip().partition(" ") for part in text.split(";")]
    return {name: words for name, _, words in parts}


def check_page(text: str) -> Page:
    """Raise unless the page is well-formed, asks for nothing, and runs only scripts of ours."""
    found = Page(text)
    assert "://" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(found.tags)
    for tag, name, value in found.attributes:
        assert not name.startswith("on"), f"<{tag} {name}={value}>"
        assert name not in ("src", "style", "srcset", "background"), f"<{tag} {name}={value}>"
        if name in ("href", "action"):
            assert not urlsplit(value).scheme, value
            assert not value.startswith("/"), value
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {to[1:] for to in found.values("href") if to.startswith("#")} <= set(ids)
    policy = policy_of(found)
    assert policy["default-src"] == "'none'"
    assert policy["base-uri"] == "'none'"
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in found.scripts]
    assert policy["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    return found
