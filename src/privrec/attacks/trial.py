"""A training that an attacker observes. A coin toss decides for some people whether they take part.

An audit invents these people and calls them canaries; the training treats them like all other
people. It is the training of `privrec train`, with a run folder and a ledger. For each round, the
program records what is sent to devices, who is drawn, and what is published. The run folder is
deleted at the end.
"""

import hashlib
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipe import Plan, Task
from privrec.algorithms.recipes import configure
from privrec.core.bound import bounded
from privrec.core.contribution import Contribution, shapes_of
from privrec.core.phase import Cohort, Phase, ServerState, Stage, Told
from privrec.core.round import one_by_one
from privrec.data.clients import Clients, joined
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.errors import SettingsError
from privrec.privacy.aggregate import CohortTotal, Published
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs.loop import train
from privrec.seeds import rng
from privrec.settings import RunSettings
from privrec.simulate.cost import available_memory
from privrec.types import F64, BoolArray, IntArray, Law, Leaf, OnProgress, Params

EVERYBODY_TRAINS: Mapping[str, Any] = {
    "test_share": 1e-9,
    "validation_share": 0.0,
    "protocol": "halves",
}
"""Settings under which no person is held out for tests."""
_LINES = 40
"""The most lines (interactions) of a canary. Chosen by hand."""
_RARE = 2
"""The number of these lines that are about rare items, which few other people have."""
_PAIR_BYTES = 40
"""The memory of an audit for each pair of canaries: about five numbers."""
_FIRST_ID = 2**40
"""The first id of a canary: above the ids of synthetic people. Other people's ids are hashes, which
hardly ever equal it."""
_MOST_ITEMS = 5000
"""How many items the person who likes all items has at most; more would make a network slow. Chosen
by hand."""
_HUGE = 1e30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Canaries:
    """The canaries' data. `coins` are independent, fair, and true for those who take part."""

    people: Clients
    coins: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedRound:
    """One round: what was sent to devices, the bound on each contribution, and the published sum.

    `people` are the positions of the people drawn. `noise` is the published sum minus the true sum,
    which no attacker knows. `clip_norm` is the bound that the noise is made for, and `kept_norm`
    the bound that devices were given. `count_noise` is the noise on the count of adaptive clipping,
    or None.
    """

    phase: Phase
    round_index: int
    people: IntArray
    noise: Mapping[str, Leaf]
    told: Told
    clip_norm: float
    published: Published
    kept_norm: float
    count_noise: float | None

    @property
    def name(self) -> str:
        """The name of the round in findings."""
        return f"round {self.round_index} ({self.phase.name})"

    @property
    def is_private(self) -> bool:
        """Whether the sum has noise."""
        return self.phase.release.is_private

    @property
    def is_laplace(self) -> bool:
        """Whether the noise is Laplace noise; otherwise it is Gaussian."""
        return self.phase.release.mechanism == "laplace"

    @property
    def noise_scale(self) -> float:
        """The scale of the noise according to the phase's settings."""
        return self.phase.aggregator.noise_scale(self.clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A finished training: rounds, the ledger as written to the run folder, and parameters."""

    task: Task[RunSettings]
    rounds: list[ObservedRound]
    ledger: PrivacyLedger
    params: Params


def run_trial(
    recipe: str,
    others: Federation,
    canaries: Canaries,
    *,
    seed: int,
    settings: Mapping[str, Any],
    on_progress: OnProgress | None = None,
) -> Trial:
    """Train on the others and on the canaries whose coin is true; return what was observed."""
    law: Law = getattr(configure(recipe, others.name, settings), "sampling", "fixed")
    rounds: list[ObservedRound] = []
    with tempfile.TemporaryDirectory(prefix="privrec-trial-") as folder:
        run = train(
            recipe,
            with_canaries(others, canaries, law),
            out=Path(folder) / "run",
            observe=partial(_observed, rounds),
            on_progress=on_progress,
            seed=seed,
            **settings,
            **EVERYBODY_TRAINS,
        )
        params = dict(run.model().params)
        return Trial(task=run.prepared.task, rounds=rounds, ledger=run.ledger, params=params)


def by_phase(rounds: Sequence[ObservedRound]) -> dict[str, list[ObservedRound]]:
    """Group the rounds by the name of their phase."""
    phases: dict[str, list[ObservedRound]] = defaultdict(list)
    for each in rounds:
        phases[each.phase.name].append(each)
    return phases


def flattened(sums: Mapping[str, Leaf]) -> F64:
    """Return the sums as one vector, in the order in which noise is added."""
    return np.concatenate([np.ravel(np.asarray(sums[name], np.float64)) for name in sorted(sums)])


def sender(
    phase: Phase, told: Told, round_index: int, clip_norm: float, example: Clients
) -> Callable[[Clients], Contribution]:
    """Return a function that computes and bounds one person's contribution, as in a round.

    `example` are any people of the same data set.
    """
    blank = example.take(np.zeros(1, np.int64))
    blank = blank.keep(np.zeros(len(blank.item), np.bool_))
    expected = shapes_of(phase.device.contribute(told, blank, round_index))
    if expected is None:
        raise ValueError(f"{phase.name}: `contribute` returns an unsound contribution")

    def send(person: Clients) -> Contribution:
        sent = phase.device.contribute(told, person, round_index)
        return bounded(sent, clip_norm, phase.aggregator.norm, expected=expected).contribution

    return send


# --- observing ----------------------------------------------------------------------------------


def _observed(rounds: list[ObservedRound], plan: Plan) -> Plan:
    return replace(plan, stages=cache(partial(_observed_stages, rounds, plan)))


def _observed_stages(rounds: list[ObservedRound], plan: Plan) -> tuple[Stage, ...]:
    return tuple(
        _ObservedPhase(stage, rounds).stage() if isinstance(stage, Phase) else stage
        for stage in plan.stages()
    )


@dataclass(slots=True, eq=False)
class _ObservedPhase:
    """A phase that records what is sent to devices, the sum, and what is published."""

    phase: Phase
    rounds: list[ObservedRound]
    told: Told = field(default_factory=dict)
    people: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    kept_norm: float = 0.0
    total: CohortTotal | None = None

    def stage(self) -> Phase:
        device = replace(self.phase.device, kernel=self.add_up)
        return replace(self.phase, device=device, tell=self.tell, absorb=self.absorb)

    def tell(self, state: ServerState) -> Told:
        told = self.phase.tell(state)
        self.told = {name: np.asarray(leaf) for name, leaf in told.items()}
        return told

    def add_up(self, told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        run = self.phase.device.kernel or partial(one_by_one, self.phase)
        self.total = run(told, cohort, round_index, clip_norm)
        self.people, self.kept_norm = cohort.people, clip_norm
        return self.total

    def absorb(self, state: ServerState, published: Published) -> ServerState:
        if self.total is None:
            raise RuntimeError(f"{self.phase.name}: a sum was absorbed that nobody added up")
        count = self.phase.aggregator.count_behind(state.clip_norm, published.clip_norm)
        true_count = self.total._replace(clients=len(self.people)).balance
        self.rounds.append(
            ObservedRound(
                phase=self.phase,
                round_index=state.round_index,
                people=self.people,
                noise=_noise(published, self.total),
                told=self.told,
                clip_norm=state.clip_norm,
                published=published,
                kept_norm=self.kept_norm,
                count_noise=None if count is None else count - true_count,
            )
        )
        self.total = None
        return self.phase.absorb(state, published)


def _noise(published: Published, total: CohortTotal) -> dict[str, Leaf]:
    return {
        name: np.asarray(np.asarray(array) - np.asarray(total.update[name]), np.float32)
        for name, array in published.update.items()
    }


# --- people who take part by the toss of a coin --------------------------------------------------


def make_canaries(federation: Federation, count: int, *, seed: int) -> Canaries:
    """Return `count` canaries for a data set.

    Each likes random items, a few of them rare. Features, values and contexts are copied from
    random real people and lines, so that the training accepts them.
    """
    if count < 20:
        raise SettingsError(f"`canaries` must be >= 20; got {count}")
    free = available_memory()
    if free is not None and _PAIR_BYTES * count**2 > free:
        most = math.isqrt(free // _PAIR_BYTES)
        raise SettingsError(
            f"`canaries` must be <= {most:,}, for which the free memory is enough; got {count:,}"
        )
    draw = rng(seed, 0, "canaries")
    models = federation.take(draw.integers(federation.n_clients, size=count))
    liked = np.flatnonzero(models.liked)
    if not len(liked):
        raise SettingsError(f"{federation.name}: nobody likes anything; an audit needs likes")
    n_items = federation.n_items
    lines = min(_LINES, federation.largest, max(n_items // 4, 2), n_items)
    items = _items(federation, count, lines, draw)
    copied = draw.choice(liked, count * lines)
    people = Clients(
        ids=_FIRST_ID + np.arange(count),
        offsets=lines * np.arange(count + 1),
        item=items.ravel().astype(np.int32),
        value=models.value[copied],
        liked=models.liked[copied],
        time=np.sort(models.time[copied].reshape(count, lines), axis=1).ravel(),
        features=models.features,
        context={name: bag.take(copied) for name, bag in models.context.items()},
    )
    return Canaries(people=people, coins=draw.random(count) < 0.5)


def _items(federation: Federation, count: int, lines: int, draw: np.random.Generator) -> IntArray:
    """Return each canary's items, shape (count, lines), with the rare items first."""
    n = federation.n_items
    sample = federation.take(np.unique(draw.integers(federation.n_clients, size=2000)))
    often = np.bincount(sample.item, minlength=n)
    # Equally rare items are in random order.
    rare = np.lexsort((draw.random(n), often))[: max(n // 4, lines)]
    few = min(_RARE, lines - 1)
    items = np.empty((count, lines), np.int64)
    for k in range(count):
        items[k, :few] = rare[(k * few + np.arange(few)) % len(rare)]
        others = draw.permutation(n)
        items[k, few:] = others[~np.isin(others, items[k, :few])][: lines - few]
    return items


def odd_people(person: Clients, items: IntArray) -> dict[str, Clients]:
    """Return people with unusual data, for whom a bound may fail, by a description.

    Their features and contexts are those of `person`. `items` are all items of the catalogue; a
    person with few items has the first of them.
    """
    made = partial(_with_lines, person)
    lines = np.arange(len(person.item))
    twice, other = np.tile(lines, 2), np.concatenate([lines, np.roll(lines, 1)])
    first, every = items[: len(lines)], items[:_MOST_ITEMS]
    both, same = np.tile(first, 2), np.repeat(first[:1], len(twice))

    return {
        "without lines": made(lines[:0], items[:0]),
        "of one line": made(lines[:1], items[:1]),
        "who dislikes all": made(lines, first, liked=False),
        "of likes and dislikes": made(lines, first, lines % 2 == 0),
        "who likes and dislikes each item": made(twice, both, np.arange(len(twice)) < len(lines)),
        "of each line twice, in other contexts": made(other, both),
        "of one item in all lines": made(other, same),
        "of one item in all lines, liked and disliked": made(other, same, other % 2 == 0),
        "who likes every item": made(np.arange(len(every)) % len(lines), every),
        "of huge numbers": replace(
            made(lines, first),
            value=np.full_like(person.value, _HUGE),
            features=_huge(person.features),
            context=_huge(person.context),
        ),
    }


def _with_lines(
    person: Clients, lines: IntArray, items: IntArray, liked: BoolArray | bool = True
) -> Clients:
    return replace(
        person,
        offsets=np.array([0, len(lines)]),
        item=items.astype(np.int32),
        value=person.value[lines],
        liked=np.full(len(lines), liked),
        time=np.arange(len(lines), dtype=np.float64),
        context={name: bag.take(lines) for name, bag in person.context.items()},
    )


def _huge(bags: Bags) -> Bags:
    return {
        name: bag._replace(weights=np.full_like(bag.weights, _HUGE)) for name, bag in bags.items()
    }


def with_canaries(federation: Federation, canaries: Canaries, law: Law) -> Federation:
    """Return the data set with the canaries whose coin is true, after all other people.

    For cohorts of a fixed size, the guarantee is about replacing one person by another. There the
    other canaries are people without data. Under Poisson sampling, they are left out.
    """
    people, n = canaries.people, federation.n_clients
    if law == "fixed":
        present = people.keep(canaries.coins[people.owner])
    else:
        present = people.take(np.flatnonzero(canaries.coins))

    ids = np.concatenate([federation.ids(np.arange(n)), present.ids])
    mark = hashlib.sha256(federation.fingerprint.encode())
    for array in (present.ids, present.offsets, present.item):
        mark.update(np.ascontiguousarray(array).tobytes())
    return replace(
        federation,
        n_clients=n + len(present),
        take=partial(_take_from_both, federation, present),
        ids=lambda positions: ids[positions],
        population=f"{federation.population}, audited",
        people=federation.people + (len(present) if law == "fixed" else len(canaries.coins)),
        fingerprint=mark.hexdigest(),
        take_test=None,
    )


def _take_from_both(federation: Federation, present: Clients, positions: IntArray) -> Clients:
    """Return people at these positions; the canaries follow the people of the data set."""
    n = federation.n_clients
    made_up = positions >= n
    if not made_up.any():
        return federation.take(positions)
    both = joined([federation.take(positions[~made_up]), present.take(positions[made_up] - n)])
    # Restore the order of `positions`.
    return both.take(np.argsort(np.argsort(made_up, kind="stable")))
