"""Figures as text: numbers with their intervals, and small tables."""

import math
from collections.abc import Sequence

from privrec.data.text import short
from privrec.evaluation.intervals import Difference
from privrec.privacy.paper import PRINTED_HITS

ADVICE = "More people who train, or a larger epsilon, usually help"


def without_advice(warnings: Sequence[str]) -> list[str]:
    """Return the warnings of an evaluation without the advice at their end."""
    return [line for line in warnings if not line.startswith(ADVICE)]


def around(difference: Difference) -> str:
    """Return the interval of a difference as text that follows the difference.

    It is ± the larger distance to an end. If this symmetric interval contains 0 but the real
    interval does not, the text shows the two ends.

    >>> around(Difference(by=0.067, low=-0.001, high=0.131))
    ' ± 0.068'
    >>> around(Difference(by=0.067, low=0.001, high=0.15))
    ' (+0.001 to +0.150)'
    """
    by, low, high = difference.by, difference.low, difference.high
    arm = max(by - low, high - by)
    if arm >= abs(by) and (low > 0 or high < 0):
        return f" ({signed(low)} to {signed(high)})"
    return f" ± {digits(arm)}"


def signed_with_arm(difference: Difference | None) -> str:
    """Return a difference with its sign and interval, for a table; "" if there is none.

    >>> signed_with_arm(Difference(by=-0.02, low=-0.03, high=-0.01))
    '-0.020 ± 0.010'
    """
    return "" if difference is None else signed(difference.by) + around(difference)


def signed(value: float) -> str:
    """Return a difference as text, with its sign.

    >>> signed(0.0104), signed(-0.2), signed(0.0), signed(-0.000123)
    ('+0.010', '-0.200', '0.000', '-0.00012')
    """
    text = digits(abs(value))
    return text if not float(text) else ("-" if value < 0 else "+") + text


def digits(value: float) -> str:
    """Return a number >= 0 with three decimals; below 0.001 with two significant digits.

    >>> digits(0.0104), digits(0.00042), digits(0.0000061), digits(0.0)
    ('0.010', '0.00042', '0.0000061', '0.000')
    """
    if not _LEAST <= value < 0.001:
        return f"{value:.3f}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"


def arm_text(value: float | None, ends: Sequence[float] | None) -> str:
    """Return the larger distance from a figure to an end of its interval; "" if not known."""
    if value is None or ends is None:
        return ""
    return digits(max(value - ends[0], ends[1] - value))


def figure_and_arm(value: float | None, ends: Sequence[float] | None) -> str:
    """Return a figure, with ± the larger distance to an end of its interval if that is known.

    >>> figure_and_arm(0.385, (0.376, 0.393)), figure_and_arm(0.294, None)
    ('0.385 ± 0.009', '0.294')
    """
    shown, arm = figure(value), arm_text(value, ends)
    return f"{shown} ± {arm}" if arm else shown


_LEAST = 1e-9
"""Smaller numbers are rounding errors, shown as 0.000."""


KINDS = {
    "paper": "the paper's attack",
    "loss": "loss",
    "ratio": "likelihood ratio",
    "sums": "published sums",
    "twice": "two trainings",
}
"""The kinds of membership attacks in `attack.json`, with the names that readers see."""


def at_least(epsilon: float) -> str:
    """Return a lower bound as text, rounded down to two decimals."""
    return f"{math.floor(epsilon * 100 + 1e-9) / 100:.2f}"


_MOST = 8
"""The most rows of a table in the `repr` of an object. Chosen by hand."""


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text, with at most `_MOST` rows."""
    shown = [[short(cell, 40) for cell in row] for row in [columns, *rows[:_MOST]]]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in shown
    ]
    more = [f"… and {len(rows) - _MOST:,} more"] if len(rows) > _MOST else []
    return "\n".join([*lines, *more])


def is_papers_protocol(protocol: str, candidates: str) -> bool:
    """Return whether people were tested as in the paper."""
    return (protocol, candidates) == ("halves", "unseen")


def printed_hits(data: str, protocol: str, candidates: str) -> dict[str, dict[int, float]]:
    """Return the paper's Hits@k by row name and k; {} for other data or another protocol."""
    printed = PRINTED_HITS.get(data, {}) if is_papers_protocol(protocol, candidates) else {}
    return {
        f"{name} (paper)": {int(k): v for k, v in hits.items()} for name, hits in printed.items()
    }


def protocol_words(protocol: str, candidates: str) -> str:
    """Return the evaluation protocol as text for a title; "" for the paper's protocol."""
    among = f", {protocol} among {candidates} items"
    return "" if is_papers_protocol(protocol, candidates) else among


def figure(value: float | None, decimals: int = 3) -> str:
    """Return a figure as text; a dash if it is None."""
    return "-" if value is None else f"{value:.{decimals}f}"


def duration(seconds: float) -> str:
    """Return a duration in seconds as text.

    >>> duration(0.004), duration(42.2), duration(250), duration(9000)
    ('0.004 s', '42 s', '4 min', '2.5 h')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
