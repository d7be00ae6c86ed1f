"""One look for all pages: harmless, readable, and without a network."""

import itertools
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pages import Page, check_page, policy_of
from privrec.show import page as page_module
from privrec.show.page import TEMPLATES, Table, html_link, path_link, render, with_code

EVIL = "<script>alert(1)</script>&\"' onload=x \u202egpj"
Colour = npt.NDArray[np.float64]
STYLE = "".join((TEMPLATES / name).read_text() for name in ("style.css", "chart.css"))
SCRIPT = (TEMPLATES / "chart.js").read_text()


def page(title: str = "t", **context: object) -> str:
    return render("privacy.html", title=title, **{"promise": "", **context})


def test_a_page_runs_our_scripts_and_no_other() -> None:
    assert check_page(page()).scripts == [SCRIPT]
    more = check_page(render("watch.html", "watch.js", run="run"))
    assert more.scripts == [SCRIPT, (TEMPLATES / "watch.js").read_text()]
    policy = policy_of(more)
    assert len(policy["script-src"].split()) == 2
    assert "unsafe" not in policy["script-src"]
    assert policy["connect-src"] == policy["form-action"] == "'self'"


def test_text_from_data_stays_text() -> None:
    table = Table(head=[EVIL], rows=[[EVIL, html_link(EVIL, EVIL), with_code(EVIL)]], name=EVIL)
    context = {"warning": EVIL, "chart": EVIL, "points": table, "warnings": [EVIL], "seeds": 2}
    more = {"delta": EVIL, "noised": EVIL, "without": EVIL, "has_level": True, "has_bars": True}
    links = [(EVIL, path_link(EVIL))]
    found = check_page(render("frontier.html", title=EVIL, links=links, **context, **more))
    assert found.scripts == [SCRIPT]
    # Title, heading, link, four cells and six other places: reordering is taken out.
    assert found.words.count(EVIL.replace("\u202e", "�")) == 13


@pytest.mark.parametrize("name", ['a "b" #c?d%e', "x:y", "läuft & <i>", "javascript:alert(1)"])
def test_a_link_leads_to_the_folder_whatever_its_name(name: str, tmp_path: Path) -> None:
    from urllib.parse import unquote, urljoin, urlsplit

    (tmp_path / name).mkdir()
    link = path_link(f"{name}/report.html")
    check_page(page(links=[("report", link)]))
    whole = urlsplit(urljoin((tmp_path / "page.html").as_uri(), link))
    assert whole.scheme == "file"
    assert not whole.query
    assert not whole.fragment
    assert Path(unquote(whole.path)) == tmp_path / name / "report.html"


def variables(*, dark: bool) -> dict[str, str]:
    light, other = re.findall(r":root\{(.*?)\}", STYLE, re.DOTALL)
    found = dict(re.findall(r"(--[\w-]+):(#\w+)", light))
    return {**found, **dict(re.findall(r"(--[\w-]+):(#\w+)", other))} if dark else found


def linear(colour: str) -> Colour:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    rgb = np.array([int(digits[k : k + 2], 16) for k in (0, 2, 4)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2: (lighter + 0.05) / (darker + 0.05)."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    darker, lighter = sorted(float(linear(colour) @ weights) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(dark: bool) -> None:
    known = variables(dark=dark)
    texts = ["text", "soft", "link", *(f"s{n}" for n in range(6))]
    pairs = list(itertools.product(texts, ["bg", "card"]))
    pairs += [("text", f"{kind}-bg") for kind in ("good", "bad", "warn", "strong")]
    pairs += [("soft", "good-bg"), ("good", "good-bg"), ("good", "bg"), ("good", "card")]
    pairs += [("bad", "bg"), ("warn", "bg")]
    for front, back in pairs:
        assert contrast(known[f"--{front}"], known[f"--{back}"]) >= 4.5, (front, back)


# Machado, Oliveira and Fernandes 2009, at full strength.
SIGHT = {
    "usual": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def lab(rgb: Colour) -> Colour:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SIGHT)
def test_the_colours_of_curves_differ_for_everybody(sight: str, dark: bool) -> None:
    known = variables(dark=dark)
    seen = [lab(np.array(SIGHT[sight]) @ linear(known[f"--s{n}"])) for n in range(6)]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) >= 12


def test_every_colour_of_the_style_is_a_variable() -> None:
    """A fixed colour would be unreadable in one of the two modes."""
    rules = re.sub(r":root\{.*?\}", "", STYLE, flags=re.DOTALL)
    assert not re.findall(r"#[0-9a-fA-F]{3,6}\b", rules)
    used = set(re.findall(r"var\((--[\w-]+)\)", rules))
    assert used <= variables(dark=False).keys()
    assert variables(dark=False).keys() == variables(dark=True).keys()
    assert set(re.findall(r"(--[\w-]+):#", STYLE.split("@media", 1)[1])) >= used


def shown(table: Table) -> str:
    text = '{% from "macros.html" import table %}{{ table(it) }}'
    return page_module._environment().from_string(text).render(it=table)


def test_a_table_has_its_cells_and_the_kinds_of_its_rows() -> None:
    rows = [["ours", "0.1"], ["other", "0.2"]]
    lines = Table(head=["", "@5"], rows=rows, kinds=["ours"], look="wide")
    text = shown(lines)
    assert text.count('<tr class="ours">') == 1
    assert Page(text).cells == ["", "@5", "ours", "0.1", "other", "0.2"]
    assert "thead" not in shown(Table(head=[], rows=[["a"]]))
