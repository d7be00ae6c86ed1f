"""Sentences that compare our results with the paper's, made by rules; and mistakes of the paper.

The paper's figures are pictures without numbers, so they are compared through its claims about
them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from privrec.evaluation.intervals import Difference, apart
from privrec.privacy.paper import PRINTED_HITS
from privrec.reproduce.results import Number, Result
from privrec.runs.figures import around, digits, figure

Numbers = Sequence[Number]


def of(numbers: Numbers, row: str, column: str = "") -> Number | None:
    """Return the number in a row and column, or None; `column` may be "" if there is only one."""
    in_row = [number for number in numbers if number.row == row and column in ("", number.column)]
    return in_row[0] if in_row and in_row[0].value is not None else None


def beside_printed(number: Number) -> str:
    """Return a sentence: a number is above or below the printed number, or agrees with it.

    It agrees if the printed number is inside its interval.
    """
    if number.value is None or number.printed is None:
        return ""
    ours, ends = number.value, number.ends or (number.value, number.value)
    by = ours - number.printed
    if ends[0] <= number.printed <= ends[1]:
        shown = f"{figure(ours)} ({figure(ends[0])} to {figure(ends[1])})"
        return f"{number.row}: {shown} agrees with the printed {figure(number.printed)}"
    difference = Difference(by=by, low=ends[0] - number.printed, high=ends[1] - number.printed)
    arm = around(difference) if number.ends else ""
    where = "above" if by > 0 else "below"
    far = digits(abs(by)) + arm
    return f"{number.row}: {figure(ours)}, {where} the printed {figure(number.printed)} by {far}"


def same_as_printed(numbers: Numbers) -> tuple[int, int]:
    """Return how many numbers equal the printed ones, and how many printed ones there are.

    Four decimals are compared: the paper cuts off the following digits.
    """
    known = _both(numbers)
    same = sum(int(10_000 * ours + 1e-6) == round(10_000 * printed) for ours, printed in known)
    return same, len(known)


def _both(numbers: Numbers) -> list[tuple[float, float]]:
    both = [(number.value, number.printed) for number in numbers]
    return [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]


def order_of(numbers: Numbers) -> str:
    """Return a sentence on how many pairs of rows have the same order as in the paper.

    Pairs that are equal in our results or in the paper are left out.
    """
    rises = [(b[0] - a[0], b[1] - a[1]) for a, b in combinations(_both(numbers), 2)]
    pairs = [(ours, theirs) for ours, theirs in rises if ours and theirs]
    if not pairs:
        return ""
    same = sum((ours > 0) == (theirs > 0) for ours, theirs in pairs)
    if len(pairs) == 1:
        return f"the order of the two {'agrees' if same else 'does not agree'}"
    return f"the order agrees in {same} of {len(pairs)} pairs"


def compared(ours: Number | None, other: Number | None) -> str:
    """Return a sentence: a number is above another number, below it, or level with it.

    They are level if 0 is in the interval of the difference, that of two independent groups of
    people.
    """
    if ours is None or other is None:
        return ""
    difference = apart(_with_ends(ours), _with_ends(other))
    by = digits(abs(difference.by)) + around(difference)
    pair = f"{ours.row} ({figure(ours.value)}) against {other.row} ({figure(other.value)})"
    if difference.low <= 0 <= difference.high:
        return f"{pair}: level (difference {by})"
    return f"{pair}: {'above' if difference.by > 0 else 'below'} it by {by}"


def _with_ends(number: Number) -> Difference:
    value = number.value or 0.0
    low, high = number.ends or (value, value)
    return Difference(by=value, low=low, high=high)


def claim(text: str, holds: bool | None) -> str:
    """Return a claim of the paper and whether it holds here; "" if that is not known."""
    if holds is None:
        return ""
    return f"“{text}”: {'agrees' if holds else 'does not agree'}"


def share(ours: Number | None, other: Number | None) -> float | None:
    """Return `ours` divided by `other`; None if one is missing or 0."""
    if ours is None or other is None or not ours.value or not other.value:
        return None
    return ours.value / other.value


def rise(numbers: Numbers, row: str) -> str:
    """Return a sentence with the first, the last and the best value of a row of a figure."""
    points = [number for number in numbers if number.row == row and number.x is not None]
    points = [number for number in points if number.value]
    if len(points) < 2:
        return ""
    best = max(points, key=lambda number: number.value or 0.0)
    first, last = points[0], points[-1]
    change = (
        f"{row}: {figure(first.value)} at {first.column}, {figure(last.value)} at {last.column}"
    )
    return f"{change}, best {figure(best.value)} at {best.column}"


def is_flat(numbers: Numbers, row: str, start: float) -> bool | None:
    """Return whether a row of a figure is level from x = `start` on; None if that is not known.

    It is level if its largest and smallest value differ by at most half the length of its longest
    interval.
    """
    points = [n for n in numbers if n.row == row and n.x is not None and n.x >= start]
    values = [number.value for number in points if number.value is not None]
    if len(values) < 2:
        return None
    arms = [(number.ends[1] - number.ends[0]) / 2 for number in points if number.ends]
    return max(values) - min(values) <= max(arms, default=0.0)


# --- what the paper prints beside Hits -----------------------------------------------------------

PRINTED_NDCG: dict[str, dict[str, dict[str, float]]] = {
    "movielens-1m": {
        "FCF": {"5": 0.088, "10": 0.118, "20": 0.155, "30": 0.195},
        "NN-SELF": {"5": 0.098, "10": 0.124, "20": 0.162, "30": 0.201},
        "FOFL-SELF": {"5": 0.101, "10": 0.130, "20": 0.169, "30": 0.207},
        "FedGNN": {"5": 0.109, "10": 0.137, "20": 0.174, "30": 0.218},
        "PrivRec": {"5": 0.114, "10": 0.141, "20": 0.189, "30": 0.233},
        "PrivRec-CEN": {"5": 0.125, "10": 0.152, "20": 0.206, "30": 0.258},
        "NCF, centralised": {"5": 0.152, "10": 0.186, "20": 0.250, "30": 0.307},
    },
    "frappe": {
        "FCF": {"5": 0.469, "10": 0.544, "20": 0.591, "30": 0.612},
        "NN-SELF": {"5": 0.472, "10": 0.550, "20": 0.595, "30": 0.616},
        "FOFL-SELF": {"5": 0.479, "10": 0.554, "20": 0.600, "30": 0.621},
        "FedGNN": {"5": 0.486, "10": 0.563, "20": 0.617, "30": 0.631},
        "PrivRec": {"5": 0.495, "10": 0.570, "20": 0.621, "30": 0.636},
        "PrivRec-CEN": {"5": 0.501, "10": 0.574, "20": 0.632, "30": 0.651},
        "NCF, centralised": {"5": 0.547, "10": 0.612, "20": 0.663, "30": 0.698},
    },
}


def most_ndcg(hits: Mapping[str, float], k: int) -> float:
    """Return the largest nDCG@k that these Hits@k allow, with every hit at its best rank.

    A list has one relevant item, so a hit at rank r gives 1 / log2(r + 1). A hit in the first 5 can
    be at rank 1, a hit in the first 10 but not in the first 5 at rank 6, and so on.

    >>> round(most_ndcg({"5": 0.131, "10": 0.168, "20": 0.217, "30": 0.269}, 30), 3)
    0.17
    """
    total, before, rank = 0.0, 0.0, 1
    for name in sorted(hits, key=int):
        if int(name) <= k:
            total += max(hits[name] - before, 0.0) / math.log2(rank + 1)
            before, rank = max(hits[name], before), int(name) + 1
    return total


def impossible_ndcg() -> tuple[int, int]:
    """Return how many printed nDCG exceed what the printed Hits allow, and the number of all.

    Excesses within the rounding are left out.
    """
    cells = [
        printed - most_ndcg(PRINTED_HITS[data][system], int(k))
        for data, systems in PRINTED_NDCG.items()
        for system, by_k in systems.items()
        for k, printed in by_k.items()
    ]
    return sum(over > 0.0015 for over in cells), len(cells)


# --- what the paper gets wrong -------------------------------------------------------------------

Results = Mapping[str, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake of the paper: why it is wrong, the command that shows it, and our evidence.

    `evidence` returns a sentence from our results, or "" if there are none.
    """

    title: str
    why: str
    command: str
    evidence: Callable[[Results], str] = lambda results: ""


def _sentences(name: str, words: str, results: Results) -> str:
    known = results[name].sentences if name in results else []
    return " ".join(line for line in known if words in line)


def _composed(results: Results) -> str:
    if "epsilon-tables" not in results:
        return ""
    same, cells = same_as_printed(results["epsilon-tables"].numbers)
    return f"Composed like this, {same} of {cells} cells come out as they are printed."


def _ndcg(results: Results) -> str:
    wrong, cells = impossible_ndcg()
    return f"{wrong} of the {cells} printed nDCG are larger than their Hits allow."


def _rivals(results: Results) -> str:
    sentences = []
    for name in ("table-movielens", "table-frappe"):
        if name in results:
            panel = results[name].panels[0]
            at_20 = [number for number in results[name].of(panel) if number.column == "20"]
            rivals = [number for number in at_20 if number.row in _RIVALS]
            if known := {number.row: number.value for number in rivals if number.value}:
                best = max(known, key=lambda row: known[row])
                sentences.append(f"{panel}: {order_of(rivals)}; the best rival is {best}.")
    return " ".join(sentences)


_RIVALS = ("FCF", "NN-SELF", "FOFL-SELF", "FedGNN")


def _own_items(results: Results) -> str:
    if "table-frappe" not in results:
        return ""
    result = results["table-frappe"]
    printed, parts = PRINTED_HITS["frappe"]["PrivRec"], []
    for k in ("5", "10"):
        own = of(result.of(result.panels[0]), "own-items", k)
        if own is not None:
            parts.append(f"Hits@{k} {figure(own.value)}, PrivRec as printed {figure(printed[k])}")
    return f"{'; '.join(parts)}." if parts else ""


MISTAKES = (
    Mistake(
        title="ε is composed once for each client",
        why="A round publishes one sum, so 1,000 rounds are 1,000 releases. The paper counts one"
        " for each client of a round, and its ε is far too large. On the other side, its bound for"
        " cohorts of a fixed size is not tight.",
        command="privrec reproduce epsilon-tables",
        evidence=_composed,
    ),
    Mistake(
        title="nDCG that the printed Hits rule out",
        why="With one relevant item in a list, nDCG is 1 / log2(rank + 1). Then Hits at 5, 10, 20"
        " and 30 bound nDCG from above.",
        command="privrec reproduce table-movielens table-frappe",
        evidence=_ndcg,
    ),
    Mistake(
        title="Stage one has no noise",
        why="Item vectors that were trained on a person's history depend on it, with or without a"
        " user id. So ε of both stages together is infinite. Under noise end to end, stage one"
        " costs more than it gives.",
        command="privrec reproduce dp-hits",
        evidence=partial(_sentences, "dp-hits", "end to end"),
    ),
    Mistake(
        title="`cnt` is a leak",
        why="The paper feeds to the model how often a person used an app. For a candidate that is"
        " the answer itself: it is above 0 where she used it. privrec does not read it.",
        command="privrec data describe frappe",
    ),
    Mistake(
        title="Small cohorts cannot work under noise",
        why="With S = 40, z = 1 and 30 people, the noise on 240,000 parameters is some 30 times as"
        " long as the largest possible mean.",
        command="privrec reproduce dp-hits",
        evidence=partial(_sentences, "dp-hits", "the paper's M, S and z"),
    ),
    Mistake(
        title="The order of its rivals",
        why="Well regularised matrix factorisation, the paper's weakest rival, is its best.",
        command="privrec reproduce table-movielens table-frappe",
        evidence=_rivals,
    ),
    Mistake(
        title="The attack guesses",
        why="Ten items that a person does not have say little about who trained. So an accuracy"
        " near 0.5 is no sign that noise protects.",
        command="privrec reproduce attack-table",
        evidence=partial(_sentences, "attack-table", "the attack guesses"),
    ),
    Mistake(
        title="“Own items first” on Frappe",
        why="85 % of the tested lines are apps that the device already holds. A rule of one line"
        " that puts them first belongs beside every result.",
        command="privrec reproduce table-frappe",
        evidence=_own_items,
    ),
)
