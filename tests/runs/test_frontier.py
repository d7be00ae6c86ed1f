"""`privrec frontier`: what it trains, what it shows, and what it does not train again."""

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from commands import document, done
from pages import Page, charts_in, check_page
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.paper import PRINTED_HITS
from privrec.runs import frontier, loop
from privrec.runs.api import open_run
from privrec.runs.folder import read_evaluation
from privrec.runs.frontier import Frontier, Point, experiment_line, find_frontier
from privrec.runs.run import Run
from privrec.show.charts import looks_of
from privrec.show.frontier import draw_frontier, render_frontier
from svg import points_of, words_of
from tiny import DATA

DELTA = 1e-3


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    place = tmp_path_factory.mktemp("frontier") / "out"
    words = ("--epsilons", "inf,2,8", "--seeds", "0,1", "--delta", DELTA, "--out", place)
    return place, document("frontier", "--data", DATA, *map(str, words), "--json")


def evaluation(place: Path, name: str) -> Any:
    return read_evaluation(place / name).as_json()


@pytest.mark.slow
def test_each_epsilon_is_a_run_of_its_own_and_the_ledgers_have_it(found: tuple[Path, Any]) -> None:
    place, said = found
    assert json.loads((place / "frontier.json").read_text()) == said
    assert [point["epsilon"] for point in said["points"]] == [2, 8, None]
    for point, name in zip(said["points"], ("2", "8", "inf"), strict=True):
        runs = [evaluation(place, f"epsilon-{name}-seed-{seed}") for seed in (0, 1)]
        for k in ("5", "10", "20", "30"):
            assert point["hits"][k] == pytest.approx((runs[0]["hits"][k] + runs[1]["hits"][k]) / 2)
        # An experiment with repeatable noise has no guarantee.
        assert {run["privacy"]["epsilon"] for run in runs} == {None}
        spent = [run["privacy"]["epsilon_of_mechanism"] for run in runs]
        if point["epsilon"] is None:
            assert point["epsilon_of_mechanism"] is None
            assert {run["recipe"] for run in runs} == {"privrec-plus"}
        else:
            assert point["epsilon_of_mechanism"] == max(spent)
            assert 0.98 * point["epsilon"] <= max(spent) <= point["epsilon"]
            assert {run["recipe"] for run in runs} == {"dp-privrec-plus"}
            assert {run["privacy"]["noise"] for run in runs} == {"seeded"}


@pytest.mark.slow
def test_all_noised_runs_together_cost_more_than_any(found: tuple[Path, Any]) -> None:
    place, said = found
    whole = PrivacyLedger()
    for name in ("2", "8"):
        for seed in (0, 1):
            whole = whole.compose(open_run(place / f"epsilon-{name}-seed-{seed}").ledger)
    assert whole.releases == 10  # Two at epsilon 2, three at 8.
    assert said["together"] == whole.epsilon(DELTA)
    assert 8 < said["together"] < 20


def test_the_lines_are_the_references_of_the_same_runs(found: tuple[Path, Any]) -> None:
    place, said = found
    assert set(said["lines"]) == {"popularity", "EASE, centralised"}
    levels = [
        evaluation(place, f"epsilon-2-seed-{seed}")["references"]["popularity"]["hits"]["20"]
        for seed in (0, 1)
    ]
    assert said["lines"]["popularity"] == pytest.approx(sum(levels) / 2)


def test_the_paper_is_a_line_where_it_printed_a_figure() -> None:
    assert frontier._lines("movielens-1m", []) == {
        "PrivRec (paper)": PRINTED_HITS["movielens-1m"]["PrivRec"]["20"]
    }
    assert frontier._lines("mine", []) == {}


def test_what_is_there_is_not_trained_again(
    found: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, said = found
    before = (place / "epsilon-2-seed-0" / "ledger.jsonl").read_bytes()

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a run was trained or evaluated again")

    monkeypatch.setattr(loop, "play_stages", refuse)
    monkeypatch.setattr(Run, "evaluate", refuse)
    again = find_frontier(DATA, [2, 8, math.inf], delta=DELTA, seeds=[0, 1], out=place)
    tuples = {name: tuple(said[name]) for name in ("points", "warnings")}
    assert again.as_json() == {**said, **tuples}
    assert (place / "epsilon-2-seed-0" / "ledger.jsonl").read_bytes() == before


def test_a_run_that_is_not_clearly_better_is_warned_of(found: tuple[Path, Any]) -> None:
    place, _ = found
    words = ("--epsilons", "2", "--seeds", "0", "--delta", str(DELTA))
    text = done("frontier", "--data", DATA, *words, "--out", place)
    [warned, *_], page = (
        evaluation(place, "epsilon-2-seed-0")["warnings"],
        Page((place / "frontier.html").read_text()),
    )
    assert "clearly better than" in warned or "worse than" in warned
    assert f"warning: epsilon 2, seed 0: {warned}" in text
    assert f"epsilon 2, seed 0: {warned}" in page.words
    assert "More people who train" not in text + page.words


def test_a_person_sees_the_table_and_where_the_pictures_are(found: tuple[Path, Any]) -> None:
    place, _ = found
    words = ("--epsilons", "8,inf", "--seeds", "0", "--delta", str(DELTA))
    text = done("frontier", "--data", DATA, *words, "--out", place)
    assert "no noise" in text
    assert "For experiments only: no protection." in text
    assert "popularity: Hits@20" in text
    assert (place / "frontier.html").read_text().startswith("<!doctype html>")


HITS = {"5": 0.1, "10": 0.1, "20": 0.2, "30": 0.3}
POINT = Point(epsilon=1.0, epsilon_of_mechanism=0.98901, hits=HITS, seeds=1)


def test_the_picture_is_a_whole_svg_with_its_own_colours(found: tuple[Path, Any]) -> None:
    place, _ = found
    evil = "<b>&\"'"
    made = Frontier(
        data=evil, delta=1e-6, together=0.99, points=(POINT,), lines={"popularity": 0.1}
    )
    for text in ((place / "frontier.svg").read_text(), draw_frontier(made, title=evil)):
        root = ET.fromstring(text)  # noqa: S314
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not {"{http://www.w3.org/2000/svg}script"} & {node.tag for node in root.iter()}
        # Outside of a page nothing says what a name such as --bg stands for.
        assert "var(" not in text
        assert "Hits@20" in text
        assert "popularity" in text
    assert f">{escape(evil)}</text>" in draw_frontier(made, title=evil)
    page, picture = (draw_frontier(made, title=title) for title in ("", "t"))
    assert page.partition('<line class="grid"')[2].partition("</svg>")[0] in picture
    assert draw_frontier(replace(made, lines={}), title="t") == ""


def test_the_page_escapes_names_and_says_what_has_no_guarantee() -> None:
    bare = Point(epsilon=None, epsilon_of_mechanism=None, hits=HITS, seeds=1)
    made = Frontier(
        data="<b>", delta=1e-6, together=1.2341, points=(POINT, bare), lines={"popularity": 0.1}
    )
    page = render_frontier(made)
    assert "<b>" not in page.replace("<body>", "")
    assert "∞ is the level privrec-plus, ε = ∞: another recipe" in page
    alone = render_frontier(
        Frontier(data="d", delta=1e-6, together=1.2341, points=(POINT,), lines={})
    )
    assert "∞" not in alone
    assert "All points are dp-privrec-plus." in alone
    assert "For experiments only: no protection." in page
    check_page(page)
    assert len(charts_in(page)) == 1
    # Rounded up: the shown ε is never below the true one.
    assert "<td>0.990</td>" in page
    assert "epsilon 1.24 together, at delta 1e-06" in page
    assert "The runs without noise alone make it infinite." in page
    quiet = experiment_line(replace(made, together=None, points=(bare,)))
    assert "together" not in quiet
    assert "no protection" in quiet


def test_epsilon_is_a_number_and_no_line_leads_to_another_recipe() -> None:
    points = [
        Point(
            epsilon=epsilon,
            epsilon_of_mechanism=epsilon,
            hits={**HITS, "20": hits},
            seeds=1,
            interval={"20": [hits - 0.02, hits + 0.02]},
        )
        for epsilon, hits in ((1.0, 0.21), (2.0, 0.24), (8.0, 0.3), (None, 0.35))
    ]
    lines = {"popularity": 0.2, "EASE, centralised": 0.34, "PrivRec (paper)": 0.217}
    made = Frontier(data="d", delta=1e-6, together=9.0, points=tuple(points), lines=lines)
    [chart] = charts_in(render_frontier(made))
    root = ET.fromstring(chart)  # noqa: S314
    (curve,) = points_of(root)
    one, two, eight = (x for x, _ in curve)
    # Of a logarithmic axis: from 2 to 8 is twice as far as from 1 to 2.
    assert eight - two == pytest.approx(2 * (two - one), abs=0.3)
    assert "∞" not in [word for word in words_of(root) if "privrec" not in word]
    # The recipe without noise is a level with its interval, in its own colour.
    titles = [node.findtext("title") or "" for node in root.iter("line")]
    assert "privrec-plus, ε = ∞: 0.35 (0.33 to 0.37)" in titles
    looks = {
        (node.findtext("title") or "").partition(":")[0]: node.attrib["class"].split()[-1]
        for node in root.iter("line")
    }
    names = {"dp-privrec-plus": "", "privrec-plus": "", "popularity": "", "ease": ""}
    expected = [look for look, _, _ in looks_of(list(names))]
    shown = ["privrec-plus, ε = ∞", "popularity", "EASE, centralised"]
    assert [looks[name] for name in shown] == expected[1:]
    assert looks["PrivRec (paper)"] == "dashed"
    assert {node.attrib["class"] for node in root.iter("polyline")} == {expected[0]}


def test_bars_stay_inside_the_picture_and_the_axis_starts_at_zero() -> None:
    points = [
        Point(
            epsilon=epsilon,
            epsilon_of_mechanism=epsilon,
            hits=HITS,
            seeds=1,
            interval={"20": [0.05, 0.37]},
        )
        for epsilon in (1.0, 2.0)
    ]
    found = Frontier(
        data="d", delta=1e-6, together=1.0, points=tuple(points), lines={"popularity": 0.2}
    )
    [chart] = charts_in(render_frontier(found))
    assert ">0</text>" in chart
    assert ">0.4</text>" in chart
    assert ">0.45</text>" not in chart
