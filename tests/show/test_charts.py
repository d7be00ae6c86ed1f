import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.algorithms.recipes import RECIPES
from privrec.runs.figures import KINDS
from privrec.show.charts import _PLACES, line_chart, looks_of
from svg import Points, points_of, svg_of, words_of


def chart(series: dict[str, Points], levels: dict[str, float] | None = None) -> ET.Element:
    """The chart as XML; every coordinate must be a number inside the picture."""
    text = line_chart(series, x_label="rounds", y_label="Hits@k", levels=levels)
    root = svg_of(text)
    assert root.attrib["viewBox"] == "0 0 640 300"
    for node in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(node.attrib.get(name, 0)) <= 640
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(node.attrib.get(name, 0)) <= 300
    for x, y in (point for line in points_of(root) for point in line):
        # Inside the frame of the axes.
        assert 58 <= x <= 510
        assert 16 <= y <= 260
    return root


def ticks_of(root: ET.Element) -> dict[float, float]:
    """The numbers on the y axis and their positions."""
    return {
        float(node.text or "nan"): float(node.attrib["y"]) - 4
        for node in root.iter("text")
        if node.attrib.get("text-anchor") == "end"
    }


def test_points_stand_where_the_axis_says() -> None:
    root = chart({"loss": [(1, 0.2), (2, 0.8), (5, 0.5)]})
    ((first, second, third),) = points_of(root)
    ticks = ticks_of(root)
    for value, (_, y) in ((0.2, first), (0.8, second), (0.5, third)):
        assert y == pytest.approx(ticks[value], abs=0.11)
    # Higher values are higher, later rounds are further right, and distances are proportional.
    assert second[1] < third[1] < first[1]
    assert (third[0] - second[0]) == pytest.approx(3 * (second[0] - first[0]), abs=0.3)
    assert 4 <= len(ticks) <= 10
    assert {"rounds", "Hits@k", "loss"} <= set(words_of(root))


def test_one_point_is_no_chart() -> None:
    for points in ([(1, 0.5)], [(1, 0.5), (1, 0.7)], [(1, 0.5), (2, math.nan)]):
        assert line_chart({"loss": points, "b": [(2, 1)]}, x_label="x", y_label="y") == ""
    # A curve of one point beside a whole one is a dot.
    root = chart({"loss": [(1, 0.5), (2, 0.4)], "one": [(2, 0.1)]})
    assert [len(line) for line in points_of(root)] == [2, 1]
    assert [dot.attrib["data-y"] for dot in dots_of(root)] == ["0.5", "0.4", "0.1"]


def test_every_dot_tells_its_value_with_and_without_a_script() -> None:
    text = line_chart(
        {"ours": [(1, 0.25), (2, 0.5)]},
        x_label="rounds",
        y_label="Hits@20",
        bars={"ours": {2.0: (0.4, 0.6)}, "nobody": {2.0: (0.1, 0.9)}},
    )
    first, second = dots_of(svg_of(text))
    assert first.attrib["data-tip"] == "ours — rounds 1: 0.25"
    assert second.attrib["data-tip"] == "ours — rounds 2: 0.5 (0.4 to 0.6)"
    for dot in (first, second):
        assert [title.text for title in dot.iter("title")] == [dot.attrib["data-tip"]]


def test_error_bars_go_from_the_low_end_to_the_high_end() -> None:
    points: dict[str, Points] = {"ours": [(1, 0.25), (2, 0.5), (3, 0.5)]}
    bars = {"ours": {1.0: (0.1, 0.3), 2.0: (0.4, 0.9), 3.0: (math.nan, 0.6), 7.0: (0.0, 5.0)}}
    root = svg_of(line_chart(points, x_label="x", y_label="y", bars=bars))
    ticks = ticks_of(root)
    # The axis spans the bars. An end that is no number and a bar without a point are left out.
    assert (min(ticks), max(ticks)) == (0.1, 0.9)
    drawn = [node.attrib["d"] for node in root.iter("path") if "bar" in classes_of(node)]
    found = [re.findall(r"^M([\d.]+) ([\d.]+)V([\d.]+)", path)[0] for path in drawn]
    ((line),) = points_of(root)
    for (x, low, high), (at, _), ends in zip(
        found, line[:2], [(0.1, 0.3), (0.4, 0.9)], strict=True
    ):
        assert float(x) == at
        assert float(low) == pytest.approx(ticks[ends[0]], abs=0.11)
        assert float(high) == pytest.approx(ticks[ends[1]], abs=0.11)


def test_values_that_hold_until_the_next_point_are_steps() -> None:
    """A slope between two releases would say that half a release costs half."""
    points: Points = [(0, 0.0), (1, 1.0), (2, 4.0)]
    (line,) = points_of(
        svg_of(line_chart({"ε": points}, x_label="releases", y_label="ε", steps=True))
    )
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in itertools.pairwise(line))
    assert len(line) == 5
    assert len({x for x, _ in line}) == len({y for _, y in line}) == 3


def test_a_recipe_has_one_colour_on_all_pages() -> None:
    everything = looks_of(list(RECIPES))
    # Colour and shape together tell all recipes apart.
    assert len({(look, shape) for look, shape, _ in everything}) == len(RECIPES)
    for name, (look, _, _) in zip(RECIPES, everything, strict=True):
        for others in ([], ["mine"], ["popularity", "ease"], list(reversed(RECIPES))):
            assert looks_of([*others, name])[-1][0] == look
            assert looks_of([name, *others])[0][0] == look
    hits = [f"Hits@{k}" for k in (5, 10, 20, 30)]
    colours = [look for look, _, _ in looks_of(hits)]
    assert colours == [look for look, _, _ in looks_of(hits[::-1])][::-1]
    assert len(set(colours)) == 4
    # A name of one's own takes a colour that is left.
    for others in (["privrec-plus"], ["popularity", "ease"]):
        mine, *looks = looks_of(["mine", *others])
        assert mine[0] not in {look for look, _, _ in looks}


def test_curves_of_one_colour_are_told_apart() -> None:
    kinds = {"one": "privrec-plus", "two": "privrec-plus", "three": "privrec"}
    series: dict[str, Points] = {name: [(1, n), (2, n)] for n, name in enumerate(kinds)}
    root = svg_of(line_chart(series, x_label="x", y_label="y", kinds=kinds))
    lines = list(root.iter("polyline"))
    assert len({line.attrib["class"] for line in lines}) == 1
    assert len({line.attrib.get("stroke-dasharray") for line in lines}) == 3
    assert len({dot.attrib["d"] for dot in dots_of(root)}) == 3


def test_attacks_have_their_places() -> None:
    assert set(KINDS.values()) <= _PLACES.keys()
    assert len({look for look, _, _ in looks_of(list(KINDS.values()))}) == len(KINDS)


def test_a_band_is_the_interval_of_its_level() -> None:
    text = line_chart(
        {"a": [(1, 0.1), (2, 0.2)]},
        x_label="x",
        y_label="y",
        levels={"ease": 0.5},
        bars={"ease": {1.0: (0.4, 0.6)}, "nobody": {1.0: (0.0, 9.0)}},
    )
    root = svg_of(text)
    ticks = ticks_of(root)
    (band,) = root.iter("rect")
    top = float(band.attrib["y"])
    assert top == pytest.approx(ticks[0.6], abs=0.11)
    assert top + float(band.attrib["height"]) == pytest.approx(ticks[0.4], abs=0.11)
    assert max(ticks) < 1
    assert "ease: 0.5 (0.4 to 0.6)" in text


def test_a_long_curve_has_few_intervals() -> None:
    points: Points = [(n, 0.3 + 0.001 * (n % 7)) for n in range(400)]
    ends = {float(n): (0.2, 0.4) for n in range(400)}
    text = line_chart({"a": points}, x_label="x", y_label="y", bars={"a": ends})
    assert 4 <= text.count('class="bar') <= 12


def test_one_point_beside_a_level_is_a_chart() -> None:
    text = line_chart({"a": [(8, 0.3)]}, x_label="x", y_label="y", levels={"ease": 0.5}, logs="x")
    assert [dot.attrib["data-x"] for dot in dots_of(svg_of(text))] == ["8"]


@pytest.mark.parametrize("logs", ["x", "y", "xy"])
def test_equal_factors_are_equally_far_apart_on_a_logarithmic_axis(logs: str) -> None:
    points: Points = [(1, 1), (10, 10), (100, 100), (0, 5), (5, -1)]
    kept = [(x, y) for x, y in points if (x > 0 or "x" not in logs) and (y > 0 or "y" not in logs)]
    text = line_chart({"a": points}, x_label="x", y_label="y", logs=logs)
    (line,) = points_of(svg_of(text))
    assert len(line) == len(kept)
    one, ten, hundred = line[:3]
    for axis, name in enumerate("xy"):
        ratio = (hundred[axis] - ten[axis]) / (ten[axis] - one[axis])
        assert ratio == pytest.approx(1 if name in logs else 10, rel=0.02)


def test_a_long_curve_can_be_hovered_everywhere_but_has_no_visible_dots() -> None:
    root = chart({"loss": [(n, math.sin(n / 50)) for n in range(1000)]})
    dots = dots_of(root)
    assert 30 <= len(dots) <= 45
    assert all("quiet" in classes_of(dot) for dot in dots)
    at = [int(dot.attrib["data-x"]) for dot in dots]
    assert (at[0], at[-1]) == (0, 999)
    assert max(b - a for a, b in itertools.pairwise(at)) < 120


def test_rounds_are_whole_numbers() -> None:
    root = chart({"loss": [(1, 0.2), (3, 0.8)]})
    below = [n.text for n in root.iter("text") if n.attrib.get("y") == "276"]
    assert below == ["0", "1", "2", "3"]


def test_rounds_start_at_zero_so_that_charts_can_be_compared() -> None:
    """Losses are known from round 1, validation from round 25: both axes are the same."""
    (seldom,) = points_of(chart({"hits": [(25, 0.2), (100, 0.8)]}))
    (often,) = points_of(chart({"loss": [(1, 0.2), (25, 0.4), (100, 0.8)]}))
    assert [x for x, _ in seldom] == [x for x, _ in often[1:]] == [58 + 452 / 4, 510]
    # What is no count starts where it starts.
    (share,) = points_of(chart({"noise": [(0.5, 0.2), (1.5, 0.8)]}))
    assert share[0][0] == 58


def test_long_and_many_names_are_in_a_list_below() -> None:
    long = "n" * 300
    text = line_chart({long: [(1, 1), (2, 2)]}, x_label="x", y_label="y")
    assert max(map(len, words_of(svg_of(text)))) <= 19
    assert 'class="key all"' in text
    assert f"<span>{long}</span>" in text
    many: dict[str, Points] = {f"run {n}": [(1, n), (2, n)] for n in range(40)}
    text = line_chart(many, x_label="x", y_label="y")
    assert "run 7" not in words_of(svg_of(text))
    assert all(f"<span>{name}</span>" in text for name in many)
    short = line_chart({"a": [(1, 1), (2, 2)]}, x_label="x", y_label="y")
    assert 'class="key"' in short


def dots_of(root: ET.Element) -> list[ET.Element]:
    return [node for node in root.iter("path") if "dot" in classes_of(node)]


def classes_of(node: ET.Element) -> list[str]:
    return node.attrib.get("class", "").split()


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0, -2.0, 5.0, 1e-12, 1e12, 123.456])
def test_a_constant_series_is_a_flat_line(level: float) -> None:
    root = chart({"hits": [(1, level), (2, level), (3, level)]})
    ((one, two, three),) = points_of(root)
    assert one[1] == two[1] == three[1]
    # The axis has a range, and no number on it is repeated.
    written = [w.text for w in root.iter("text") if w.attrib.get("text-anchor") == "end"]
    assert len(set(written)) == len(written) >= 2


def test_no_points_are_no_chart() -> None:
    assert line_chart({}, x_label="x", y_label="y") == ""
    assert line_chart({"a": [], "b": []}, x_label="x", y_label="y") == ""
    assert line_chart({"a": []}, x_label="x", y_label="y", levels={"base": 0.5}) == ""


def test_an_empty_series_beside_another_is_left_out() -> None:
    root = chart({"nothing": [], "loss": [(1, 0.5), (2, 0.25)]})
    assert len(points_of(root)) == 1
    assert "nothing" not in words_of(root)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverged_still_has_a_chart(bad: float) -> None:
    root = chart({"loss": [(1, 0.7), (2, bad), (3, 0.9)], "all": [(1, bad)]}, {"base": bad})
    assert [len(line) for line in points_of(root)] == [2]
    assert line_chart({"loss": [(1, bad)]}, x_label="x", y_label="y") == ""


def test_levels_are_dashed_and_inside() -> None:
    root = chart({"ours": [(1, 0.5), (2, 0.6)]}, {"popularity": 0.1, "ease": 0.9})
    dashed = [node for node in root.iter("line") if "stroke-dasharray" in node.attrib]
    assert len({node.attrib["stroke-dasharray"] for node in dashed}) == 2
    assert [node.findtext("title") for node in dashed] == ["popularity: 0.1", "ease: 0.9"]
    low, high = (float(node.attrib["y1"]) for node in dashed)
    ticks = ticks_of(root)
    assert low == pytest.approx(ticks[0.1], abs=0.11)
    assert high == pytest.approx(ticks[0.9], abs=0.11)
    assert {"popularity", "ease", "ours"} <= set(words_of(root))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=5),
        st.lists(st.tuples(st.integers(0, 5000), st.floats(-1e30, 1e30)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_any_numbers_make_a_chart(series: dict[str, Points]) -> None:
    if any(len({x for x, _ in points}) > 1 for points in series.values()):
        root = chart(series)
        assert [len(line) for line in points_of(root)] == [len(p) for p in series.values() if p]


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.0), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_labels_do_not_cover_each_other(start: float, end: float) -> None:
    # Four curves that end on the lower edge, in the middle, on the upper edge: all names fit.
    root = chart({name: [(1, start), (2, end)] for name in "abcd"})
    places = sorted(
        float(node.attrib["y"]) for node in root.iter("text") if node.text in list("abcd")
    )
    assert len(places) == 4
    assert min(b - a for a, b in itertools.pairwise(places)) >= 12


def test_chart_names_are_escaped() -> None:
    name = "<b>&\"'"
    text = line_chart({name: [(1, 1.0), (2, 1.0)]}, x_label=name, y_label=name)
    assert "<b>" not in text
    assert words_of(svg_of(text)).count(name) == 3
