"""The lines under a table: adaptation with little data, and what was kept."""

import re
from pathlib import Path
from typing import Any

import pytest
from test_report import evaluation

from privrec.cli.rank import show_evaluation
from privrec.runs.documents import Evaluation
from privrec.runs.loop import train
from privrec.show.report import few_items_line, render_report
from tiny import DATA, MODEL

HITS = {"5": 0.1, "10": 0.2, "20": 0.3, "30": 0.4}
LESS = dict.fromkeys(HITS, 0.1)
NONE = dict.fromkeys(HITS, None)


@pytest.mark.parametrize(
    ("few", "said"),
    [
        (
            {"fewer_than": 20, "people": 1200, "hits": HITS, "without_adaptation": LESS},
            (
                "1,200 people with fewer than 20 items on their device: Hits@20 0.300 with"
                " adaptation, 0.100 without"
            ),
        ),
        (
            {"fewer_than": 20, "people": 3, "hits": HITS, "without_adaptation": None},
            (
                "3 people with fewer than 20 items on their device: Hits@20 0.300; this recipe does"
                " not adapt"
            ),
        ),
        ({"fewer_than": 20, "people": 0, "hits": NONE, "without_adaptation": None}, ""),
    ],
)
def test_people_with_few_items(few: dict[str, Any], said: str) -> None:
    assert few_items_line(evaluation(few_items=few)) == said


def test_every_figure_that_evaluate_prints_has_its_interval(
    evaluated: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = evaluated
    show_evaluation(Evaluation.model_validate(found, strict=False))
    lines = capsys.readouterr().out.splitlines()
    rows = [found["recipe"], *found["references"]]
    for name in rows:
        hits, beyond = (re.split("[│┃]", line)[2:-1] for line in lines if f"│ {name} " in line)
        assert len(hits) == 4
        assert all(" ± " in cell for cell in hits), hits
        better, coverage, novelty, popular = beyond
        assert name == found["recipe"] or " ± " in better or " to " in better
        assert "±" not in coverage
        assert " ± " in novelty
        # All hits of popularity are popular: that is no estimate. Without hits there is no share.
        assert name == "popularity" or " ± " in popular or popular.strip() == "-"
    [few] = [line for line in lines if "items on their device" in line]
    assert few.count(" ± ") == 2
    assert f"Hits@20 {found['hits']['20']:.3f} ± " in few


def test_print_shows_intervals_too(tmp_path: Path) -> None:
    shown = repr(train("popularity", DATA, out=tmp_path / "run").evaluate()).splitlines()
    assert shown[2].count(" ± ") == 4


def test_an_evaluation_has_them_and_the_report_shows_them(tmp_path: Path) -> None:
    run = train("privrec", DATA, out=tmp_path / "steps", **MODEL, rounds=2)
    evaluated = run.evaluate()
    found = evaluated.as_json()
    few = found["few_items"]
    # In this data no person has 20 items on the device: all people count as having few items.
    assert few["people"] == found["users"]["test"]
    assert few["hits"] == found["hits"]
    assert few["without_adaptation"] != few["hits"]
    page = render_report(evaluated, run.figures, {})
    assert few_items_line(evaluated) in page
    reference = train("ease", DATA, out=tmp_path / "ease").evaluate().as_json()
    assert reference["few_items"]["without_adaptation"] is None
    # Without adaptation the history tower has only popularity here: all people get one list.
    alone = train("dp-privrec-plus", DATA, out=tmp_path / "history", delta=1e-3)
    unadapted = alone.prepared.unadapted
    assert unadapted is not None
    params = alone.prepared.stages()[0].start(None).params
    test = alone.prepared.task.federation.take(alone.prepared.task.split.test)
    lists = [one.tolist() for one in unadapted(params)(test, test)]
    assert all(one == lists[0] for one in lists)
