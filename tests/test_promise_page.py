"""What a run promises, as a page: every row follows from the ledger and says no more."""

import html
from typing import Any, Literal

import pytest

from pages import charts_in, check_page
from privrec.privacy.belief import most_certain, most_right, percent
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Release, Sampling
from privrec.privacy.statement import NodeNoise, privacy_report
from privrec.show.promise import ledger_in, promise_html, render_privacy

DELTA = 1e-6
LAW = Sampling(law="poisson", users=1600, cohort=40)
RELEASE = Release(mechanism="gaussian", sampling=LAW, noise_multiplier=0.9)
BARE = Release(mechanism="none", sampling=LAW)


def line(n: int, release: Release = RELEASE, **changes: Any) -> dict[str, Any]:
    bound = None if release.mechanism == "none" else 2.0 + n
    scale = None if bound is None else release.noise_multiplier * bound
    return {
        **release.as_json(),
        "round": n,
        "stage": "train",
        "people": "everybody",
        "noise": "none" if bound is None else "secure",
        "clip_norm": bound,
        "noise_scale": scale,
        **changes,
    }


def privacy(lines: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    asked = {"delta": DELTA, "noise": "secure", "without": "No guarantee.", **changes}
    return privacy_report(ledger_in(lines), **asked).as_json()


def rows_of(lines: list[dict[str, Any]], found: dict[str, Any]) -> dict[str, str]:
    cells = check_page(render_privacy("t", found, lines)).cells
    first = cells[: cells.index("stage")]
    return dict(zip(first[::2], first[1::2], strict=True))


def test_every_row_follows_from_the_ledger() -> None:
    lines = [line(n) for n in range(20)]
    rows = rows_of(lines, privacy(lines))
    ledger = PrivacyLedger(((RELEASE, 20),))
    assert rows["Who is protected"] == "Each of about 1,600 people who train, with all of her data"
    assert rows["Against whom"] == "anybody who sees the model, during or after training"
    shown = float(rows["ε (epsilon)"].partition(";")[0])
    assert ledger.epsilon(DELTA) <= shown < ledger.epsilon(DELTA) + 0.01
    assert rows["δ (delta)"].startswith("1e-06")
    sure = rows["An attacker who gave it 50\u00a0%"]
    assert percent(most_certain(ledger, DELTA)).replace(" ", "\u00a0") in sure
    assert "at most 1e-06" in sure
    assert percent(most_right(ledger)).replace(" ", "\u00a0") in rows["His guesses"]
    assert rows["What is not covered"].startswith("the server, which sees single updates")
    assert rows["What is not covered"].endswith("chosen by looking at people's data")
    assert "The server" not in rows


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
    page = html.unescape(promise_html(privacy(lines), lines))
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
    assert len(at) <= 9
    assert at[-1][1] == pytest.approx(found["epsilon"], rel=1e-5)
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
    lines: list[dict[str, Any]], changes: dict[str, Any], said: str | None
) -> None:
    found = privacy(lines, **changes)
    rows = rows_of(lines, found)
    assert rows["Who is protected"] == "nobody"
    assert "can get to 100\u00a0%" in rows["An attacker who gave it 50\u00a0%"]
    assert "infinite" in rows["ε (epsilon)"]
    assert "at most" not in " ".join(rows.values())
    assert said is None or any(said in f"{key} {value}" for key, value in rows.items())
    text = render_privacy("t", found, lines)
    assert 'class="privacy noised"' not in text
    assert ("no guarantee." in text) == (changes.get("noise") == "seeded")


def test_a_server_that_is_covered_has_a_row_of_its_own() -> None:
    nodes = NodeNoise(nodes=5, honest=3, sums=2, epsilon=4.5)
    lines = [line(0), line(1)]
    rows = rows_of(lines, privacy(lines, server=nodes))
    assert rows["The server"].startswith("The server is covered too, whether")
    assert "4.50" in rows["The server"]
    assert rows["What is not covered"].startswith("the people kept for validation")
    assert "server is covered" not in rows["What is not covered"]


def test_volunteers_are_not_counted_and_named() -> None:
    lines = [line(0, BARE, people="volunteers"), line(1)]
    assert ledger_in(lines) == PrivacyLedger(((RELEASE, 1),))
    found = privacy(lines, volunteers=7)
    page = check_page(render_privacy("t", found, lines))
    assert "about 40 of 1,600 volunteers, who are not covered" in page.cells
    assert "did not volunteer (about 7 did, and are not covered)" in page.words


def test_a_ledger_that_costs_more_than_the_statement_gives_no_figure() -> None:
    """A statement of an older evaluation beside a ledger that went on: no bound is shown."""
    rows = rows_of([line(n) for n in range(9)], privacy([line(0)]))
    assert not any("attacker" in key for key in rows)


def test_an_older_document_without_delta_is_shown() -> None:
    text = promise_html({"statement": "Words.", "epsilon": 1.0}, [])
    assert "smaller is stronger" in text
    assert "None" not in text
