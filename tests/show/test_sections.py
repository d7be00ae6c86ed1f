"""Parts of a report that only newer evaluations have."""

import re
import xml.etree.ElementTree as ET
from typing import Any

from test_report import ROUNDS, SETTINGS, evaluation, figures, played, values

from pages import Page, charts_in, check_page
from privrec.runs.documents import Evaluation, Example, Listed, Privacy
from privrec.show.report import Beside, render_begun, render_report
from svg import points_of

EVIL = "<script>alert(1)</script>\u202e" + "x" * 300


def ends(start: float) -> dict[str, list[float]]:
    return {k: [value - 0.01, value + 0.01] for k, value in figures(start).items()}


def group(low: int, high: int | None, start: float) -> dict[str, Any]:
    return {
        "from": low,
        "to": high,
        "people": 1200 + low,
        "hits": figures(start),
        "interval": ends(start),
        "references": {"popularity": figures(start / 2), "privrec": figures(start)},
    }


def whole(**changes: Any) -> Evaluation:
    made = values()
    better = {"by": 0.0101, "low": 0.007, "high": 0.013}
    unclear = {"by": 0.001, "low": -0.004, "high": 0.006}
    beyond = {"coverage": {"20": 0.456}, "novelty": {"20": 3.21}, "popular_hits": {"20": 0.789}}
    other = {**beyond, "coverage": {"20": 0.012}}
    references = {
        name: {**one, "interval": ends(0.2), "beyond": other}
        for name, one in made["references"].items()
    }
    worse = {"by": -0.03, "low": -0.04, "high": -0.02}
    added = {
        "interval": ends(0.1),
        "references": references,
        "differences": {
            "popularity": dict.fromkeys(figures(0), better),
            "ease": {**dict.fromkeys(figures(0), unclear), "20": worse},
        },
        "beyond": beyond,
        "by_items": [group(1, 4, 0.1), group(5, 5, 0.2), group(6, None, 0.3)],
        "warnings": ["Only 12 people were tested.", EVIL],
    }
    return evaluation(**added | changes)


def report(made: Evaluation, **beside: Any) -> str:
    return render_report(made, [], {}, Beside(**beside))


EXAMPLE = Example(
    liked=[EVIL, "Toy Story"],
    more=1234,
    held_out=3,
    list=[Listed(title="שלום", hit=True), Listed(title=EVIL, hit=False)],
)


def test_all_parts_are_there() -> None:
    beside = Beside(summary="a tower", examples=[EXAMPLE], links=[("privacy", "privacy.html")])
    found = check_page(render_report(whole(), ROUNDS, SETTINGS, beside))
    for cell in (
        "better by 0.010 ± 0.003",
        "no clear difference: 0.001 ± 0.005",
        "worse by 0.030 ± 0.010",
        "0.110 (0.100–0.120)",
        "0.456",
        "0.012",
        "3.210",
        "0.789",
        "1–4",
        "5",
        "6+",
        "1,201",
    ):
        assert cell in found.cells, cell
    for words in (
        "A tower.",
        "12.0 % are among the first 20",
        "popular items reach 22.0 %: better by 0.010 ± 0.003",
        "Only 12 people were tested.",
        "and 1,234 more",
        "1 of 3 hidden likes found",
    ):
        assert words in found.words, words
    assert "privacy.html" in found.values("href")


def test_an_older_file_lacks_them_and_is_shown_all_the_same() -> None:
    text = render_report(evaluation(), ROUNDS, SETTINGS)
    for words in ("How sure", "Beyond hits", "own data helps", 'class="cards"', "<nav"):
        assert words not in text
    assert "None" not in Page(text).words


def test_quality_by_items_has_bars_and_the_references() -> None:
    (chart,) = charts_in(report(whole()))
    root = ET.fromstring(chart)  # noqa: S314 - our own text
    assert [len(line) for line in points_of(root)] == [3, 3]
    assert chart.count('class="bar ') == 3
    assert 'data-tip="privrec — items on the device 1–4: 0.1202 (0.1102 to 0.1302)"' in chart
    # One group is a table and no chart; a group without tested people is left out.
    alone = report(whole(by_items=[group(1, 4, 0.1)]))
    assert not charts_in(alone)
    assert "1–4" in alone
    nobody = {**group(5, 9, 0.2), "hits": dict.fromkeys(figures(0), None)}
    assert "5–9" not in report(whole(by_items=[group(1, 4, 0.1), nobody]))


def test_examples_mark_the_hits_and_isolate_titles() -> None:
    text = report(evaluation(), examples=[EXAMPLE])
    check_page(text)
    assert re.findall('<li class="hit"><bdi>(.*?)</bdi>&nbsp;✓</li>', text) == ["שלום"]
    assert text.count("✓</li>") == 1
    assert "\u202e" not in text
    assert "✓" not in report(evaluation())


def test_a_run_without_an_evaluation_has_a_page() -> None:
    rounds = [played(n, 1 / (n + 1)) for n in range(5)]
    text = render_begun(
        EVIL,
        Privacy(statement="No guarantee."),
        rounds,
        {"key": EVIL},
        next_step=f"privrec evaluate '{EVIL}'",
        beside=Beside(),
    )
    found = check_page(text)
    assert "privrec evaluate '<script>" in found.words
    assert "No guarantee." in found.words
    assert len(charts_in(text)) == 1


def test_one_look_at_the_validation_people_is_a_sentence() -> None:
    rounds = [played(4, None, validation=figures(0.5))]
    text = render_report(evaluation(), rounds, SETTINGS)
    assert charts_in(text) == []
    assert "After round 5: Hits @5 0.500" in text
