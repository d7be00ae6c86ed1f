"""The figures of each person who was tested: two recommenders paired, and means over seeds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from privrec.evaluation.intervals import (
    Difference,
    Sample,
    differences,
    differences_of_seeds,
    shares_of_seeds,
)
from privrec.types import F64, IntArray

OfRuns = Sequence["People | None"]
"""The people of one run for each seed; None where their figures are not known."""


class People(NamedTuple):
    """The numbers of people and their figures, shape (people, len(KS)) each.

    `references` has the Hits@k of each reference, for the same people. `digest` says what was
    tested: it is the same where people, items and candidates are; "" if it is not known.
    """

    ids: IntArray
    hits: F64
    new_only: F64
    digest: str = ""
    references: Mapping[str, F64] = {}


def are_paired(ours: People | None, theirs: People | None) -> bool:
    """Return whether the same people were tested on the same items, as far as is known."""
    return bool(ours and theirs and ours.digest and ours.digest == theirs.digest)


def mean_hits(runs: OfRuns, reference: str | None = None) -> dict[int, Difference] | None:
    """Return the mean over seeds of Hits@k, or of a reference's, with the ends of its interval.

    None unless the figures of each person are known for all seeds.
    """
    found: list[Sample] = []
    for one in runs:
        if one is None or (reference is not None and reference not in one.references):
            return None
        found.append((one.ids, one.hits if reference is None else one.references[reference]))
    return shares_of_seeds(found)


def mean_above(runs: OfRuns, reference: str) -> dict[int, Difference] | None:
    """Return by how much Hits@k is above a reference's, paired, as a mean over seeds.

    None unless the figures of each person are known for all seeds.
    """
    found: list[Sample] = []
    for one in runs:
        if one is None or reference not in one.references:
            return None
        found.append((one.ids, one.hits - one.references[reference]))
    return differences_of_seeds(found)


def mean_difference(ours: OfRuns, theirs: OfRuns) -> dict[int, Difference] | None:
    """Return by how much our Hits@k is larger, paired seed by seed, as a mean over seeds.

    None unless the same people were tested on the same items under each seed.
    """
    found: list[Sample] = []
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None or other is None or not are_paired(mine, other):
            return None
        if len(ours) == 1:
            return differences(mine.hits, other.hits)
        found.append((mine.ids, mine.hits - other.hits))
    return differences_of_seeds(found)


def distinct(runs: OfRuns) -> int | None:
    """Return how many different people were tested under some seed; None if it is not known."""
    known = [one.ids for one in runs if one is not None]
    return len(np.unique(np.concatenate(known))) if len(known) == len(runs) else None
