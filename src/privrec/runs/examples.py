"""Some test people with what they liked and what they get, of public and made-up data alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from privrec.algorithms.prepared import PreparedRun
from privrec.data.clients import Clients
from privrec.evaluation.protocols import Held
from privrec.types import IntArray

_PEOPLE, _LIKES, _TOP = 10, 8, 10
_LOOKED_AT = 8 * _PEOPLE
"""Test people among whom those are sought who have likes on the device and likes to test."""


Lists = Callable[[pl.Series, Clients, int], pl.DataFrame]
"""(names of people, what is on their devices, how many items) -> their lists, best first."""


def examples_of(prepared: PreparedRun, lists: Lists) -> list[dict[str, Any]]:
    """Return ten test people or fewer, from the fewest items on the device to the most.

    Of each: titles that she `liked` on her device, how many `more`, how many likes are `held_out`,
    and her `list` with the `title` of each item and whether it is a `hit`, one of those likes.
    """
    test = prepared.split.test
    places = np.unique(np.linspace(0, len(test) - 1, _LOOKED_AT).round().astype(np.int64))
    held = prepared.protocol.testing(prepared.whole)(test[places])
    chosen = _chosen(held)
    if not len(chosen):
        return []
    kept, tested = held.kept.take(chosen), held.tested.take(chosen)
    names = pl.Series("user", [str(k) for k in range(len(chosen))])
    catalogue = prepared.whole.catalogue
    by_name = lists(names, kept, _TOP).partition_by("user", as_dict=True)
    found = []
    for k in range(len(chosen)):
        mine = slice(int(kept.offsets[k]), int(kept.offsets[k + 1]))
        likes = np.unique(kept.item[mine][kept.liked[mine]])
        hidden = set(tested.item[tested.offsets[k] : tested.offsets[k + 1]].tolist())
        ids = {catalogue.item_ids[item] for item in hidden}
        listed = by_name.get((str(k),))
        rows = [] if listed is None else listed.select("item", "title").iter_rows()
        found.append(
            {
                "liked": [str(catalogue.titles[item]) for item in likes[:_LIKES]],
                "more": max(0, len(likes) - _LIKES),
                "held_out": len(hidden),
                "list": [{"title": title, "hit": item in ids} for item, title in rows],
            }
        )
    return found


def _chosen(held: Held) -> IntArray:
    """Return positions of ten people who have likes on the device and likes to test, by size."""
    liked = np.bincount(held.kept.owner[held.kept.liked], minlength=len(held.kept))
    able = np.flatnonzero((liked > 0) & (held.tested.sizes > 0))
    if len(able) > _PEOPLE:
        able = able[np.linspace(0, len(able) - 1, _PEOPLE).round().astype(np.int64)]
    return able[np.argsort(held.kept.sizes[able], kind="stable")]
