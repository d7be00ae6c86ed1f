"""The page of attacks and audits, and what reports and comparisons say of them."""

import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commands import Refused, done
from pages import Page, charts_in, check_page
from privrec.runs.documents import Attack, Attacked, Audit, summary
from privrec.runs.figures import at_least
from privrec.runs.loop import train
from privrec.show.attacks import render_attacks
from privrec.show.charts import log_chart
from privrec.show.write import refresh_report, write_report
from svg import Points, points_of, svg_of, words_of
from tiny import DATA


def figures(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def roc(area: float, **more: Any) -> dict[str, Any]:
    return {
        "members": 100,
        "others": 1000,
        "auc": figures(area),
        "accuracy": 0.512,
        "rates": {"0.01": figures(0.021), "0.001": figures(0.003)},
        "curve": [[0.0, 0.0], [0.01, 0.02], [0.5, 0.6], [1.0, 1.0]],
        **more,
    }


SERVER = {
    "phase": "popularity",
    "people": 200,
    "items": {"precision": 0.901, "recall": 0.802},
    "likes": {"precision": 0.703, "recall": None},
    "guessing": {"precision": 0.104},
}


def attack(name: str = "dp-privrec", **attacks: Any) -> Attack:
    document = {
        "recipe": name,
        "data": "synthetic",
        "epsilon": 8.0,
        "delta": 1e-6,
        "repetitions": 5,
        "seed": 3,
        "attacks": attacks,
    }
    return Attack.model_validate(document, strict=False)


def test_rates_below_one_of_the_others_are_not_shown() -> None:
    curve = [[0.0, 0.3], [0.002, 0.35], [1 / 75, 0.4], [0.5, 0.6], [1.0, 1.0]]
    few, more = roc(0.7, others=75, curve=curve), roc(0.7, others=1000, curve=curve)
    sure = roc(1.0, others=75, curve=[[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    told = Page(render_attacks(attack(loss=few))).words
    assert told.count("too few people") == 2
    assert "0.021 [" not in told
    for one, drawn in ((few, 3), (more, 5), (sure, 2)):
        [picture] = charts_in(render_attacks(attack(loss=one)))
        lines = points_of(ET.fromstring(picture))  # noqa: S314 - our own text
        assert sorted(map(len, lines)) == [2, drawn]
    assert "too few people" not in Page(render_attacks(attack(loss=more))).words


def test_an_audit_too_draws_no_rate_below_one_canary() -> None:
    """Four canaries stayed out. The two found before any of them say nothing of a rate of 0.001."""
    curve = [[0.0, 0.0], [0.0, 0.5], [0.25, 0.6], [0.5, 0.8], [1.0, 1.0]]
    [picture] = charts_in(render_attacks(audit(curve=curve, canaries=8)))
    canaries = points_of(ET.fromstring(picture))[-1]  # noqa: S314 - our own text
    assert min(x for x, _ in canaries) == pytest.approx(510 + 452 * math.log10(0.25) / 3, abs=0.06)


def test_lines_for_comparison_can_be_told_apart() -> None:
    allowed = {"allowed": [[0, 0], [0.001, 0.1], [1, 1]]}
    text = render_attacks(attack(sums=roc(0.7, **allowed), twice=roc(0.8, **allowed)))
    [picture] = charts_in(text)
    for made, kind in ((picture, "polyline"), (text.partition('class="key"')[2], "line")):
        found = re.findall(rf'<{kind}[^>]*stroke-dasharray="([^"]*)"', made)
        assert len(found) == len(set(found)) == 3


def whole_attack(name: str = "dp-privrec", phase: str = "popularity") -> Attack:
    paper = {"accuracy": figures(0.65), "auc": figures(0.66), "printed": 0.55}
    return attack(
        name,
        paper=paper,
        loss=roc(0.53),
        ratio=roc(0.57, shadows=16),
        sums=roc(0.71, allowed=[[0, 0], [0.001, 0.1], [1, 1]]),
        server=[{**SERVER, "phase": phase}],
    )


def audit(**changes: Any) -> Audit:
    document = {
        "recipe": "dp-privrec",
        "data": "synthetic",
        "seed": 4,
        "canaries": 1000,
        "delta": 1e-6,
        "confidence": 0.95,
        "epsilon_lower": 0.909,
        "epsilon_ledger": 7.9941,
        "holds": True,
        "bounds": {"clopper_pearson": 0.9, "one_run": 0.8, "curve": None},
        "auc": figures(0.61),
        "auc_allowed": 0.99,
        "curve": [[0.0, 0.0], [0.1, 0.2], [1.0, 1.0]],
        "allowed": [[0.0, 0.0], [0.01, 1.0], [1.0, 1.0]],
        "findings": ["All canaries were seen."],
        "noise": "seeded",
        **changes,
    }
    return Audit.model_validate(document, strict=False)


def chart(series: dict[str, Any], dashed: dict[str, Any] | None = None) -> ET.Element:
    text = log_chart(series, x_label="false", y_label="true", dashed=dashed)
    root = svg_of(text)
    for x, y in (point for line in points_of(root) for point in line):
        assert 58 <= x <= 510
        assert 16 <= y <= 260
    return root


def test_points_stand_where_their_logarithms_say() -> None:
    """The frame is 452 wide and 244 high, and has three powers of ten."""
    (line,) = points_of(chart({"a": [(0.001, 0.01), (0.01, 0.1), (0.1, 0.5), (1.0, 1.0)]}))
    expected = [
        (58, 260 - 244 / 3),
        (58 + 452 / 3, 260 - 244 * 2 / 3),
        (58 + 452 * 2 / 3, 260 - 244 * (3 + math.log10(0.5)) / 3),
        (510, 16),
    ]
    for (x, y), (x_wanted, y_wanted) in zip(line, expected, strict=True):
        assert x == pytest.approx(x_wanted, abs=0.06)
        assert y == pytest.approx(y_wanted, abs=0.06)


def test_ticks_are_powers_of_ten_on_both_axes() -> None:
    root = chart({"a": [(0.1, 0.1), (1, 1)]})
    names = ["0.001", "0.01", "0.1", "1"]
    below = {n.text: float(n.attrib["x"]) for n in root.iter("text") if n.attrib.get("y") == "276"}
    left = {n.text: n for n in root.iter("text") if n.attrib.get("text-anchor") == "end"}
    assert list(below) == names
    assert list(left) == names
    assert [below[name] for name in names] == pytest.approx([58, 208.7, 359.3, 510], abs=0.06)
    heights = [float(left[name].attrib["y"]) - 4 for name in names]
    assert heights == pytest.approx([260, 178.7, 97.3, 16], abs=0.06)


def test_zero_and_what_is_smaller_than_the_axis_is_on_the_edge() -> None:
    (line,) = points_of(chart({"a": [(0.0, 0.0), (0.0, 0.1), (1e-9, 0.2), (1.0, 1.0)]}))
    assert list(line[0]) == [58, 260]
    assert [line[1][0], line[2][0]] == [58, 58]
    assert line[1][1] == pytest.approx(260 - 244 * 2 / 3, abs=0.06)
    # Numbers that are none are left out; without any curve there is no chart.
    assert len(points_of(chart({"a": [(0.1, math.nan), (0.1, 0.1), (1.0, 1.0)]}))[0]) == 2
    assert log_chart({"a": []}, x_label="x", y_label="y", dashed={"b": [(0.1, 0.1)]}) == ""


def test_curves_for_comparison_are_dashed_and_named() -> None:
    root = chart({"loss": [(0.1, 0.2), (1, 1)]}, {"guessing": [(1e-3, 1e-3), (1, 1)]})
    other, mine = root.iter("polyline")
    assert "stroke-dasharray" not in mine.attrib
    assert "stroke-dasharray" in other.attrib
    # On two logarithmic axes the diagonal goes from corner to corner.
    assert points_of(root)[0] == [(58, 260), (510, 16)]
    assert {"loss", "guessing", "false", "true"} <= set(words_of(root))
    assert root.attrib["role"] == "img"
    assert "true against false" in root.attrib["aria-label"]


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    long: Points = [(k / 5000, math.sqrt(k / 5000)) for k in range(5001)]
    (line,) = points_of(chart({"a": long}))
    assert 100 < len(line) <= 402
    assert [line[0], line[-1]] == [(58, 260), (510, 16)]
    # No part of the curve is left out: no gap is wide.
    drawn = [b[0] - a[0] for a, b in pairwise(line[1:])]
    assert max(drawn) < 452 / 3 * math.log10(2) + 1


def test_a_page_has_every_figure() -> None:
    page = Page(render_attacks(whole_attack(), audit()))
    for value in (
        "0.650 [0.640, 0.660]",
        "0.550",
        "0.530 [0.520, 0.540]",
        "0.710 [0.700, 0.720]",
        "0.021 [0.011, 0.031]",
        "0.003 [-0.007, 0.013]",
        "likelihood ratio, 16 shadow models",
        "0.512",
        "0.901",
        "0.802",
        "0.703",
        "0.104",
        "1,000",
        "seeded",
        # A lower bound is rounded down, what the ledger says is rounded up.
        "0.90",
        "8.00",
        "holds",
        "0.990",
    ):
        assert value in page.cells, value
    for words in (
        "dp-privrec on synthetic, seed 3",
        "a budget of epsilon 8 at delta 1e-06",
        "0.5 is guessing",
        "no proof of privacy",
        "this attack failed",
        "All canaries were seen.",
        "each alone at this confidence: Clopper-Pearson 0.90; one run 0.80; ROC area -",
        "not for release",
    ):
        assert words in " ".join(page.words.split()), words
    assert "does NOT hold" not in page.words


def test_a_page_has_the_curves_with_what_is_allowed() -> None:
    text = render_attacks(whole_attack(), audit())
    attacks, audits = (ET.fromstring(one) for one in charts_in(text))  # noqa: S314
    assert len(points_of(attacks)) == 5
    assert len(points_of(audits)) == 3
    assert {"loss", "likelihood ratio", "published sums", "guessing", "allowed by ε"} <= set(
        words_of(attacks)
    )
    assert {"canaries", "guessing", "allowed by ε"} <= set(words_of(audits))
    check_page(text)


@pytest.mark.parametrize(
    ("attacks", "audits", "absent"),
    [
        ([], [], ("<svg", "<table", "curious server", "Audits<")),
        ([attack()], [], ("<svg", "<table", "curious server", "Audits<")),
        ([attack(server=[SERVER])], [], ("<svg", "paper's accuracy", "Audits<")),
        ([attack(paper={"accuracy": None, "auc": figures(0.5)})], [], ("<svg", "curious server")),
        ([attack(loss=roc(0.5))], [], ("allowed by ε", "curious server", "Audits<")),
        ([], [audit(curve=[], allowed=[], findings=[], bounds={})], ("<svg", "by method")),
    ],
)
def test_parts_that_are_missing_are_left_out(
    attacks: list[Any], audits: list[Any], absent: tuple[str, ...]
) -> None:
    text = render_attacks(*attacks, *audits)
    for words in absent:
        assert words not in text
    assert "nan" not in text
    assert "None" not in text


def test_a_broken_guarantee_is_said_aloud() -> None:
    broken = audit(epsilon_lower=9.1, holds=False)
    text = render_attacks(broken)
    assert "does NOT hold" in Page(text).cells
    assert 'class="privacy">' in text
    assert 'class="privacy strong">' not in text
    # Without noise the ledger says infinite, which every lower bound agrees with.
    assert "infinite" in Page(render_attacks(audit(epsilon_ledger=None))).cells
    known = summary(None, broken)
    assert known is not None
    (line,) = known.sentences()
    assert line == "audit: at least epsilon 9.10, ledger says 8.00: does NOT hold"


def test_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>&\"'"
    text = render_attacks(
        whole_attack(evil, phase=evil), audit(recipe=evil, findings=[evil], noise=evil)
    )
    check_page(text)
    assert Page(text).words.count(evil) >= 4


def test_two_trainings_are_not_held_against_one() -> None:
    """The epsilon that stands beside the figure is that of one training."""
    both = summary(attack(sums=roc(0.71), twice=roc(0.94)), None)
    assert both == Attacked(auc=0.71, attack="sums")
    assert summary(attack(twice=roc(0.94)), None) is None


def test_the_strongest_attack_of_a_known_kind_is_told() -> None:
    found = summary(whole_attack(), audit())
    assert found is not None
    assert found.as_json() == {
        "auc": 0.71,
        "attack": "sums",
        "epsilon_lower": 0.909,
        "epsilon_ledger": 7.9941,
        "holds": True,
    }
    assert found.sentences() == [
        "audit: at least epsilon 0.90, ledger says 8.00: holds",
        "attack: the highest AUC is 0.710 (published sums); guessing has 0.5",
    ]
    assert summary(None, None) is None
    assert summary(attack(server=[SERVER], other=roc(0.9)), None) is None
    assert [at_least(value) for value in (0.909, 0.9, 0.0, 0.29)] == [
        "0.90",
        "0.90",
        "0.00",
        "0.29",
    ]


def test_reports_mention_it(scratch: Path, refused: Refused) -> None:
    bare, tried = (train("popularity", DATA, out=scratch / name) for name in ("bare", "tried"))
    bare.evaluate()
    tried.evaluate()
    title = "Attacked and audited"
    assert title not in write_report(tried).read_text(encoding="utf-8")
    tried.folder.attack_path.write_text(json.dumps(whole_attack().as_json()), encoding="utf-8")
    tried.folder.audit_path.write_text(json.dumps(audit().as_json()), encoding="utf-8")
    report = write_report(tried).read_text(encoding="utf-8")
    assert title in report
    assert "audit: at least epsilon 0.90, ledger says 8.00: holds" in report
    # Whichever was written last, all pages of a run lead to each other.
    refresh_report(tried)
    place = tried.folder.report_path.parent
    names = {"report.html", "../privacy.html", "attack.html", "audit.html"}
    for name in names - {"../privacy.html"}:
        found = Page((place / name).read_text(encoding="utf-8"))
        assert names - {name} <= set(found.values("href"))
    # Without noise an audit has no verdict.
    bare.folder.audit_path.write_text(json.dumps(audit(epsilon_ledger=None, holds=None).as_json()))
    done("report", "bare")
    page = (bare.folder.report_path.parent / "audit.html").read_text(encoding="utf-8")
    assert "nothing is promised" in Page(page).cells
    for text, words in (("{", "cannot read"), ("[]", "is not a mapping"), ("{}", "no 'recipe'")):
        tried.folder.audit_path.write_text(text, encoding="utf-8")
        assert words in refused("report", "tried")
