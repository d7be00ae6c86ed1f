"""The shapes of the JSON files in a run folder: what a file of another program fails to have.

A shape is a type or several; a mapping of keys, of which those that end in "?" may be missing; a
list of one shape, for lists of any length; `Each`, for mappings with any keys; `Ends`; or `OrNone`.

Testing a run by another protocol than its own, and where the figures of that are written.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipe import PreparedRun
from privrec.errors import RunFolderError, SettingsError
from privrec.evaluation.protocols import protocol_named, resolve

NOT_JSON = (ValueError, RecursionError)
"""What other bytes than JSON can raise; for a number of 5,000 digits it is a `ValueError`."""


@dataclass(frozen=True, slots=True)
class Each:
    """A mapping whose values have one shape."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Ends:
    """A list of two numbers: the ends of an interval."""


@dataclass(frozen=True, slots=True)
class OrNone:
    """A value of one shape, or None."""

    shape: Any


Number = (int, float)
_Maybe = (int, float, type(None))


def _by_k(shape: Any) -> dict[str, Any]:
    return dict.fromkeys(("5", "10", "20", "30"), shape)


_Beyond = Each(Each(_Maybe))
_Difference = {"by": Number, "low": Number, "high": Number}
# Nobody may have had an item that was new to her.
_NEW = {
    "hits": _by_k(_Maybe),
    "interval?": _by_k(Ends()),
    "differences?": Each(Each(_Difference)),
}
_FIGURES = {
    "hits": _by_k(Number),
    "ndcg?": Each(_Maybe),
    "list_ndcg?": Each(_Maybe),
    "recall?": Each(_Maybe),
    "interval?": _by_k(Ends()),
    "beyond?": _Beyond,
    "beyond_interval?": Each(Each(Ends())),
    "new_only?": _NEW,
}
EVALUATION: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "seed": int,
    "users": {"train?": int, "validation?": int, "test": int, "skipped": int},
    **_FIGURES,
    "references": Each(_FIGURES),
    "references_left_out?": dict,
    "privacy": {
        "statement": str,
        "epsilon?": _Maybe,
        "epsilon_of_mechanism?": _Maybe,
        "stage_two_epsilon?": _Maybe,
        "delta?": _Maybe,
        "strength?": str,
        "short?": str,
        "not_covered?": [str],
    },
    "cost?": {"bytes_sent?": (int, type(None))},
    "few_items?": {
        "fewer_than": int,
        "people": int,
        "hits": _by_k(_Maybe),
        "interval?": Each(Ends()),
        "interval_without?": Each(Ends()),
        "without_adaptation": OrNone(_by_k(_Maybe)),
    },
    "sampled?": {"people": int, "of": int},
    "protocol?": str,
    "candidates?": str,
    "differences?": Each(_by_k(_Difference)),
    "by_items?": [
        {
            "from": int,
            "to?": _Maybe,
            "people": int,
            "hits": _by_k(_Maybe),
            "interval?": _by_k(Ends()),
            "references?": Each(_by_k(_Maybe)),
        }
    ],
    "warnings?": [str],
}
_AREA = {"value": Number, "low": _Maybe, "high": _Maybe}
_KIND = {
    "auc?": _AREA,
    "accuracy?": (int, float, dict),
    "rates?": Each(_AREA),
    "others?": int,
    "shadows?": int,
    "printed?": _Maybe,
    "curve?": [[Number]],
    "allowed?": [[Number]],
}
_SHARES = {"precision": _Maybe, "recall": _Maybe}
ATTACK: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "seed": int,
    "epsilon?": _Maybe,
    "delta?": _Maybe,
    "repetitions?": _Maybe,
    "attacks": {
        **{f"{kind}?": _KIND for kind in ("paper", "loss", "ratio", "sums", "twice")},
        "server?": [
            {
                "phase": str,
                "people": int,
                "items": _SHARES,
                "likes": _SHARES,
                "guessing": {"precision": _Maybe},
            }
        ],
    },
}
AUDIT: Mapping[str, Any] = {
    "recipe": str,
    "data": str,
    "seed": int,
    "canaries": int,
    "confidence": Number,
    "delta": Number,
    "epsilon_lower": Number,
    "epsilon_ledger": _Maybe,
    "holds": (bool, type(None)),
    "auc?": _AREA,
    "auc_allowed?": _Maybe,
    "bounds?": Each(_Maybe),
    "curve?": [[Number]],
    "allowed?": [[Number]],
    "findings?": [str],
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
    "best?": bool,
    "stopped?": bool,
    "validation_interval?": Each(Ends()),
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
    if isinstance(shape, list | Ends):
        return _fault_in_list(found, shape, name)
    if isinstance(shape, OrNone):
        return None if found is None else fault_in(found, shape.shape, name)
    kinds = shape if isinstance(shape, tuple) else (shape,)
    # Python counts truth values as whole numbers.
    if isinstance(found, kinds) and (bool in kinds or not isinstance(found, bool)):
        return None
    return _other(found, name, _WORDS.get(kinds[0], "of another kind"))


def _fault_in_list(found: object, shape: list[Any] | Ends, name: str) -> str | None:
    if not isinstance(found, list) or (isinstance(shape, Ends) and len(found) != 2):
        return _other(found, name, "two numbers" if isinstance(shape, Ends) else "a list")
    inner = Number if isinstance(shape, Ends) else shape[0]
    return next(filter(None, (fault_in(one, inner, name) for one in found)), None)


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


def tested_by(prepared: PreparedRun, name: str | None, candidates: str | None) -> PreparedRun:
    """Return the run as another protocol tests it; its own where nothing else is asked for.

    What the run was trained on stays as it is, so a protocol is allowed only where nobody who
    trained can have trained on what it tests.

    Raises:
        SettingsError: Somebody may have, or the data does not have what the protocol needs.
    """
    own = prepared.protocol
    asked, default = resolve(name or own.name, None, prepared.whole)
    if asked == own.name:
        _, among = resolve(own.name, candidates or own.candidates, prepared.whole)
        return replace(prepared, protocol=replace(own, candidates=among))
    if own.name != "halves":
        raise SettingsError(
            f"`protocol` must be {own.name!r} for a run that was trained under it, because"
            f" everybody trained, perhaps on lines that others would test; got {asked!r}"
        )
    _, among = resolve(asked, candidates or default, prepared.whole)
    # Nobody who is tested held lines back for validation: that was done by other people.
    protocol = protocol_named(
        asked, candidates=among, seed=prepared.config.seed, validation_share=0.0
    )
    split = prepared.split
    if asked == "files":
        # Nobody can train on a line of the test file: everybody may be tested on it.
        split = replace(split, test=np.arange(prepared.whole.n_clients))
    return replace(prepared, protocol=protocol, split=split)


def ending_of(prepared: PreparedRun, tested: PreparedRun, people: int | None = None) -> str:
    """Return what the names of an evaluation's files end in: "" for the run's own protocol.

    The number of people is in it where they are a sample.
    """
    sample = "" if people is None else f"-people-{people}"
    own, other = prepared.protocol, tested.protocol
    if (own.name, own.candidates) == (other.name, other.candidates):
        return sample
    _, usual = resolve(other.name, None, prepared.whole)
    among = "" if other.candidates == usual else f"-{other.candidates}"
    return f"-{other.name}{among}{sample}"
