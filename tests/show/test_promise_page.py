"""What a run promises, as a page: every row follows from the ledger and says no more."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pytest

from pages import Page, charts_in, check_page
from privrec.algorithms.recipes import RECIPES
from privrec.privacy.ledger import PrivacyLedger, most_certain, most_right, percent
from privrec.privacy.release import Release, Sampling
from privrec.privacy.statement import TITLES, NodeNoise, Strength, epsilon_text, privacy_report
from privrec.runs.documents import Privacy
from privrec.runs.ledger import LedgerLine, ledger_in
from privrec.show.promise import promise_part, render_privacy
from svg import points_of

DELTA = 1e-6
LAW = Sampling(law="poisson", users=1600, cohort=40)
RELEASE = Release(mechanism="gaussian", sampling=LAW, noise_multiplier=0.9)
BARE = Release(mechanism="none", sampling=LAW)


def line(n: int, release: Release = RELEASE, stage: str = "train") -> LedgerLine:
    bound = None if release.mechanism == "none" else 2.0 + n
    scale = None if bound is None else release.noise_multiplier * bound
    return LedgerLine(
        **release.as_json(),
        round=n,
        stage=stage,
        people="everybody",
        population="of a test",
        noise="none" if bound is None else "secure",
        clip_norm=bound,
        noise_scale=scale,
    )


def privacy(lines: list[LedgerLine], **changes: Any) -> Privacy:
    asked = {"delta": DELTA, "noise": "secure", "without": "No guarantee.", **changes}
    return Privacy.model_validate(privacy_report(ledger_in(lines), **asked).as_json())


def rows_of(lines: list[LedgerLine], found: Privacy) -> dict[str, str]:
    cells = check_page(render_privacy("t", found, lines)).cells
    first = cells[: cells.index("stage")]
    return dict(zip(first[::2], first[1::2], strict=True))


@pytest.mark.slow
def test_every_row_follows_from_the_ledger() -> None:
    lines = [line(n) for n in range(20)]
    rows = rows_of(lines, privacy(lines))
    ledger = PrivacyLedger(((RELEASE, 20),))
    shown = float(rows["ε (epsilon)"].partition(";")[0])
    assert ledger.epsilon(DELTA) <= shown < ledger.epsilon(DELTA) + 0.01
    assert rows["δ (delta)"].startswith("1e-06")
    sure = rows["An attacker who gave it 50\u00a0%"]
    assert percent(most_certain(ledger, DELTA)).replace(" ", "\u00a0") in sure
    assert "at most 1e-06" in sure
    assert percent(most_right(ledger)).replace(" ", "\u00a0") in rows["His guesses"]


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ("poisson", "that she took part and that she did not"),
        ("fixed", "that her data was used and that somebody else's was in its place"),
    ],
)
def test_the_attacker_compares_what_the_guarantee_compares(
    law: Literal["poisson", "fixed"], words: str
) -> None:
    sampling = Sampling(law=law, users=1600, cohort=40)
    release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=2.0)
    lines = [line(0, release)]
    page = Page(f"<main>{promise_part(privacy(lines), lines)}</main>").words
    assert f"equally likely {words}." in page
    assert "everything that this run publishes" in page
    assert "other runs on the same people, which add up" in page


def test_the_ledger_is_shown_with_its_noise() -> None:
    lines = [line(n) for n in range(3)] + [line(3, stage="last")]
    cells = check_page(render_privacy("t", privacy(lines), lines)).cells
    at = cells.index("train")
    assert cells[at : at + 7] == [
        "train",
        "3",
        "about 40 of 1,600",
        "gaussian, secure",
        "0.9",
        "2 to 4",
        "1.8 to 3.6",
    ]
    assert cells[at + 7 : at + 9] == ["last", "1"]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_epsilon_by_release_ends_where_the_ledger_does(count: int) -> None:
    lines = [line(n) for n in range(count)]
    found = privacy(lines)
    charts = charts_in(render_privacy("t", found, lines))
    if count == 1:
        assert charts == []
        return
    (chart,) = charts
    dots = chart.split('data-x="')[1:]
    at = [(int(d.split('"')[0]), float(d.split('data-y="')[1].split('"')[0])) for d in dots]
    assert (at[0], at[-1][0]) == ((0, 0.0), count)
    (curve,) = points_of(ET.fromstring(chart))  # noqa: S314
    # Two releases are two steps: between them nothing is spent.
    steps = all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(curve))
    assert steps == (count == 2)
    assert len(at) <= 9
    assert at[-1][1] == pytest.approx(found.epsilon, rel=1e-5)
    middle, spent = at[len(at) // 2]
    assert spent == pytest.approx(PrivacyLedger(((RELEASE, middle),)).epsilon(DELTA), rel=1e-5)


@pytest.mark.parametrize(
    ("lines", "changes", "said"),
    [
        ([line(0), line(1)], {"noise": "seeded"}, "if the noise were secure"),
        ([line(0, BARE), line(1, BARE)], {}, None),
        ([line(0, BARE), line(1)], {"second": PrivacyLedger(((RELEASE, 1),))}, "stage two alone"),
    ],
)
def test_where_nothing_is_promised_an_attacker_can_be_certain(
    lines: list[LedgerLine], changes: dict[str, Any], said: str | None
) -> None:
    found = privacy(lines, **changes)
    rows = rows_of(lines, found)
    assert "can get to 100\u00a0%" in rows["An attacker who gave it 50\u00a0%"]
    assert "infinite" in rows["ε (epsilon)"]
    assert "at most" not in " ".join(rows.values())
    assert said is None or any(said in f"{key} {value}" for key, value in rows.items())
    text = render_privacy("t", found, lines)
    assert re.findall('class="(privacy [^"]*)"><b>(.*?)</b>', text) == [
        ("privacy none", "No guarantee.")
    ]
    assert 'class="scale"' not in text
    assert ("no guarantee." in text) == (changes.get("noise") == "seeded")


def test_a_server_that_is_covered_is_named_with_its_strength() -> None:
    nodes = NodeNoise(nodes=5, honest=3, sums=2, epsilon=5.5)
    lines = [line(0), line(1)]
    found = privacy(lines, server=nodes)
    assert "Against the server, epsilon is 5.50 (weak), if at least 3 of 5 nodes" in found.short
    assert found.not_covered[0].startswith("the people kept for validation")
    assert not any("server" in one for one in found.not_covered)


@pytest.mark.parametrize(("noise", "strength"), [(5.0, "strong"), (0.8, "moderate"), (0.4, "weak")])
def test_people_who_decide_read_a_short_paragraph(noise: float, strength: Strength) -> None:
    """Who, against whom, how strong in a word, on a scale and as an attacker's belief."""
    release = replace(RELEASE, noise_multiplier=noise)
    lines, ledger = [line(0, release)], PrivacyLedger(((release, 1),))
    found = privacy(lines, undeclared=["the catalogue"])
    certain = percent(most_certain(ledger, DELTA))
    assert found.strength == strength
    assert found.short == (
        "Each of about 1,600 people who train is protected against anybody who sees the model, with"
        " all of her data. An attacker who gave it 50 % that she took part can get to at most"
        f" {certain}, apart from a chance of 1e-06."
    )
    assert len(found.short.split()) < 50
    # It leaves out nothing that the statement in full has.
    assert len(found.not_covered) == 6
    assert all(one in found.statement for one in found.not_covered)
    page = render_privacy("t", found, lines)
    boxes = re.findall('class="(privacy [^"]*)"><b>(.*?)</b> (.*?)</p>', page)
    assert boxes == [(f"privacy {strength}", f"{TITLES[strength]}.", found.short)]
    assert len(re.findall("<li>", page)) == 6
    assert f'class="{strength} on"' in page
    assert f"ε = {epsilon_text(found.epsilon)}</text>" in page
    assert "Ponomareva et al. 2023" in page
    assert "The statement in full" in page


def test_every_reason_for_no_guarantee_has_a_short_form() -> None:
    reasons = {recipe.without_noise for recipe in RECIPES.values()}
    assert len(reasons) == 4
    for reason in reasons:
        found = privacy_report(PrivacyLedger(), delta=DELTA, noise="secure", without=reason)
        assert found.strength == "none"
        assert found.statement == reason
        assert found.short != reason
        assert len(found.short.split()) < 50


def test_a_ledger_that_costs_more_than_the_statement_gives_no_figure() -> None:
    """A statement of an older evaluation beside a ledger that went on: no bound is shown."""
    rows = rows_of([line(n) for n in range(9)], privacy([line(0)]))
    assert not any("attacker" in key for key in rows)


def test_an_older_document_without_delta_is_shown() -> None:
    text = promise_part(Privacy(statement="Words.", epsilon=1.0), [])
    assert '<p class="privacy strong"><b>Strong protection.</b> Words.</p>' in text
    assert "in full" not in text
    assert "smaller is stronger" in text
    assert "None" not in text
