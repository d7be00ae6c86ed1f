"""Whether a run with noise is better than what needs no training at all, in words."""

from collections.abc import Mapping
from typing import Any

_K = "20"
_OWN, _POPULAR = "own-items", "popularity"
_RULES = {
    _OWN: "'own-items' (a person's own items first, then popular ones)",
    _POPULAR: "'popularity' (the same list for everybody)",
}

_ADVICE = "More people or a larger epsilon help"


def warnings_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each simple rule that a run with noise is not clearly better than.

    The rules are a person's own items first, over all items, and what is popular, over items that
    are new to her. Where nobody is tested on her own items, the two are the same, and one sentence
    is enough. A run without noise gets none.
    """
    if not _has_noise(evaluation["privacy"]):
        return []
    new, references = evaluation["new_only"], evaluation["references"]
    own = evaluation["differences"].get(_OWN, {}).get(_K)
    popular = new["differences"].get(_POPULAR, {}).get(_K)
    said = []
    if own and own["low"] <= 0 and not (popular and _are_same(references)):
        hits = evaluation["hits"][_K], references[_OWN]["hits"][_K]
        said.append(_sentence("On all items", _OWN, hits, own))
    if popular and popular["low"] <= 0:
        hits = new["hits"][_K], references[_POPULAR]["new_only"]["hits"][_K]
        said.append(_sentence("On items that are new to a person", _POPULAR, hits, popular))
    help_ = (
        f"{_ADVICE}: twice the people about as much as twice the epsilon."
        f" 'privrec frontier --data {evaluation['data']}' shows Hits@{_K} by epsilon."
    )
    return [*said, help_] if said else []


def warned_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the sentences of an evaluation's warnings, without the advice at their end."""
    return [line for line in evaluation.get("warnings", []) if not line.startswith(_ADVICE)]


def above_text(difference: Mapping[str, float] | None) -> str:
    """Return a difference with half the length of its interval; "" if it is not known.

    >>> above_text({"by": 0.0104, "low": 0.007, "high": 0.013}), above_text(None)
    ('+0.010 ± 0.003', '')
    """
    if difference is None:
        return ""
    return f"{signed(difference['by'])} ± {(difference['high'] - difference['low']) / 2:.3f}"


def signed(value: float) -> str:
    """Return a difference as text, with its sign.

    >>> signed(0.0104), signed(-0.2), signed(0.0)
    ('+0.010', '-0.200', '0.000')
    """
    text = f"{value:+.3f}"
    return text[1:] if text[1:] == "0.000" else text


def _has_noise(privacy: Mapping[str, Any]) -> bool:
    known = (privacy.get("epsilon_of_mechanism"), privacy.get("stage_two_epsilon"))
    return bool(privacy.get("local_noise")) or any(epsilon is not None for epsilon in known)


def _are_same(references: Mapping[str, Any]) -> bool:
    """Return whether own items first changes nothing, because no own item is tested."""
    return bool(references[_OWN]["hits"] == references[_POPULAR]["hits"])


def _sentence(where: str, rule: str, hits: tuple[float, float], by: Mapping[str, float]) -> str:
    how = "worse than" if by["high"] < 0 else "not clearly better than"
    return (
        f"{where} this run is {how} {_RULES[rule]}: Hits@{_K} {hits[0]:.3f} against"
        f" {hits[1]:.3f}, a difference of {signed(by['by'])} (95 %: {signed(by['low'])} to"
        f" {signed(by['high'])})."
    )
