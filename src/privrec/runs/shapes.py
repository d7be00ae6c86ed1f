"""The shapes of the JSON files in a run folder: what a file of another program fails to have.

A shape is a type or several; a mapping of keys, of which those that end in "?" may be missing; a
list of one shape, for lists of any length; or `Each`, for mappings with any keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrec.errors import RunFolderError

NOT_JSON = (ValueError, RecursionError)
"""What other bytes than JSON can raise; for a number of 5,000 digits it is a `ValueError`."""


@dataclass(frozen=True, slots=True)
class Each:
    """A mapping whose values have one shape."""

    shape: Any


Number = (int, float)
_Maybe = (int, float, type(None))
_KS = {"5": _Maybe, "10": _Maybe, "20": _Maybe, "30": _Maybe}
_Intervals = Each((list, type(None)))
_Differences = Each(Each({"by": _Maybe, "low": _Maybe, "high": _Maybe}))
_FIGURES = {
    "hits": _KS,
    "ndcg?": Each(_Maybe),
    "list_ndcg?": Each(_Maybe),
    "recall?": Each(_Maybe),
    "interval?": _Intervals,
    "new_only?": {"hits": _KS, "interval?": _Intervals, "differences?": _Differences},
}
EVALUATION: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "seed": int,
    "users": {"test": int, "skipped": int},
    **_FIGURES,
    "references": Each(_FIGURES),
    "references_left_out?": dict,
    "privacy": {
        "statement": str,
        "epsilon?": _Maybe,
        "epsilon_of_mechanism?": _Maybe,
        "stage_two_epsilon?": _Maybe,
        "delta?": _Maybe,
    },
    "cost?": {"bytes_sent?": _Maybe},
    "few_items?": dict,
    "sampled?": {"people": int, "of": int},
    "protocol?": str,
    "candidates?": str,
    "differences?": _Differences,
    "beyond?": Each(Each(_Maybe)),
    "by_items?": [
        {
            "from": int,
            "to?": _Maybe,
            "people": int,
            "hits": Each(_Maybe),
            "interval?": _Intervals,
            "references?": Each(Each(_Maybe)),
        }
    ],
    "warnings?": [str],
}
_AREA = {"value": Number, "low": _Maybe, "high": _Maybe}
_KIND = {"auc?": _AREA, "accuracy?": (int, float, dict), "rates?": Each({"value": Number})}
ATTACK: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "attacks": {
        **{f"{kind}?": _KIND for kind in ("paper", "loss", "ratio", "sums", "twice")},
        "server?": [{"phase": str, "items": dict, "likes": dict, "guessing": dict}],
    },
}
AUDIT: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "epsilon_lower": Number,
    "epsilon_ledger?": _Maybe,
    "holds": bool,
    "auc?": _AREA,
}
_LISTED = {"title": str, "hit": bool}
EXAMPLES: Mapping[str, Any] = {
    "examples": [{"liked": [str], "more": int, "held_out": int, "list": [_LISTED]}]
}
_STEP = {"what": str, "done": int, "of": int, "seconds?": Number}
PROGRESS: Mapping[str, Any] = {
    **{f"{name}?": int for name in ("of", "round", "stage_of", "stage_round")},
    **{f"{name}?": str for name in ("doing", "stage")},
    "stages?": [str],
    "step?": _STEP,
    "seconds_per_round?": Number,
    "memory?": {"now": int, "peak": int},
}
"""`progress.json` and `evaluating.json`, without what is None in them."""
WATCHED: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "seed?": int,
    "delta?": Number,
    "epsilon?": Number,
}
"""The settings that a page about a running training shows."""
ROUND: Mapping[str, Any] = {"round": int, "stage?": str}
ROUND_FIGURES: Mapping[str, Any] = {
    "round": int,
    "stage": str,
    "seconds": Number,
    "loss": _Maybe,
    "validation?": Each(_Maybe),
}


def read_document(path: Path, shape: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON object in a file, which must have this shape; None if there is no file."""
    if not path.is_file():
        return None
    verb = {"attack": "attack", "audit": "audit"}.get(path.stem, "evaluate")
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, *NOT_JSON) as error:
        raise RunFolderError(f"cannot read {path}: {error}; {verb} again") from error
    if fault := fault_in(found, shape):
        raise RunFolderError(f"{path} {fault}: {verb} again")
    return dict(found)


def fault_in(found: object, shape: Any, name: str = "") -> str | None:
    """Return what a JSON value lacks, in words that follow the name of its file; None if nothing.

    >>> fault_in({"a": {"b": "x"}}, {"a": {"b": int}})
    "has 'x' for 'a.b', which must be a number"
    >>> fault_in({}, {"a": int, "b?": int})
    "has no 'a'"
    """
    if isinstance(shape, Mapping | Each):
        return _fault_in_mapping(found, shape, name)
    if isinstance(shape, list):
        if not isinstance(found, list):
            return _other(found, name, "a list")
        return next(filter(None, (fault_in(one, shape[0], name) for one in found)), None)
    kinds = shape if isinstance(shape, tuple) else (shape,)
    # Python counts truth values as whole numbers.
    if isinstance(found, kinds) and (bool in kinds or not isinstance(found, bool)):
        return None
    return _other(found, name, _WORDS.get(kinds[0], "of another kind"))


def _fault_in_mapping(found: object, shape: Mapping[str, Any] | Each, name: str) -> str | None:
    if not isinstance(found, dict):
        return _other(found, name, "a mapping")
    keys = shape if isinstance(shape, Mapping) else dict.fromkeys(found, shape.shape)
    for key, inner in keys.items():
        own = key.removesuffix("?")
        inside = f"{name}.{own}" if name else own
        if own in found:
            fault = fault_in(found[own], inner, inside)
        else:
            fault = None if key.endswith("?") else f"has no {inside!r}"
        if fault:
            return fault
    return None


def _other(found: object, name: str, must: str) -> str:
    shown = repr(found)
    short = shown if len(shown) <= 40 else f"{shown[:40]}…"
    return f"has {short} for {name!r}, which must be {must}" if name else f"is not {must}"


_WORDS = {str: "text", int: "a number", bool: "true or false", dict: "a mapping", list: "a list"}
