"""Protocols of testing: who trains, what a device keeps, and what is tested (docs/protocols.md)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import numpy as np

from privrec.data.clients import Clients, Split, chosen, first_half, split_clients
from privrec.data.federation import Federation
from privrec.data.text import brief
from privrec.errors import SettingsError, one_of
from privrec.types import BoolArray, Candidates, Halving, IntArray, ProtocolName

PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
CANDIDATES: tuple[Candidates, ...] = get_args(Candidates)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """The data of some people in a test. All three fields have the same people in the same order.

    `kept` is on the device. `hidden` has the other lines. In a validation, lines that only the
    final test asks for are in neither: the last like and all lines after it (leave-last), or the
    lines of the test file (files). `tested` has the liked lines of `hidden` that are ranked; a
    person without one is not tested.
    """

    kept: Clients
    hidden: Clients
    tested: Clients

    def take(self, people: IntArray) -> "Held":
        """Return the data of some of the people."""
        return Held(
            kept=self.kept.take(people),
            hidden=self.hidden.take(people),
            tested=self.tested.take(people),
        )


View = Callable[[IntArray], Held]
"""A function from positions of people to their data in a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol of testing.

    halves is the paper's protocol. Some people never train and are tested on one half of their
    lines.

    leave-last splits by time. All people train, and each is tested on her last like. Validation
    people also hold out the like before the last one. A person's training lines end before her
    first held-out like, because later lines would reveal the future.

    files has fixed train and test files. All people train on the train file and are tested on the
    test file. Validation people hold out half of their lines in the train file.

    `candidates` are the items among which a tested item is ranked, besides itself: the items that
    the person never had ("unseen"), or all items that the device does not keep ("not-kept").
    """

    name: ProtocolName
    candidates: Candidates
    seed: int
    halving: Halving = "random"
    test_share: float = 0.2
    validation_share: float = 0.1

    __repr__ = brief

    def roles(self, federation: Federation) -> Split:
        """Return the people who train, validate and are tested."""
        everybody = np.arange(federation.n_clients)
        if self.name == "halves":
            return split_clients(
                federation.ids(everybody),
                seed=self.seed,
                test_share=self.test_share,
                validation_share=self.validation_share,
                people=federation.people,
            )
        return Split(
            public_train=federation.people,
            train=everybody,
            validation=everybody[self._validates(federation.ids(everybody))],
            test=everybody,
        )

    def training(self, federation: Federation) -> Federation:
        """Return the data for training; its `take` leaves out all held-out lines."""
        if self.name == "halves":
            return federation
        return replace(
            federation, take=lambda who: self._trained(federation.take(who)), take_test=None
        )

    def testing(self, federation: Federation) -> View:
        """Return the view of the whole data for the final report."""
        if self.name == "halves":
            return self.validating(federation)
        if self.name == "leave-last":
            return partial(self._last_like, federation, validation=False)
        if federation.take_test is None:
            raise SettingsError(_no_test_file(federation))
        return partial(_in_files, federation.take, federation.take_test)

    def validating(self, federation: Federation) -> View:
        """Return the view of the whole data for validation people."""
        if self.name == "leave-last":
            return partial(self._last_like, federation, validation=True)
        return partial(in_halves, federation, self.seed, self.halving)

    def _validates(self, ids: IntArray) -> BoolArray:
        return chosen(ids, self.validation_share, seed=self.seed, purpose="validation")

    def _trained(self, clients: Clients) -> Clients:
        if self.name == "leave-last":
            back, _ = self._held_back(clients)
            return clients.keep(_row(clients) < _cut(clients, back)[clients.owner])
        first = first_half(clients, seed=self.seed, halving=self.halving)
        return clients.keep(first | ~self._validates(clients.ids)[clients.owner])

    def _held_back(self, clients: Clients) -> tuple[IntArray, IntArray]:
        """Return how many last likes of each client are hidden in training, and on a test's device.

        These are two and one for validation people, one and one for other people. Both are 0 if a
        person would have no like left.
        """
        most = np.where(self._validates(clients.ids), 2, 1)
        enough = _likes(clients) > most
        return np.where(enough, most, 0), np.where(enough, 1, 0)

    def _last_like(self, federation: Federation, positions: IntArray, *, validation: bool) -> Held:
        """Return the data for a test on the last like; for validation, on the like before it."""
        clients = federation.take(positions)
        trained, tested = (_cut(clients, back) for back in self._held_back(clients))
        if validation:
            return _cut_at(clients, trained, tested)
        return _cut_at(clients, tested, clients.offsets[1:])


def in_halves(federation: Federation, seed: int, halving: Halving, positions: IntArray) -> Held:
    """Return the data of people who keep one half of their lines and are tested on the other half.

    A person with fewer than two likes is not tested.
    """
    clients = federation.take(positions)
    first = first_half(clients, seed=seed, halving=halving)
    enough = (_likes(clients) >= 2)[clients.owner]
    return Held(
        kept=clients.keep(first),
        hidden=clients.keep(~first),
        tested=clients.keep(~first & clients.liked & enough),
    )


def before_last_like(federation: Federation, positions: IntArray) -> Held:
    """Return the data of people who keep the lines before their last like, which is tested.

    A person with one like keeps it and is not tested.
    """
    clients = federation.take(positions)
    back = np.where(_likes(clients) > 1, 1, 0)
    return _cut_at(clients, _cut(clients, back), clients.offsets[1:])


def _in_files(
    take: Callable[[IntArray], Clients], take_test: Callable[[IntArray], Clients], who: IntArray
) -> Held:
    hidden = take_test(who)
    return Held(kept=take(who), hidden=hidden, tested=hidden.keep(hidden.liked))


def resolve(
    name: str | None, candidates: str | None, federation: Federation
) -> tuple[ProtocolName, Candidates]:
    """Return the protocol and candidates; for None or "auto", the defaults for this data set.

    Raises:
        SettingsError: The name is unknown, or the data set lacks what the protocol needs.
    """
    if name in (None, "auto"):
        name = "halves" if federation.take_test is None else "files"
    protocol = one_of("protocol", name, PROTOCOLS)
    if protocol == "leave-last" and not federation.has_times:
        raise SettingsError(
            "`protocol` must not be 'leave-last' where lines have no times, because nobody knows"
            f" which like is the last; got it for {federation.name}"
        )
    if protocol == "files" and federation.take_test is None:
        raise SettingsError(_no_test_file(federation))
    if candidates in (None, "auto"):
        return protocol, "not-kept" if protocol == "files" else "unseen"
    return protocol, one_of("candidates", candidates, CANDIDATES)


def _no_test_file(federation: Federation) -> str:
    return (
        "`protocol` must be 'halves' or 'leave-last' for data without a test file; got 'files' for"
        f" {federation.name} ('privrec data import --test' writes one)"
    )


def _likes(clients: Clients) -> IntArray:
    return np.bincount(clients.owner[clients.liked], minlength=len(clients))


def _row(clients: Clients) -> IntArray:
    return np.arange(len(clients.item))


def _cut(clients: Clients, back: IntArray) -> IntArray:
    """Return the row of each client's `back`-th like from the end, or the end of her rows if 0."""
    likes, until = np.flatnonzero(clients.liked), np.cumsum(_likes(clients))
    cut = clients.offsets[1:].copy()
    some = back > 0
    cut[some] = likes[until[some] - back[some]]
    return cut


def _cut_at(clients: Clients, cut: IntArray, end: IntArray) -> Held:
    """Return rows before `cut` as kept, `cut` as tested, and `cut` up to `end` as hidden."""
    row, owner = _row(clients), clients.owner
    hidden: BoolArray = (row >= cut[owner]) & (row < end[owner])
    return Held(
        kept=clients.keep(row < cut[owner]),
        hidden=clients.keep(hidden),
        tested=clients.keep(hidden & (row == cut[owner])),
    )
