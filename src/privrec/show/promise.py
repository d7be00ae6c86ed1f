"""What a run promises, as a table and a chart: from its ledger, and never more than it says."""

from collections.abc import Mapping, Sequence
from typing import Any

from privrec.privacy.ledger import PrivacyLedger, ledger_in, most_certain, most_right, percent
from privrec.privacy.release import Release
from privrec.privacy.statement import MODERATE, SCALE, STRONG, TITLES, epsilon_text, strength_of
from privrec.show.charts import line_chart, log_axis
from privrec.show.page import html_table, html_text, html_words, note, page, table

Line = Mapping[str, Any]
_POINTS = 8
"""Points of the chart: ε of a part of a long ledger takes up to a second."""
_BEFORE = {
    "add or remove one person": "that she took part and that she did not",
    "replace one person": "that her data was used and that somebody else's was in its place",
}
_MEANING = (
    "Before: an attacker thinks it equally likely {before}. He then sees everything that this run"
    " publishes, knows everybody else's data, and computes as much as he likes."
)


_SEEDED = "here it came from a seed, and who knows the seed can take it off"
_DELTA = "a chance that ε alone is not kept"


def render_privacy(title: str, privacy: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the page of what a run promises. It has nothing that may not be released.

    It leads to no other page: those may not be released.
    """
    parts = [f"<h1>Privacy of {html_text(title)}</h1>", promise_html(privacy, lines)]
    parts.append(
        note(
            "This page is made from the run's ledger and settings, which may be released. It has"
            " no figures of people."
        )
    )
    return page(f"Privacy of {title}", parts)


def statement_html(privacy: Mapping[str, Any], name: str = "") -> str:
    """Return what is promised in short, as a box in the colour of its strength.

    `name` is HTML before it. Older files have the whole statement alone.
    """
    strength = strength_of(privacy.get("epsilon"))
    words = html_words(str(privacy.get("short") or privacy["statement"]))
    return f'<p class="privacy {strength}">{name}<b>{TITLES[strength]}.</b> {words}</p>'


def promise_html(privacy: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return what is promised: in short, on a scale, in figures, by release, and in full."""
    ledger = ledger_in(lines)
    rows = [[cell.replace(" %", "\u00a0%") for cell in row] for row in _rows(privacy, ledger)]
    left_out = "".join(f"<li>{html_words(one)}</li>" for one in privacy.get("not_covered", ()))
    parts = [
        statement_html(privacy),
        _scale(privacy),
        f"<h3>What is not covered</h3><ul>{left_out}</ul>" if left_out else "",
        "<h3>In figures</h3>",
        html_table(
            [],
            [[html_words(cell) for cell in row] for row in rows],
            name="What is promised",
            look="text",
        ),
        _meaning(ledger),
    ]
    if lines:
        parts += ["<h3>What was released</h3>", _releases(lines)]
        parts.append(_spending(privacy, lines))
    if privacy.get("short"):
        whole = html_words(str(privacy["statement"]))
        parts.append(f"<details><summary>The statement in full</summary><p>{whole}</p></details>")
    return "".join(parts)


_ZONES = (("strong", 0.1, STRONG), ("moderate", STRONG, MODERATE), ("weak", MODERATE, 20.0))


def _scale(privacy: Mapping[str, Any]) -> str:
    """Return where ε stands on the scale from strong to weak; "" without a guarantee."""
    epsilon = privacy.get("epsilon")
    if epsilon is None:
        return ""
    axis, word = log_axis([_ZONES[0][1], _ZONES[-1][2]]), strength_of(epsilon)

    def place(value: float) -> float:
        return 20 + 600 * axis.share(value)

    parts = []
    for zone, low, high in _ZONES:
        left, right = place(low), place(high)
        parts.append(
            f'<rect class="{zone}{" on" if zone == word else ""}" x="{left:.0f}" y="31"'
            f' width="{right - left:.0f}" height="28"/>'
            f'<text x="{(left + right) / 2:.0f}" y="51">{zone}</text>'
        )
    parts += [f'<text x="{place(end):.0f}" y="78">{end:g}</text>' for end in (STRONG, MODERATE)]
    said, at = f"ε = {epsilon_text(epsilon)}", place(float(epsilon))
    parts.append(
        f'<path d="M{at:.1f} 31l-6-9h12z"/>'
        f'<text class="here" x="{min(max(at, 60), 580):.1f}" y="17">{said}</text>'
    )
    words = f"The scale: {SCALE}. Smaller is stronger."
    return (
        f'<figure><svg class="scale" viewBox="0 0 640 82" role="img" aria-label="{said}, {word}">'
        f"{''.join(parts)}</svg></figure>{note(words)}"
    )


def _meaning(ledger: PrivacyLedger) -> str:
    """Return what the attacker compares, by the adjacency of the guarantee."""
    if not ledger.entries:
        return ""
    return note(_MEANING.format(before=_BEFORE[ledger.entries[-1][0].sampling.adjacency]))


def _rows(privacy: Mapping[str, Any], ledger: PrivacyLedger) -> list[tuple[str, str]]:
    """Return the table of the promise: a question and its answer in each row."""
    if privacy.get("epsilon") is None:
        return _rows_without(privacy)
    epsilon, delta = float(privacy["epsilon"]), privacy.get("delta")
    compared = privacy.get("adjacency")
    return [
        ("ε (epsilon)", f"{epsilon_text(epsilon)}; smaller is stronger"),
        *([] if delta is None else [("δ (delta)", f"{delta:g}; {_DELTA}")]),
        *([("What is compared", str(compared))] if compared else []),
        *([] if delta is None else _attacker(ledger, epsilon, float(delta))),
        ("The noise", "from the operating system's secure generator; nobody can take it off"),
    ]


def _attacker(ledger: PrivacyLedger, epsilon: float, delta: float) -> list[tuple[str, str]]:
    """Return what an attacker who thought it an even chance can get to."""
    if not ledger.entries or ledger.epsilon(delta) > epsilon * (1 + 1e-9):
        return []  # The ledger is not the one of the statement.
    certain, right = percent(most_certain(ledger, delta)), percent(most_right(ledger))
    return [
        (
            "An attacker who gave it 50 %",
            (
                f"can get to at most {certain}; the chance that what is"
                f" published takes him further is at most {delta:g}"
            ),
        ),
        (
            "His guesses",
            (
                f"are right in at most {right} of all cases, on average over what"
                " can be published; a coin has 50 %"
            ),
        ),
    ]


def _rows_without(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = privacy.get("epsilon_of_mechanism")
    alone = privacy.get("stage_two_epsilon")
    at = "" if privacy.get("delta") is None else f" at δ {privacy['delta']:g}"
    rows = [("ε (epsilon)", "infinite: there is no guarantee")]
    if known is not None:
        rows.append(
            (
                "ε of the mechanism",
                f"{epsilon_text(known)}{at}, if the noise were secure; {_SEEDED}",
            )
        )
    if alone is not None:
        rows.append(
            ("ε of stage two alone", f"{epsilon_text(alone)}; the first stage had no noise")
        )
    if privacy.get("local_noise"):
        rows.append(("Noise on devices", "some, which is no guarantee for a person"))
    rows.append(
        (
            "An attacker who gave it 50 %",
            "can get to 100 %: nothing prevents him from being certain that she took part",
        )
    )
    return rows


def _releases(lines: Sequence[Line]) -> str:
    """Return the releases as a table, those of one kind in one row."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        release = Release.from_json(line)
        groups.setdefault((line["stage"], line["people"], line["noise"], release), []).append(line)
    rows = []
    for (stage, people, noise, release), found in groups.items():
        sampling = release.sampling
        about = "about " if sampling.law == "poisson" and sampling.share < 1 else ""
        asked = f"{about}{sampling.cohort:,} of {sampling.users:,}"
        noised = release.mechanism != "none"
        rows.append(
            (
                str(stage),
                f"{len(found):,}",
                asked + (" volunteers, who are not covered" if people == "volunteers" else ""),
                f"{release.mechanism}, {noise}" if noised else "none",
                f"{release.noise_multiplier:.4g}" if noised else "-",
                _range(found, "clip_norm"),
                _range(found, "noise_scale"),
            )
        )
    head = ("stage", "releases", "people", "noise", "multiplier", "bound", "scale of the noise")
    words = (
        "One release is a sum over the people of a round. The bound is the most that one person can"
        " add to it (its norm). The multiplier is the scale of the noise over what one person can"
        " change the sum by."
    )
    return table(head, rows, name="Releases", look="wide") + note(words)


def _range(lines: Sequence[Line], key: str) -> str:
    """Return the smallest and the largest value of the lines, or a dash."""
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    if not values:
        return "-"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _spending(privacy: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the chart of ε by release; "" where it is infinite, or where one release is all."""
    counted = [line for line in lines if line["people"] != "volunteers"]
    delta = privacy.get("delta")
    known = privacy.get("epsilon_of_mechanism") is not None
    if delta is None or not known or len(counted) < 2 or len(counted) < len(lines):
        return ""
    last = len(counted)
    most = min(last, _POINTS)
    places = sorted({round(last * (k + 1) / most) for k in range(most)})
    points = [(0.0, 0.0)]
    points += [(float(n), ledger_in(counted[:n]).epsilon(float(delta))) for n in places]
    seeded = privacy.get("epsilon") is None
    words = "What each release added. " if last == len(places) else "What releases added. "
    words += f"ε is at δ = {delta:g}, of all releases up to that one together."
    if seeded:
        words += " The noise was seeded, so it is a figure of the mechanism and no guarantee."
    chart = line_chart(
        {"ε": points}, x_label="releases", y_label="ε so far", steps=last == len(places)
    )
    return f"<h3>ε by release</h3>{chart}{note(words)}" if chart else ""
