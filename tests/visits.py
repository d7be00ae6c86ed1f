"""A visit to a page in a real browser, which notes whatever must not happen."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Page

HERE = {"", None, "127.0.0.1", "localhost"}

_CONTRAST = """
() => {
  const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const ground = it => {
    for (; it; it = it.parentElement) {
      const found = numbers(getComputedStyle(it).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const it = walk.currentNode.parentElement, style = getComputedStyle(it);
    const at = it.getBoundingClientRect();
    if (!walk.currentNode.data.trim() || !at.width || style.visibility === "hidden") continue;
    if (["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(it.tagName)) continue;
    if (it.tagName === "title") continue;
    const ink = numbers(it.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(it))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walk.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}
"""


_HANDLERS = """
() => [...document.querySelectorAll("*")].flatMap(it => it.getAttributeNames())
  .filter(name => name.startsWith("on"))
"""


@dataclass
class Visit:
    """A page, and what it did that it must not do."""

    page: "Page"
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        place = urlsplit(request.url)
        if place.scheme not in ("file", "data", "blob") and place.hostname not in HERE:
            self.problems.append(f"asked for {request.url}")

    def check(self) -> None:
        """Raise if anything happened that must not, or if a script from data ran or stands here."""
        assert self.problems == []
        assert self.page.evaluate("window.hacked") is None
        scripts = self.page.evaluate("[...document.scripts].map(one => one.textContent)")
        assert not [one for one in scripts if "hacked" in one]
        assert self.page.evaluate(_HANDLERS) == []

    def leave(self) -> None:
        """Check and close the page, before what serves it ends."""
        self.check()
        self.page.close()

    def check_look(self, *, dark: bool) -> None:
        """Raise if the page is wider than the window, or if text is hard to read."""
        wide, room = self.page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
        assert wide <= room
        ground = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        numbers = [int(part) for part in ground.strip("rgba()").split(",")[:3]]
        assert max(numbers) < 64 if dark else min(numbers) > 224
        found = self.page.evaluate(_CONTRAST)
        assert len(found) > 5
        assert [words for contrast, words in found if contrast < 4.5] == []
