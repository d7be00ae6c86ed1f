"""What the paper gets wrong: each with the command that shows it, and with our numbers if known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from privrec.privacy.paper import PRINTED_HITS
from privrec.reproduce.agreement import of, order_of, same_as_printed
from privrec.reproduce.printed import impossible_ndcg
from privrec.reproduce.results import Number, Result
from privrec.runs.figures import figure

Results = Mapping[str, Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A mistake of the paper: why it is wrong, the command that shows it, and our evidence.

    `evidence` returns a sentence from our results, or "" without them.
    """

    title: str
    why: str
    command: str
    evidence: Callable[[Results], str] = lambda results: ""


def _sentences(name: str, words: str) -> Callable[[Results], str]:
    """Return an `evidence` that has the sentences of a result that contain `words`."""

    def evidence(results: Results) -> str:
        known = results[name].sentences if name in results else []
        return " ".join(line for line in known if words in line)

    return evidence


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
            best = max((number for number in rivals if number.value), key=_value, default=None)
            if best is not None:
                sentences.append(f"{panel}: {order_of(rivals)}; the best rival is {best.row}.")
    return " ".join(sentences)


_RIVALS = ("FCF", "NN-SELF", "FOFL-SELF", "FedGNN")


def _value(number: Number) -> float:
    return number.value or 0.0


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
        evidence=_sentences("dp-hits", "end to end"),
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
        evidence=_sentences("dp-hits", "the paper's M, S and z"),
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
        evidence=_sentences("attack-table", "the attack guesses"),
    ),
    Mistake(
        title="“Own items first” on Frappe",
        why="85 % of the tested lines are apps that the device already holds. A rule of one line"
        " that puts them first belongs beside every result.",
        command="privrec reproduce table-frappe",
        evidence=_own_items,
    ),
)
