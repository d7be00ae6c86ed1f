"""Who trains, what a device keeps, and what is tested: three protocols (docs/protocols.md)."""

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
    """Some people's data as a test sees it; the same people, in the same order, in all three.

    `kept` is on the device. `tested` are the liked lines that are ranked; somebody without any is
    not tested. `hidden` are all lines that she has and the device does not, the tested ones too.
    """

    kept: Clients
    hidden: Clients
    tested: Clients

    def take(self, people: IntArray) -> "Held":
        """Return some of the people."""
        return Held(
            kept=self.kept.take(people),
            hidden=self.hidden.take(people),
            tested=self.tested.take(people),
        )


View = Callable[[IntArray], Held]
"""Positions of people -> their data as a test sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A way of testing, as a value.

    halves is the paper's: some people are tested and never train, on one half of their lines.

    leave-last is by time: everybody trains, and is tested on her last like. Validation people hold
    back the like before it too. From the first held-out like on, nothing is in training: a line
    that came later would be a look into the future.

    files has fixed train and test files: everybody trains on the one and is tested on the other.
    Validation people hold half of their training lines out of training, to be looked at.

    `candidates` says which items a tested one is ranked among: those that the person never met, or
    all that the device does not keep; the tested one is always among them.
    """

    name: ProtocolName
    candidates: Candidates
    seed: int
    halving: Halving = "random"
    test_share: float = 0.2
    validation_share: float = 0.1

    __repr__ = brief

    def roles(self, federation: Federation) -> Split:
        """Return who trains, validates and is tested."""
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
        """Return the data that training may see: its `take` lacks everything that is held out."""
        if self.name == "halves":
            return federation
        return replace(
            federation, take=lambda who: self._trained(federation.take(who)), take_test=None
        )

    def testing(self, federation: Federation) -> View:
        """Return what the final report sees of the whole data."""
        if self.name == "halves":
            return self.validating(federation)
        if self.name == "leave-last":
            return partial(self._last_like, federation, validation=False)
        if federation.take_test is None:
            raise SettingsError(_no_test_file(federation))
        return partial(_in_files, federation.take, federation.take_test)

    def validating(self, federation: Federation) -> View:
        """Return what a look at validation people sees of the whole data."""
        if self.name == "leave-last":
            return partial(self._last_like, federation, validation=True)
        return partial(in_halves, federation, self.seed, self.halving)

    def _validates(self, ids: IntArray) -> BoolArray:
        return chosen(ids, self.validation_share, seed=self.seed, purpose="validation")

    def _trained(self, clients: Clients) -> Clients:
        """Return what training sees of people's lines."""
        if self.name == "leave-last":
            back, _ = self._held_back(clients)
            return clients.keep(_row(clients) < _cut(clients, back)[clients.owner])
        first = first_half(clients, seed=self.seed, halving=self.halving)
        return clients.keep(first | ~self._validates(clients.ids)[clients.owner])

    def _held_back(self, clients: Clients) -> tuple[IntArray, IntArray]:
        """Return how many of each client's last likes training does not see, and a test's device.

        Two and one for validation people, one and one for others; none for whoever has no like
        left then.
        """
        most = np.where(self._validates(clients.ids), 2, 1)
        enough = _likes(clients) > most
        return np.where(enough, most, 0), np.where(enough, 1, 0)

    def _last_like(self, federation: Federation, positions: IntArray, *, validation: bool) -> Held:
        """Return the data before the last like; for validation, before the like before it."""
        clients = federation.take(positions)
        trained, tested = (_cut(clients, back) for back in self._held_back(clients))
        if validation:
            return _cut_at(clients, trained, tested)
        return _cut_at(clients, tested, clients.offsets[1:])


def in_halves(federation: Federation, seed: int, halving: Halving, positions: IntArray) -> Held:
    """Return people's data where they keep one half of their lines and the other is tested.

    Whoever has fewer than two likes is not tested.
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
    """Return people's data where they keep the lines before their last like, which is tested.

    Whoever has one like keeps it and is not tested.
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
    """Return the protocol and candidates asked for, or those that go with the data ("auto").

    Raises:
        SettingsError: There is no such protocol, or the data does not have what it needs.
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
    """Return how many likes each client has."""
    return np.bincount(clients.owner[clients.liked], minlength=len(clients))


def _row(clients: Clients) -> IntArray:
    return np.arange(len(clients.item))


def _cut(clients: Clients, back: IntArray) -> IntArray:
    """Return for each client the row of her `back`-th like from the end, or where her rows end."""
    likes, until = np.flatnonzero(clients.liked), np.cumsum(_likes(clients))
    cut = clients.offsets[1:].copy()
    some = back > 0
    cut[some] = likes[until[some] - back[some]]
    return cut


def _cut_at(clients: Clients, cut: IntArray, end: IntArray) -> Held:
    """Return the rows before `cut` as kept, that row as tested, and those up to `end` as hidden."""
    row, owner = _row(clients), clients.owner
    hidden: BoolArray = (row >= cut[owner]) & (row < end[owner])
    return Held(
        kept=clients.keep(row < cut[owner]),
        hidden=clients.keep(hidden),
        tested=clients.keep(hidden & (row == cut[owner])),
    )
