"""Every page in a real browser: it shows its figures, and runs nothing that came with data.

The browser is $PRIVREC_CHROMIUM, or `chromium`. Without one these tests are skipped; they fail
instead where $PRIVREC_BROWSER is "required".
"""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import polars as pl
import pytest

import privrec
from commands import done
from privrec.data.manifest import Manifest, Public
from privrec.data.tables import Tables, write_folder
from privrec.runs.documents import Attack
from privrec.show import status
from privrec.show.attacks import render_attacks
from privrec.show.server import site_of
from served import served
from tiny import DATA, as_options
from visits import Visit

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
Open = Callable[..., Visit]
HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "' onmouseover='window.hacked=1",
    "</title></style></script><script>window.hacked=1</script>",
)
ROUNDS: dict[str, Any] = {"cohort": 8, "rounds": 3, "validate_every": 1}
"""Of `fcf`, which compiles nothing."""
PAGES = ("report", "privacy", "compare", "frontier", "attack")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    # The scope is a module: as long as it lives, this thread has a running event loop.
    chromium = os.environ.get("PRIVREC_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        if os.environ.get("PRIVREC_BROWSER") == "required":
            pytest.fail("there is no Chromium or no playwright, and $PRIVREC_BROWSER requires it")
        pytest.skip("there is no Chromium ($PRIVREC_CHROMIUM) or no playwright")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        opened = playwright.chromium.launch(
            executable_path=chromium, args=arguments, timeout=180_000
        )
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Open]:
    """Open a page; at the end of the test, nothing may have happened that must not."""
    visits: list[Visit] = []
    with ExitStack() as ends:

        def open_(url: str, *, width: int = 1200, dark: bool = False) -> Visit:
            context = browser.new_context(
                viewport={"width": width, "height": 800},
                color_scheme="dark" if dark else "light",
            )
            ends.callback(context.close)
            context.set_default_timeout(60_000)
            found = Visit(context.new_page())
            visits.append(found)
            found.page.goto(url)
            return found

        yield open_
        for one in visits:
            if not one.page.is_closed():
                one.check()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    """A data set whose name and titles are attempts to run a script."""
    names = [f"u{k}" for k in range(60)]
    lines = [(name, f"i{(k + 3 * j) % 24}", 5) for k, name in enumerate(names) for j in range(8)]
    tables = Tables(
        manifest=Manifest(
            name=HOSTILE[0],
            value="value",
            positive_above=3.0,
            public=Public(people=60, items=True, threshold=True),
        ),
        interactions=pl.DataFrame(lines, schema=["user", "item", "value"], orient="row"),
        users=pl.DataFrame({"id": names}),
        items=pl.DataFrame(
            {
                "id": [f"i{j}" for j in range(24)],
                "title": [f"{HOSTILE[j % 4]} {j}" for j in range(24)],
                "genre": [HOSTILE[j % 4] for j in range(24)],
            }
        ),
    )
    write_folder(tables, place / "data")
    return place / "data"


@pytest.fixture(scope="module")
def pages(place: Path, data: Path) -> dict[str, Path]:
    """The pages of tiny runs, written by the commands themselves."""
    first, second, frontier = place / "first", place / "second", place / "frontier"
    done("train", "fcf", "--data", data, "--out", first, *as_options(ROUNDS))
    sums = ["--epsilon", "8", "--set", "rounds=0", "--set", "noise=seeded"]
    done("train", "dp-privrec-plus", "--data", data, "--out", second, *sums)
    for run in (first, second):
        done("evaluate", run)
    # People are shown of public data alone, whose titles are not ours either.
    item = {"title": HOSTILE[3], "hit": True}
    person = {"liked": [*HOSTILE], "more": 0, "held_out": 1, "list": [item]}
    examples = first / "simulation" / "examples.json"
    examples.write_text(json.dumps({"examples": [person]}))
    done("report", first)
    done("compare", first, second, "--html", place / "compare.html")
    done("frontier", "--data", data, "--epsilons", "8,inf", "--out", frontier)
    (place / "attack.html").write_text(render_attacks(attacked()))
    return {
        "report": first / "simulation" / "report.html",
        "privacy": first / "privacy.html",
        "compare": place / "compare.html",
        "frontier": frontier / "frontier.html",
        "attack": place / "attack.html",
    }


def attacked() -> Attack:
    area = {"value": 0.61, "low": 0.55, "high": 0.67}
    found = {
        "members": 100,
        "others": 100,
        "auc": area,
        "accuracy": 0.58,
        "rates": {"0.01": area, "0.001": area},
        "curve": [[0.0, 0.0], [0.01, 0.02], [0.5, 0.6], [1.0, 1.0]],
    }
    document = {
        "recipe": HOSTILE[1],
        "data": HOSTILE[3],
        "epsilon": None,
        "delta": 1e-6,
        "repetitions": 5,
        "seed": 3,
        "attacks": {"loss": found},
    }
    return Attack.model_validate(document, strict=False)


def read_hover(visit: Visit, dot: str) -> tuple[float, str]:
    """Return the value of the first such point, and what is shown while the pointer is on it."""
    point = visit.page.locator(dot).first
    point.scroll_into_view_if_needed()
    at = point.bounding_box()
    assert at is not None
    visit.page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    visit.page.wait_for_selector("#tip:not([hidden])")
    return float(point.get_attribute("data-y") or "nan"), visit.page.inner_text("#tip")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_harmless_and_readable_on_any_screen(
    visit: Open, pages: dict[str, Path], name: str
) -> None:
    for width, dark in ((1200, False), (375, True)):
        found = visit(pages[name].as_uri(), width=width, dark=dark)
        found.check_look(dark=dark)
        found.check()
        assert found.page.title()
        if name != "privacy":  # Without noise, nothing is spent release by release.
            value, said = read_hover(found, ".dot[data-y]:not([data-y='0'])")
            shown = re.search(r": ([\d.]+)", said)
            assert shown, said
            assert float(shown[1]) == pytest.approx(value, rel=1e-3)


def test_what_is_called_in_data_stands_on_the_page_as_text(
    visit: Open, pages: dict[str, Path]
) -> None:
    """If it stood nowhere, no page could fail to be harmless."""
    words = visit(pages["report"].as_uri()).page.inner_text("main")
    assert all(title in words for title in HOSTILE)


def test_every_link_leads_to_a_page(visit: Open, pages: dict[str, Path]) -> None:
    for name in PAGES:
        found = visit(pages[name].as_uri())
        hrefs = found.page.evaluate("[...document.links].map(it => it.href)")
        assert bool(hrefs) == (name not in ("attack", "privacy"))
        for href in hrefs:
            assert Path(unquote(urlsplit(href).path)).is_file(), (name, href)


def test_a_point_of_a_curve_tells_its_figure(visit: Open, pages: dict[str, Path]) -> None:
    lines = (pages["report"].parent / "rounds.jsonl").read_text().splitlines()
    first = json.loads(lines[0])["validation"]
    found = visit(pages["report"].as_uri())
    chart = "svg.chart:has(.dot[data-tip*='Hits@20'])"
    value, said = read_hover(found, f"{chart} .dot[data-tip^='Hits@20']")
    assert value == pytest.approx(first["20"], abs=1e-5)
    # All are found at 20 already, so two curves are in one place: both are told.
    assert first["30"] == first["20"] > first["10"]
    for k in ("20", "30"):
        shown = re.search(rf"Hits@{k} .* 1: ([\d.]+)", said)
        assert shown, said
        assert float(shown[1]) == pytest.approx(first[k], abs=0.01)
    assert "Hits@10" not in said
    found.page.mouse.move(1, 1)
    assert found.page.is_hidden("#tip")


def test_links_lead_from_page_to_page(visit: Open, pages: dict[str, Path]) -> None:
    found = visit(pages["report"].as_uri())
    found.page.locator("a[href$='privacy.html']").first.click()
    found.page.wait_for_url("**/privacy.html")
    found.check()
    found.page.go_back()
    found.page.wait_for_url("**/report.html")
    compare = visit(pages["compare"].as_uri())
    compare.page.locator("a[href*='report.html']").first.click()
    compare.page.wait_for_url("**/simulation/report.html")


def test_a_training_is_watched_from_its_first_round_to_its_last(
    visit: Open, place: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_PATIENCE", 0.0)
    run, step, reached = place / "watched", threading.Semaphore(0), threading.Semaphore(0)

    def wait(what: str, count: int, total: int) -> None:
        if what == "rounds":
            reached.release()
            assert step.acquire(timeout=60)

    training = threading.Thread(
        target=lambda: privrec.train("fcf", str(data), out=run, on_progress=wait, **ROUNDS),
        daemon=True,
    )
    with served(site_of(run)) as here:
        found = visit(here.url())
        page = found.page
        page.wait_for_selector("body[data-state='waiting']")
        training.start()
        for count in range(1, 4):
            assert reached.acquire(timeout=60)
            page.locator("[data-says=rounds]", has_text=f"{count} of 3").wait_for()
            assert page.get_attribute("body", "data-state") == "training"
            assert page.locator("progress#rounds").evaluate(
                "it => it.value / it.max"
            ) == pytest.approx(count / 3)
            step.release()
        page.wait_for_selector("body[data-state='finished']")
        training.join(60)
        # What was measured is drawn, and can be read off.
        page.wait_for_selector("#charts .dot[data-x='3'][data-tip^='Hits@20']")
        lines = (run / "simulation" / "rounds.jsonl").read_text().splitlines()
        value, said = read_hover(found, "#charts .dot[data-x='3'][data-tip^='Hits@20']")
        assert value == pytest.approx(json.loads(lines[-1])["validation"]["20"], abs=1e-5)
        assert "Hits@20 — rounds 3: 1" in said
        found.check_look(dark=False)
        small = visit(here.url(), width=375, dark=True)
        small.page.wait_for_selector("body[data-state='finished']")
        small.check_look(dark=True)
        for one in (found, small):
            one.leave()


def test_a_stopped_training_says_how_to_go_on(visit: Open, place: Path) -> None:
    run = place / "stopped"

    def stop(what: str, count: int, total: int) -> None:
        if what.startswith("rounds"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        privrec.train("privrec-plus", DATA, out=run, on_progress=stop)
    with served(site_of(run)) as here:
        found = visit(here.url())
        found.page.wait_for_selector("body[data-state='stopped']")
        line = f"privrec train privrec-plus --out {run} --resume"
        assert found.page.inner_text("#resume") == line
        found.leave()


def test_what_must_not_happen_is_seen(browser: Any) -> None:
    """The checks above can fail."""
    context = browser.new_context()
    for text, seen in (
        ("<img src='http://192.0.2.1/x.png'>", "asked for"),
        ("<script>console.error('x')</script>", "console"),
        ("<script>nothing.there</script>", "error"),
    ):
        visit = Visit(context.new_page())
        visit.page.set_content(text, wait_until="commit")
        while not visit.problems:
            visit.page.wait_for_timeout(10)
        assert visit.problems[0].startswith(seen)
        with pytest.raises(AssertionError):
            visit.check()
    for handler in ("onmouseover", "onerror"):
        visit = Visit(context.new_page())
        visit.page.set_content(f"<p {handler}='hacked=1'>")
        with pytest.raises(AssertionError):
            visit.check()
    visit = Visit(context.new_page())
    visit.page.set_content("<p style='color:#999'>grey</p>" * 6 + "<script>hacked=1</script>")
    with pytest.raises(AssertionError):
        visit.check_look(dark=False)
    with pytest.raises(AssertionError):
        visit.check()
    context.close()
