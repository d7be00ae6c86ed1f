"""The exported page in a real browser: by keyboard, offline, small, dark, and with hostile titles.

All requests that do not go to this machine go through a proxy of the test, which must see none of
the page. Chromium's own requests (for updates and the like) are named by their hosts.
"""

import json
import os
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

import privrec
from blocks import blocks_of
from commands import done
from privrec.data.manifest import Manifest
from privrec.data.tables import Tables, write_folder
from visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.slow
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
FILMS = "synthetic:users=120,items=60,longest=20"
LIKES = ("The Silent Harbour", "The Golden Garden", "The Broken Letter")
HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "' onmouseover='window.hacked=1",
    "</title></style></script><script>window.hacked=1</script>",
)
CHROMIUMS = (".googleapis.com", ".google.com", ".gstatic.com", ".gvt1.com")
"""The hosts that Chromium asks for by itself, before any page is open."""
HERE = "shop/page"
"""Where the site lies on its server."""


class Served(ThreadingHTTPServer):
    """A plain file server that notes what it is asked for."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, str, int]] = []
        super().__init__(("127.0.0.1", 0), partial(Noting, directory=str(folder)))

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/{HERE}/"


class Noting(SimpleHTTPRequestHandler):
    """Notes the method, the path and the length of the body of each request."""

    server: Served

    def log_message(self, *_: object) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.command, self.path, size))


@contextmanager
def serving(site: Path) -> Iterator[Served]:
    server = Served(site.parents[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[int, list[bytes]]]:
    """A proxy for all that does not go to this machine: its port, and what it was asked for."""
    asked: list[bytes] = []

    class Proxy(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], asked
        server.shutdown()


@pytest.fixture(scope="module")
def browser(elsewhere: tuple[int, list[bytes]]) -> Iterator["Browser"]:
    chromium = os.environ.get("PRIVREC_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        if os.environ.get("PRIVREC_BROWSER") == "required":
            pytest.fail("there is no Chromium or no playwright, and $PRIVREC_BROWSER requires it")
        pytest.skip("there is no Chromium ($PRIVREC_CHROMIUM) or no playwright")
    # Requests of service workers are reported too, not only those of pages.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PW_EXPERIMENTAL_SERVICE_WORKER_NETWORK_EVENTS", "1")
        started = sync_playwright().start()
    try:
        words = [*FLAGS, f"--proxy-server=http://127.0.0.1:{elsewhere[0]}"]
        opened = started.chromium.launch(executable_path=chromium, args=words, timeout=180_000)
        yield opened
        opened.close()
    finally:
        started.stop()
    lines = [line.decode(errors="replace").split() for line in elsewhere[1] if line.strip()]
    hosts = [words[1].removeprefix("http://").split("/")[0].split(":")[0] for words in lines]
    assert [host for host in hosts if not host.endswith(CHROMIUMS)] == []


@contextmanager
def visiting(
    browser: "Browser", url: str, *, width: int = 1200, dark: bool = False, locale: str = "en-US"
) -> Iterator[tuple["BrowserContext", Visit]]:
    """Open the page as a new person, and check at the end that nothing went wrong."""
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if dark else "light",
        locale=locale,
    )
    context.set_default_timeout(120_000)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    try:
        visit = Visit(context.new_page())
        visit.page.goto(url)
        visit.page.wait_for_selector("body[data-state=ready]")
        yield context, visit
        visit.check()
        origin = url.split(f"/{HERE}", maxsplit=1)[0]
        assert asked
        assert [one for one in asked if not one.startswith((f"{origin}/", f"blob:{origin}/"))] == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a synthetic model, as the command writes it."""
    return site_of(FILMS, tmp_path_factory.mktemp("films"))


def site_of(data: str, place: Path) -> Path:
    privrec.train("privrec-plus", data, out=place / "run", rounds=0, choose=False)
    done("export", place / "run", "--web", place / HERE)
    return place / HERE


def like(page: "Page", title: str) -> None:
    """Like an item by keyboard alone: the search is in focus."""
    page.keyboard.press("Control+A")
    page.keyboard.type(title)
    page.locator("#matches .title", has_text=title).first.wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#matches .like[aria-pressed=true]").first.wait_for()
    page.keyboard.press("Shift+Tab")


def focus_search(page: "Page") -> None:
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "query":
            return
        page.keyboard.press("Tab")
    raise AssertionError("the search is not reached by Tab")


def shown(page: "Page") -> list[tuple[str, float]]:
    """Return the list on the page: ids and scores."""
    found = "list => list.map(it => [it.dataset.item, Number(it.dataset.score)])"
    return [(item, score) for item, score in page.locator("#list > li").evaluate_all(found)]


def assert_pythons_list(site: Path, likes: tuple[str, ...], found: list[Any]) -> None:
    """Fail unless these are Python's items, with its scores.

    Items whose scores differ by no more than what 32 bits tell apart may change places.
    """
    wanted = privrec.open_model(site / "model.privrec").device(likes=likes).recommend(10**6)
    scores = {entry.item: entry.score for entry in wanted}
    assert len(found) > 5
    for (item, score), entry in zip(found, wanted, strict=False):
        near = pytest.approx(score, rel=1e-5, abs=1e-5 * abs(wanted[0].score))
        assert entry.score == near
        assert scores.pop(item) == near


KEPT = """async () => [
  (await indexedDB.databases()).map(it => it.name), await caches.keys(),
  (await navigator.serviceWorker.getRegistrations()).map(it => it.scope),
]"""


KEPT_THREE = "() => JSON.parse(document.body.dataset.kept ?? '{}').likes?.length === 3"
TWELVE_PICTURES = """() => 12 <=
  [...document.querySelectorAll("img.tile")].filter(it => it.naturalWidth).length"""


def walk_through(browser: "Browser", site: Path, likes: tuple[str, ...]) -> None:
    """Like three items, compare with Python, go offline, reload, ask why, delete everything."""
    with serving(site) as server, visiting(browser, server.url) as (_, visit):
        page = visit.page
        focus_search(page)
        for title in likes:
            like(page, title)
        assert_pythons_list(site, likes, shown(page))
        before = shown(page)
        page.wait_for_function("() => navigator.serviceWorker.controller")
        page.wait_for_function(
            "() => JSON.parse(document.body.dataset.kept ?? '{}').likes?.length === 3"
        )
        methods = {(method, size) for method, _, size in server.asked}
        assert methods == {("GET", 0)}
        files = json.loads((site / "about.json").read_text())["files"]
        allowed = {f"/{HERE}/{'' if name == './' else name}" for name in files}
        assert {path for _, path, _ in server.asked} <= allowed
        asked = len(server.asked)
        server.shutdown()
        server.server_close()  # Offline: from here on nobody answers.

        page.reload()
        page.wait_for_selector("body[data-state=ready]")
        assert shown(page) == before
        assert len(server.asked) == asked
        assert page.inner_text("#sent").startswith("0 ")
        ask = page.locator("#list .ask").first
        ask.focus()
        page.keyboard.press("Enter")
        reasons = page.locator("#list li").first.locator("[data-reason]")
        reasons.first.wait_for()
        known = privrec.open_model(site / "model.privrec").device(likes=likes)
        own = {known.catalogue.item_ids[k] for k in known.data.item}
        assert {it.get_attribute("data-reason") for it in reasons.all()} <= own

        assert [len(kept) for kept in page.evaluate(KEPT)] == [1, 1, 1]
        page.locator("#delete").focus()
        page.keyboard.press("Enter")
        page.locator("#sure").wait_for()
        page.locator("#yes").focus()
        page.keyboard.press("Enter")
        page.locator("#done", has_text="deleted").wait_for()
        assert page.evaluate(KEPT) == [[], [], []]
        assert page.locator("#mine li").count() == 0


def test_it_is_used_by_keyboard_and_offline(browser: "Browser", site: Path) -> None:
    walk_through(browser, site, LIKES)


@pytest.mark.realdata
def test_movielens_too(browser: "Browser", tmp_path: Path) -> None:
    found = site_of("movielens-1m", tmp_path)
    catalogue = privrec.open_model(found / "model.privrec").catalogue
    titles = [one for one in catalogue.titles if catalogue.titles.count(one) == 1]
    walk_through(browser, found, (titles[0], titles[100], titles[1000]))


@pytest.mark.parametrize(
    ("width", "dark"), [(1200, False), (1200, True), (375, False), (375, True)]
)
def test_it_is_readable_on_any_screen(
    browser: "Browser", site: Path, width: int, dark: bool
) -> None:
    with (
        serving(site) as server,
        visiting(browser, server.url, width=width, dark=dark) as (_, visit),
    ):
        page = visit.page
        page.fill("#query", "the s")
        page.locator("#matches .like").first.click()
        page.locator("#matches .dislike").nth(2).click()
        page.locator("#list .ask").first.click()
        for summary in page.locator("summary").all():
            summary.click()
        visit.check_look(dark=dark)
        for found in violations(page):
            assert found["impact"] not in ("serious", "critical"), found


BOXES = """() => {
  scrollTo(0, document.body.scrollHeight);
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  const [you, trust] = [box(".you"), box(".trust")];
  return [you.bottom <= trust.top, you.height <= innerHeight];
}"""


@pytest.mark.parametrize("height", [400, 800])
def test_what_she_likes_covers_nothing_else(browser: "Browser", site: Path, height: int) -> None:
    with serving(site) as server, visiting(browser, server.url) as (_, visit):
        page = visit.page
        page.set_viewport_size({"width": 1200, "height": height})
        page.fill("#query", "the")
        page.locator("#matches .like").first.click()
        page.wait_for_function("() => document.querySelectorAll('#matches li').length === 6")
        assert page.evaluate(BOXES) == [True, True]


@pytest.fixture(scope="module", autouse=True)
def _axe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fetch axe-core, which checks accessibility; without it, only our own checks are made."""
    place = tmp_path_factory.mktemp("axe")
    with pytest.MonkeyPatch.context() as patch:
        npm = shutil.which("npm")
        words = ["install", "--no-save", "--no-package-lock", "--prefix", str(place), "axe-core"]
        ran = npm and subprocess.run([npm, *words], capture_output=True, check=False, timeout=300)
        source = place / "node_modules" / "axe-core" / "axe.min.js"
        if ran and source.is_file():
            patch.setenv("AXE", str(source))
        yield


def violations(page: "Page") -> list[dict[str, Any]]:
    """Return what axe-core finds wrong; nothing where it could not be fetched."""
    if "AXE" not in os.environ:
        return []
    page.evaluate(Path(os.environ["AXE"]).read_text(encoding="utf-8"))
    return list(page.evaluate("async () => (await axe.run()).violations"))


def test_axe_was_there() -> None:
    """So that it is seen where accessibility is not checked."""
    if "AXE" not in os.environ:
        pytest.skip("npm cannot fetch axe-core here: accessibility was checked without it")


def test_it_speaks_german_and_takes_a_saved_state(
    browser: "Browser", site: Path, tmp_path: Path
) -> None:
    model = privrec.open_model(site / "model.privrec")
    me = model.device(likes=LIKES, dislikes=["i7"], features={"age": "18-29"})
    (tmp_path / "me.json").write_text(me.save())
    with serving(site) as server, visiting(browser, server.url, locale="de-AT") as (_, visit):
        page = visit.page
        assert page.inner_text("#list-title") == "Für Sie"
        page.set_input_files("#take", tmp_path / "me.json")
        page.locator("#done", has_text="gelesen").wait_for()
        wanted = [entry.score for entry in me.recommend(12)]
        near = [pytest.approx(score, rel=1e-5, abs=1e-5 * abs(wanted[0])) for score in wanted]
        assert [score for _, score in shown(page)] == near
        with page.expect_download() as saved:
            page.locator("#keep").click()
        again = model.restore(Path(saved.value.path()).read_text())
        assert again.recommend(12) == me.recommend(12)
        page.select_option("#language", "en")
        assert page.inner_text("#list-title") == "For you"


def test_each_message_is_there_in_each_language(site: Path) -> None:
    messages = json.loads((site / "messages.json").read_text())
    english, german = messages["en"], messages["de"]
    assert english.keys() == german.keys()
    for key, text in english.items():
        fields = {part.split("}")[0] for part in text.split("{")[1:]}
        assert fields == {part.split("}")[0] for part in german[key].split("{")[1:]}, key


def test_hostile_titles_are_text(browser: "Browser", tmp_path: Path) -> None:
    names = [f"u{k}" for k in range(60)]
    lines = [(name, f"i{(k + 3 * j) % 24}", 5) for k, name in enumerate(names) for j in range(8)]
    titles = [f"{HOSTILE[j % 4]} {j}" for j in range(24)]
    tables = Tables(
        manifest=Manifest(name=HOSTILE[0], value="value", positive_above=3.0),
        interactions=pl.DataFrame(lines, schema=["user", "item", "value"], orient="row"),
        users=pl.DataFrame({"id": names, HOSTILE[1]: [HOSTILE[0], HOSTILE[2]] * 30}),
        items=pl.DataFrame(
            {"id": [f"i{j}" for j in range(24)], "title": titles, "kind": HOSTILE * 6}
        ),
    )
    write_folder(tables, tmp_path / "data")
    site = site_of(str(tmp_path / "data"), tmp_path)
    with serving(site) as server, visiting(browser, server.url) as (_, visit):
        page = visit.page
        page.fill("#query", "window.hacked")
        page.locator("#matches .like").first.click()
        page.locator("#list .ask").first.click()
        words = page.inner_text("main")
        assert all(text in words for text in HOSTILE)
        page.wait_for_function("() => navigator.serviceWorker.controller")
        assert page.locator("main script, main img:not(.tile)").count() == 0


def test_pictures_come_as_one_file(browser: "Browser", site: Path, tmp_path: Path) -> None:
    """A server that is asked for single pictures would learn which items are shown."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    icon = (site / "icon-192.png").read_bytes()
    for k in range(60):
        (pictures / f"i{k}.png").write_bytes(icon)
    (pictures / "notes.txt").write_text("no picture")
    place = tmp_path / HERE
    done("export", site.parents[1] / "run", "--web", place, "--pictures", pictures)
    with serving(place) as server, visiting(browser, server.url) as (_, visit):
        page = visit.page
        page.wait_for_function(TWELVE_PICTURES)
        paths = {path for _, path, _ in server.asked}
        assert f"/{HERE}/pictures.zip" in paths
        assert not [path for path in paths if "i1" in path]
        assert page.inner_text("#sent").startswith("0 ")


def test_the_page_of_the_tutorial_works(browser: "Browser", site: Path, tmp_path: Path) -> None:
    """A page of one's own, as the documentation shows it."""
    [block] = [one for one in blocks_of("docs/tutorials/devices.md") if one.language == "html"]
    own = tmp_path / HERE
    shutil.copytree(site, own)
    (own / "mine.html").write_text(block.text, encoding="utf-8")
    with serving(own) as server:
        context = browser.new_context()
        visit = Visit(context.new_page())
        visit.page.goto(f"{server.url}mine.html")
        visit.page.locator("#list li").nth(9).wait_for()
        for title in LIKES[:2]:
            visit.page.fill("#title", title)
            visit.page.locator("#title").dispatch_event("change")
        visit.page.locator("#list li", has_text="because of").first.wait_for()
        device = privrec.open_model(own / "model.privrec").device(likes=LIKES[:2])
        scores = {entry.title: entry.score for entry in device.recommend(60)}
        found = visit.page.locator("#list li").all_inner_texts()
        pairs = [scores[text.split(", because of")[0]] for text in found]
        best = sorted(scores.values(), reverse=True)[:10]
        assert pairs == [pytest.approx(score, abs=1e-5 * best[0]) for score in best]
        visit.page.reload()
        visit.page.locator("#list li", has_text="because of").first.wait_for()
        assert visit.page.locator("#list li").all_inner_texts() == found
        visit.check()
        context.close()


SPOIL = """async () => {
  const { write } = await import("./store.js");
  await write("person", '{"is": "other"}');
}"""


def test_a_kept_state_that_cannot_be_read_is_left_out(browser: "Browser", site: Path) -> None:
    with serving(site) as server, visiting(browser, server.url) as (_, visit):
        page = visit.page
        page.evaluate(SPOIL)
        page.reload()
        page.wait_for_selector("body[data-state=ready]")
        assert "cannot be read" in page.inner_text("#begin")
        page.locator("#list .like").first.click()
        assert not page.locator("#begin").is_visible()
        page.wait_for_function("() => (document.body.dataset.kept ?? '').includes('privrec')")


def test_another_address_is_counted(browser: "Browser", site: Path) -> None:
    """The meter is able to show something else than zero."""
    with serving(site) as server, visiting(browser, server.url) as (_, visit):
        visit.page.evaluate("fetch('device/index.js?likes=i1,i2,i3')")
        visit.page.wait_for_function("() => parseInt(document.querySelector('#sent').value) > 20")
