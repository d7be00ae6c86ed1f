"""The data for a choice of settings: what candidates are trained on, and what they are tested on.

Candidates are settings that are compared. They see only training and validation data, nothing that
the final report tests. If people are split, candidates are tested on the second halves of some
people who do not train. If lines are split, a part of each person's training lines is held out: a
random fifth, or the last like. A random tenth chose worse settings on three benchmarks, and held
out no line of short lists.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privrec.data.clients import Clients, drawn_places
from privrec.data.federation import Federation, chunks
from privrec.data.text import brief
from privrec.evaluation.protocols import Held, Protocol, View, before_last_like
from privrec.seeds import client_words, rng
from privrec.types import F64, BoolArray, IntArray

FEWEST = 50
"""The smallest number of tested people for a choice. Chosen by hand: with fewer people, the
standard error of a difference is larger than most differences between settings."""
_ENOUGH = 1000
"""The number of people to test candidates on. If there are fewer validation people, up to a fifth
of the training people are tested too. A sample is never smaller than this, even with more than
`_SCORES` scores."""
_SCORES = 10**8
"""The most scores (people times items) of one candidate, which limits the time. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """The data on which candidates are trained and tested.

    Candidates train on the people in `train`, with the lines in `federation`. They are tested on
    the people in `tested`, whose lines `view` splits. `what` names the held-out part.
    """

    federation: Federation
    train: IntArray
    tested: IntArray
    view: View
    protocol: Protocol
    what: str

    __repr__ = brief

    @property
    def figure(self) -> str:
        """The name of the metric by which candidates are compared."""
        return "Recall@20" if self.protocol.name == "files" else "Hits@20"


def trial_of(
    protocol: Protocol, whole: Federation, train: IntArray, validation: IntArray
) -> Trial | None:
    """Return the trial for a run with this protocol; None if the trial has too few people.

    Only people with a line to test count.
    """
    held_out = _people if protocol.name == "halves" else _lines
    trial = held_out(protocol, whole, train, validation)
    sizes = [trial.view(people).tested.sizes for people in chunks(trial.tested, 8192)]
    looked_at = sum(int((size > 0).sum()) for size in sizes)
    return trial if looked_at >= FEWEST and len(trial.train) >= FEWEST else None


def is_better(figures: F64, than: F64) -> bool:
    """Return whether the mean of `figures` is higher by more than one standard error.

    Both have a value for each of the same people, in the same order.

    >>> is_better(np.array([0.5, 0.6, 0.7, 0.7]), np.array([0.4, 0.5, 0.6, 0.7]))
    True
    """
    gain = figures - than
    return bool(gain.mean() > gain.std() / np.sqrt(len(gain)))


def _people(protocol: Protocol, whole: Federation, train: IntArray, validation: IntArray) -> Trial:
    """Return the trial for split people; validation and some training people are tested."""
    more = int(np.clip(_ENOUGH - len(validation), 0, len(train) // 5))
    words = client_words(protocol.seed, 0, "choice", whole.ids(train), np.zeros(1, np.int64))
    looked_at = np.zeros(len(train), np.bool_)
    looked_at[np.argsort(words, kind="stable")[:more]] = True
    tested = np.concatenate([validation, train[looked_at]])
    return Trial(
        federation=whole,
        train=train[~looked_at],
        tested=_some(tested, whole.n_items, protocol.seed),
        view=protocol.validating(whole),
        protocol=protocol,
        what="held-out people",
    )


def _lines(protocol: Protocol, whole: Federation, train: IntArray, validation: IntArray) -> Trial:
    """Return the trial for split lines; a fifth of each list, or the last like, is held out.

    No other lines are held out for validation, because the trial replaces the validation.
    """
    del validation
    trained = replace(protocol, validation_share=0.0).training(whole)
    if protocol.name == "leave-last":
        view, what = partial(before_last_like, trained), "the like before the last one"
    else:
        view, what = partial(_fifth, trained, protocol.seed), "a fifth of each list"
    return Trial(
        federation=replace(trained, take=lambda who: view(who).kept),
        train=train,
        tested=_some(train, whole.n_items, protocol.seed),
        view=view,
        protocol=protocol,
        what=what,
    )


def _fifth(federation: Federation, seed: int, positions: IntArray) -> Held:
    clients = federation.take(positions)
    kept = ~is_in_fifth(clients, seed)
    return Held(
        kept=clients.keep(kept),
        hidden=clients.keep(~kept),
        tested=clients.keep(~kept & clients.liked),
    )


def is_in_fifth(clients: Clients, seed: int) -> BoolArray:
    """Return for each line whether it is in a random fifth (rounded) of its client's lines.

    Which lines these are does not depend on other clients.
    """
    place = drawn_places(clients, seed=seed, round_index=0, purpose="hold out")
    return np.asarray(place < ((clients.sizes + 2) // 5)[clients.owner])


def _some(people: IntArray, n_items: int, seed: int) -> IntArray:
    """Return the people, or a sample that is small enough to score for each candidate."""
    most = max(_SCORES // n_items, _ENOUGH)
    if len(people) <= most:
        return people
    return np.sort(rng(seed, 0, "choice").choice(people, most, replace=False))
