import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from pages import Page, charts_in, check_page
from privrec.algorithms.recipes import RECIPES
from privrec.privacy.paper import PRINTED_HITS
from privrec.privacy.release import Release, Sampling
from privrec.privacy.statement import TITLES, Strength
from privrec.runs.compare import Comparison, Row, side_by_side
from privrec.runs.documents import Evaluation, RoundFigures
from privrec.runs.ledger import LedgerLine
from privrec.show.comparison import render_comparison
from privrec.show.report import Beside, looks_in, render_report, table_rows
from privrec.show.status import run_charts
from svg import points_of, words_of

KS = ("5", "10", "20", "30")


def compared(
    runs: dict[str, Evaluation], settings: dict[str, dict[str, Any]] | None = None
) -> Comparison:
    """Return runs side by side."""
    known = settings or {}
    return side_by_side(
        [Row(name=name, evaluation=one, settings=known.get(name, {})) for name, one in runs.items()]
    )


def figures(start: float) -> dict[str, float]:
    return {k: start + 0.0101 * n for n, k in enumerate(KS)}


def values(**changes: Any) -> dict[str, Any]:
    hits = figures(0.1)
    return {
        "recipe": "privrec",
        "data": "movielens-1m",
        "seed": 3,
        "users": {"train": 4348, "validation": 483, "test": 1207, "skipped": 11},
        "hits": hits,
        "ndcg": figures(0.05),
        "list_ndcg": figures(0.06),
        "new_only": {"hits": hits},
        "references": {
            "popularity": {"hits": figures(0.2), "new_only": {"hits": figures(0.2)}},
            "ease": {"hits": figures(0.3), "new_only": {"hits": figures(0.7)}},
        },
        "privacy": {"statement": RECIPES["privrec"].statement},
        **changes,
    }


def evaluation(**changes: Any) -> Evaluation:
    return Evaluation.model_validate(values(**changes), strict=False)


def played(n: int, loss: float | None, **more: Any) -> RoundFigures:
    """What the n-th round did."""
    return RoundFigures(round=n, stage="train", seconds=0.1, loss=loss, **more)


ROUNDS = [
    played(0, 0.7),
    played(1, 0.6, validation=figures(0.01)),
    played(2, 0.5, validation=figures(0.02)),
]
SETTINGS = {"cohort": 50, "hidden": [64, 64], "data": "movielens-1m"}


def rows_of(cells: list[str]) -> dict[str, list[str]]:
    """Each name in the tables with the four cells after it."""
    return {
        cell: cells[n + 1 : n + 5]
        for n, cell in enumerate(cells)
        if not re.fullmatch(r"[@\d.]+|nan", cell)
    }


def test_a_report_has_every_number_of_the_table() -> None:
    page = Page(render_report(evaluation(), ROUNDS, SETTINGS))
    rows = rows_of(page.cells)
    expected = {
        "privrec": figures(0.1),
        "popularity": figures(0.2),
        "ease": figures(0.3),
        **{f"{name} (paper)": hits for name, hits in PRINTED_HITS["movielens-1m"].items()},
    }
    for name, hits in expected.items():
        assert rows[name] == [f"{hits[k]:.3f}" for k in KS]
    assert [cell for cell in page.cells if cell.startswith("@")] == ["@5", "@10", "@20", "@30"]
    for words in ("4,348 people", "1,207 others", "11 skipped", "privrec on movielens-1m, seed 3"):
        assert words in page.words
    for cell in ("cohort", "50", "hidden", "[64, 64]"):
        assert cell in page.cells


def test_a_report_states_the_privacy_in_full() -> None:
    page = Page(render_report(evaluation(), ROUNDS, SETTINGS))
    assert RECIPES["privrec"].statement in page.words
    for text in (page.words, Page(render_comparison(compared({"one": evaluation()}))).words):
        assert "computed from raw data" in text
        assert "not for release" in text


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"epsilon": 3.9841, "epsilon_of_mechanism": 3.9841}, "user-level ε = 3.99"),
        (
            {"epsilon": 0.5, "epsilon_of_mechanism": 0.5, "delta": 0.5},
            "user-level ε = 0.500, δ = 0.5",
        ),
        (
            {"epsilon": None, "epsilon_of_mechanism": None, "local_noise": True},
            "local noise: none for a person",
        ),
        (
            {"epsilon": None, "epsilon_of_mechanism": 3.9841},
            "seeded; ε of the mechanism = 3.99",
        ),
        ({"epsilon": None, "stage_two_epsilon": 3.9841}, "none; stage two alone 3.99"),
        ({"epsilon": None, "epsilon_of_mechanism": None}, "none"),
    ],
)
def test_a_row_never_says_more_than_its_run_promises(privacy: dict[str, Any], said: str) -> None:
    """And ε is rounded up."""
    made = evaluation(privacy={"statement": "words", **privacy})
    (mine, *_) = compared({"mine": made}).tables["movielens-1m"]
    assert (mine.name, mine.privacy) == ("mine", said)
    # The box has the colour of its strength, and the word: a colour alone says nothing to some.
    words: dict[float | None, Strength] = {3.9841: "moderate", 0.5: "strong", None: "none"}
    strength = words[privacy["epsilon"]]
    page = render_report(made, [], {})
    assert re.findall('class="(privacy [^"]*)"><b>(.*?)</b>', page) == [
        (f"privacy {strength}", f"{TITLES[strength]}.")
    ]


@pytest.mark.parametrize("rounds", [ROUNDS, []])
def test_a_page_needs_no_network_and_runs_no_script_of_others(rounds: list[RoundFigures]) -> None:
    for text in (
        render_report(evaluation(), rounds, SETTINGS),
        render_comparison(compared({"one": evaluation(), "two": evaluation(seed=4)})),
    ):
        check_page(text)


def test_names_are_escaped_everywhere() -> None:
    evil = "<script>alert(1)</script>&\"'"
    made = evaluation(
        recipe=evil,
        data=evil,
        references={evil + "2": {"hits": figures(0.2), "new_only": {"hits": figures(0.9)}}},
        new_only={"hits": figures(0.4)},
        privacy={"statement": evil},
    )
    for text in (
        render_report(made, ROUNDS, {evil: evil}),
        render_comparison(compared({evil: made})),
    ):
        check_page(text)
        assert evil in Page(text).words


def test_the_curves_are_those_of_the_rounds() -> None:
    page = render_report(evaluation(), ROUNDS, SETTINGS)
    assert len(charts_in(page)) == 2
    quality, loss = charts_in(page)
    assert [len(line) for line in points_of(ET.fromstring(loss))] == [3]  # noqa: S314
    assert [len(line) for line in points_of(ET.fromstring(quality))] == [2] * 4  # noqa: S314
    assert {f"Hits@{k}" for k in KS} <= set(words_of(ET.fromstring(quality)))  # noqa: S314
    ends = [line[-1][1] for line in points_of(ET.fromstring(quality))]  # noqa: S314
    # Hits@30 comes first and stands highest.
    assert ends == sorted(ends)
    assert len(set(ends)) == 4
    # Un-noised figures of the devices are labelled as not visible to a server.
    assert "Simulation only" in page
    assert "<svg" not in render_report(evaluation(), [], SETTINGS)


def axis_of(chart: str) -> tuple[float, float]:
    """The first and the last number beside the y axis."""
    ticks = [
        float(node.text or "nan")
        for node in ET.fromstring(chart).iter("text")  # noqa: S314
        if node.attrib.get("text-anchor") == "end"
    ]
    return min(ticks), max(ticks)


def test_the_axis_of_validation_does_not_exaggerate() -> None:
    """Between 0.344 and 0.356 there is nothing to see where an interval is 0.046 long."""
    hits = [0.345, 0.353, 0.355, 0.348]
    older = [played(50 * n, None, validation=dict.fromkeys(KS, hit)) for n, hit in enumerate(hits)]
    ends = [{k: [hit - 0.023, hit + 0.023] for k in KS} for hit in hits]
    rounds = [
        line.model_copy(update={"validation_interval": both})
        for line, both in zip(older, ends, strict=True)
    ]
    points, around = looks_in(rounds, 20)
    # A look is after so many rounds; the first round is round 0.
    assert [at for at, _ in points] == list(around) == [1.0, 51.0, 101.0, 151.0]
    for lines, bars in ((rounds, 4), (older, 0)):
        report = render_report(evaluation(), lines, SETTINGS)
        beside = render_comparison(compared({"one": evaluation()}), rounds={"one": lines})
        watched = run_charts(lines)
        for text, curves in ((report, 4), (beside, 1), (watched, 4)):
            (chart,) = charts_in(text)
            low, high = axis_of(chart)
            assert low == 0
            assert high >= (0.378 if bars else 0.355)
            assert chart.count('class="bar') == bars * curves
            assert ("95 % intervals" in text.partition("</figure>")[2]) == bool(bars)
    assert "(0.322 to 0.368)" in charts_in(render_report(evaluation(), rounds, SETTINGS))[0]


def test_a_recipe_has_the_same_colour_in_a_report_and_in_a_comparison() -> None:
    curves = [played(n, 1.0, validation=figures(0.1)) for n in range(2)]
    runs = {name: evaluation(recipe=name) for name in ("popularity", "privrec-plus", "ease")}
    text = render_comparison(compared(runs), rounds=dict.fromkeys(runs, curves))
    groups = [
        {
            "from": n,
            "to": n,
            "people": 9,
            "hits": figures(0.1),
            "references": {"popularity": figures(0.1), "ease": figures(0.2)},
        }
        for n in range(2)
    ]
    report = render_report(evaluation(recipe="privrec-plus", by_items=groups), [], {})

    def colours(chart: str) -> dict[str, str]:
        found = re.findall(r'class="dot (s\d)"[^>]*data-tip="([\w-]+) —', chart)
        return {name: colour for colour, name in found}

    seen = colours(charts_in(text)[0])
    assert seen == colours(charts_in(report)[0])
    assert len(set(seen.values())) == 3


def test_a_report_of_a_run_that_diverged_is_written_all_the_same() -> None:
    nothing = dict.fromkeys(KS, math.nan)
    rounds = [played(0, 0.7), played(1, 0.8), played(2, math.nan, validation=nothing)]
    page = render_report(evaluation(), rounds, SETTINGS)
    assert len(charts_in(page)) == 1


def test_long_runs_are_thinned_but_keep_their_span() -> None:
    rounds = [played(n, 1 / (n + 1)) for n in range(5000)]
    (svg,) = charts_in(render_report(evaluation(), rounds, SETTINGS))
    (line,) = points_of(ET.fromstring(svg))  # noqa: S314
    assert 200 < len(line) <= 402
    assert line[0][0] == pytest.approx(58, abs=0.2)
    assert line[-1][0] > 500


def test_settings_that_a_recipe_lacks_do_not_hide_those_that_differ() -> None:
    runs = {name: evaluation(seed=n) for n, name in enumerate(("one", "two", "bare"))}
    common = {"seed": 0, "cohort": 200, "hidden": 64}
    settings: dict[str, dict[str, Any]] = {
        "one": {**common, "rounds": 3, "epsilon": 8.0},
        "two": {**common, "rounds": 5},
        "bare": {"seed": 0},
    }
    text = render_comparison(compared(runs, settings))
    shown = text.partition("Settings that differ</h3>")[2].partition("<p")[0]
    rows = ["rounds", "3", "5", "-", "epsilon", "8.0", "-", "-"]
    assert Page(f"<main>{shown}</main>").cells == ["", *runs, *rows]
    same = render_comparison(compared({"one": runs["one"]}, {"one": settings["one"]}))
    assert "Settings that" not in same


def test_how_many_trained_is_what_was_released() -> None:
    """A reference also fits the people who are kept for validation."""
    everybody = Sampling(law="fixed", users=4831, cohort=4831)
    release = LedgerLine(
        **Release(mechanism="none", sampling=everybody).as_json(),
        round=0,
        stage="train",
        people="everybody",
        population="of a test",
        noise="none",
        clip_norm=None,
        noise_scale=None,
    )
    assert "Trained by 4,348 people" in render_report(evaluation(), [], {})
    page = render_report(evaluation(), [], {}, Beside(ledger=[release]))
    assert "Trained by 4,831 people" in page


def test_a_reference_is_not_compared_with_itself() -> None:
    by = {k: {"by": 0.1, "low": 0.05, "high": 0.15} for k in KS}
    made = evaluation(recipe="popularity", differences={"popularity": by, "ease": by})
    cells = Page(render_report(made, [], {})).cells_after("How sure is that?")
    assert [cell for cell in cells if cell in ("popularity", "ease")] == ["ease"]


def test_new_only_is_shown_where_it_is_another_question() -> None:
    title = "Only items that are new to the person"
    assert title not in render_report(evaluation(), [], {})
    page = render_report(evaluation(new_only={"hits": figures(0.6)}), [], {})
    rows = rows_of(Page(page).cells_after(title))
    assert rows["privrec"] == [f"{value:.3f}" for value in figures(0.6).values()]
    assert rows["ease"] == [f"{value:.3f}" for value in figures(0.7).values()]


@pytest.mark.parametrize("new", [figures(0.2), figures(0.6)])
def test_a_reference_as_a_run_is_not_shown_twice(new: dict[str, float]) -> None:
    made = evaluation(recipe="popularity", hits=figures(0.2), new_only={"hits": new})
    assert [name for name, _, kind in table_rows(made) if kind != "paper"] == ["popularity", "ease"]
    cells = Page(render_report(made, [], {})).cells
    assert cells.count("popularity") == (1 if new == figures(0.2) else 2)


def test_runs_side_by_side_are_grouped_by_data_set() -> None:
    runs = {
        "runs/a": evaluation(),
        "runs/b": evaluation(
            data="frappe", seed=1, hits=figures(0.5), new_only={"hits": figures(0.5)}
        ),
        "runs/c": evaluation(hits=figures(0.15), new_only={"hits": figures(0.15)}),
    }
    tables = compared(runs).tables
    assert list(tables) == ["movielens-1m", "frappe"]
    shown = {data: [line.name for line in lines] for data, lines in tables.items()}
    # References once for each seed, not once for each run; then the paper's own systems.
    assert shown["movielens-1m"] == [
        "runs/a",
        "runs/c",
        "popularity (seed 3)",
        "ease (seed 3)",
        *(f"{name} (paper)" for name in PRINTED_HITS["movielens-1m"]),
    ]
    assert shown["frappe"][:2] == ["runs/b", "popularity (seed 1)"]
    page = Page(render_comparison(compared(runs)))
    rows = rows_of(page.cells)
    assert rows["runs/b"] == [f"{value:.3f}" for value in figures(0.5).values()]
    assert rows["runs/c"] == [f"{value:.3f}" for value in figures(0.15).values()]
    assert page.words.count(RECIPES["privrec"].statement) == 3


def test_a_reference_that_was_trained_is_not_shown_twice_beside_others() -> None:
    runs = {"a": evaluation(), "b": evaluation(recipe="popularity")}
    names = [line.name for line in compared(runs).tables["movielens-1m"]]
    assert names[:3] == ["a", "b", "ease (seed 3)"]


def test_references_of_other_people_under_the_same_seed_have_lines_of_their_own() -> None:
    """The last run must not overwrite what others found."""
    other = evaluation(
        references={
            name: {**one, "hits": figures(0.7), "new_only": {"hits": figures(0.6)}}
            for name, one in values()["references"].items()
        }
    )
    lines = compared({"a": evaluation(), "b": evaluation(), "c": other}).tables["movielens-1m"]
    found = {line.name: line.hits for line in lines if line.name.startswith("ease")}
    mine, theirs = (
        list(by_k.values()) for by_k in (found["ease (beside a)"], found["ease (beside c)"])
    )
    assert len(found) == 2
    assert mine == pytest.approx(list(figures(0.3).values()))
    assert theirs == pytest.approx(list(figures(0.7).values()))


def test_another_halving_is_another_table() -> None:
    runs = {"a": evaluation(), "b": evaluation()}
    tables = compared(runs, {"a": {"halving": "random"}, "b": {"halving": "time"}}).tables
    assert list(tables) == ["movielens-1m", "movielens-1m, halved by time"]
    page = Page(render_comparison(compared(runs, {"b": {"halving": "time"}})))
    assert "movielens-1m, halved by time" in page.words


def test_a_mean_promises_no_more_than_its_weakest_run() -> None:
    def words(*epsilons: float | None) -> str:
        runs = {
            str(seed): evaluation(seed=seed, privacy={"statement": "", "epsilon": epsilon})
            for seed, epsilon in enumerate(epsilons)
        }
        settings = {str(seed): {"seed": seed} for seed in range(len(epsilons))}
        return compared(runs, settings).tables["movielens-1m"][0].privacy

    assert words(1.0, 9.0, 2.0) == "user-level ε = 9.00"
    assert words(1.0, None) == "none"


def test_runs_that_differ_in_their_seed_alone_are_one_line() -> None:
    same = {"rounds": 5, "cohort": 7}
    settings: dict[str, dict[str, Any]] = {
        "one": {**same, "seed": 0},
        "two": {**same, "seed": 1},
        "again": {**same, "seed": 1},
        "other": {**same, "seed": 2, "rounds": 6},
    }
    runs = {
        name: evaluation(
            seed=made["seed"],
            hits=figures(0.1 * (1 + made["seed"])),
            cost={"seconds": 3.0 + made["seed"], "bytes_sent": 1000},
        )
        for name, made in settings.items()
    }
    lines = {line.name: line for line in compared(runs, settings).tables["movielens-1m"]}
    # The same seed twice is not a mean over two seeds; other settings are another line.
    assert [line.name for line in lines.values() if line.kind == "ours"] == [
        "privrec (2 seeds)",
        "again",
        "other",
    ]
    mean = lines["privrec (2 seeds)"]
    assert mean.hits[20] == pytest.approx((figures(0.1)["20"] + figures(0.2)["20"]) / 2)
    assert mean.cells()[5:] == ("", "4", "1,000", "none")
    assert "popularity (3 seeds)" in lines


def test_the_printed_figures_are_the_papers() -> None:
    # Spec section 6; the model's own rows of the paper's two tables.
    assert list(PRINTED_HITS["movielens-1m"]["PrivRec"].values()) == [0.131, 0.168, 0.217, 0.269]
    assert list(PRINTED_HITS["frappe"]["PrivRec"].values()) == [0.549, 0.635, 0.679, 0.697]
    assert all(list(hits) == list(KS) for rows in PRINTED_HITS.values() for hits in rows.values())
    assert "paper" not in [kind for _, _, kind in table_rows(evaluation(data="synthetic"))]


def test_the_page_of_several_runs_has_their_warnings() -> None:
    warned = [
        "On all items this run is worse than <b>.",
        "More people who train, or a larger epsilon, usually help: …",
    ]
    runs = {"one": evaluation(), "two": evaluation(seed=4, warnings=warned)}
    page = Page(render_comparison(compared(runs)))
    assert "two: On all items this run is worse than <b>." in page.words
    assert "More people" not in page.words
    assert "one: " not in page.words.split("Privacy")[0]
