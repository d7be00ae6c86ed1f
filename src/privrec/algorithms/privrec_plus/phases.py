"""PrivRec+: two sums over people, a history tower from them in closed form, and rounds on top.

Each participant contributes to two sums: one counts popularity, one counts which items occur
together (`fit.py`). Rounds of training may follow (`softmax.py`). Under noise each sum is one
release, and so is each round. This file also splits the privacy budget among them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from privrec.algorithms.budgets import sampling_of
from privrec.algorithms.privrec_plus.fit import (
    Frequent,
    Regression,
    exact_tower,
    frequent,
    history_moments,
    noisy_tower,
    popularity_of,
    taste_moments,
)
from privrec.algorithms.privrec_plus.layout import Layout, layout_of
from privrec.algorithms.privrec_plus.rows import SparseRows, rows_of
from privrec.algorithms.privrec_plus.scoring import BIAS, POPULARITY
from privrec.algorithms.privrec_plus.softmax import softmax_phase
from privrec.algorithms.privrec_plus.tower import bias_of, blank
from privrec.core.phase import Phase, ServerState
from privrec.data.catalogue import Catalogue
from privrec.data.federation import Federation, chunks
from privrec.data.splits import Split
from privrec.errors import SettingsError
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published, gaussian, plain
from privrec.privacy.budget import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.sampling import Sampling
from privrec.settings import RunConfig
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.types import Array, IntArray, Params

POPULAR, MOMENTS = "popularity", "moments"
"""The names of the first two stages."""

BOUND = 1.0
"""The L2 bound on what one person adds to a noised sum."""

_RANK_UNDER_NOISE = 64
"""The length of the tower's vectors under noise. Chosen by hand: at ε = 8 on MovieLens-1M, 56
directions were above the noise (docs/results.md)."""
_PEOPLE_PER_NOISE = 12.0
"""The factor of `popularity_share`. Chosen by hand; not tuned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """What the phases of PrivRec+ are built from."""

    config: RunConfig
    federation: Federation
    split: Split
    layout: Layout
    rank: int

    def rows(self, cohort: IntArray) -> Iterator[SparseRows]:
        """Yield people's rows, a few hundred at a time; each device has one row."""
        return (rows_of(self.federation.take(part), self.layout) for part in chunks(cohort))

    def kept(self, before: Params | None) -> dict[str, Array]:
        """Return the tower of the phase before; if none, one that scores all items alike."""
        dislikes = self.config.dislike_input > 0
        start = blank(self.layout, rank=self.rank, dislikes=dislikes)
        start[POPULARITY] = np.zeros(self.layout.n_items, np.float32)
        known = before or {}
        return {name: jnp.asarray(known.get(name, array)) for name, array in start.items()}

    def phase(self, name: str, first: int, **parts: Any) -> Phase:
        """Return a phase of one round; it keeps the parameters of the phase before."""

        def start(before: Params | None) -> ServerState:
            params = self.kept(before)
            return ServerState(round_index=first, params=params, opt_state=(), clip_norm=BOUND)

        return Phase(
            name=name,
            rounds=1,
            first=first,
            population=self.split.train,
            start=start,
            ranks=name == MOMENTS,
            **parts,
        )

    def phone(self, what: str, down: int, pairs: bool, params: Params) -> DeviceCost:
        """Return what contributing to a sum costs one device."""
        person = self.federation.take(usual_person(self.federation, self.split.train))
        entries = rows_of(person, self.layout).nnz
        return DeviceCost(
            what=what,
            bytes_down=down,
            # Per entry: a position and a weight. The trusted server computes the products.
            bytes_up=8 * entries,
            multiply_adds=entries * (entries + 1) // 2 if pairs else 2 * entries,
            milliseconds=milliseconds(lambda: rows_of(person, self.layout)),
        )


def history_stages(config: RunConfig, federation: Federation, split: Split) -> tuple[Phase, ...]:
    """Return the phases of PrivRec+: popularity, moments, and rounds on top if there are any."""
    layout = layout_for(config, federation.catalogue)
    rank = rank_for(config, federation)
    task = _Task(config=config, federation=federation, split=split, layout=layout, rank=rank)
    first, second, rest = split_budget(config, split, federation.n_items)
    moments = _exact_phase(task, second) if config.mechanism == "none" else _noisy(task, second)
    sums = (_popularity_phase(task, first), moments)
    if not config.rounds:
        return sums
    people = split.train
    return (
        *sums,
        softmax_phase(config, federation, people, rest, layout=layout, first=2, kept=task.kept),
    )


def _popularity_phase(task: _Task, aggregator: Aggregator) -> Phase:
    """Return the first sum: how popular each item is."""

    def add_up(told: None, cohort: IntArray, round_index: int, clip_norm: float) -> CohortTotal:
        dislike = task.config.dislike_input
        return CohortTotal({POPULARITY: popularity_of(task.rows(cohort), task.layout, dislike)})

    def absorb(state: ServerState, published: Published) -> ServerState:
        found = published.update[POPULARITY]
        # If the budget ends after this phase, the model can still rank by popularity.
        bias = bias_of(np.asarray(found), np.zeros(0, np.int64))
        return _with(state, {POPULARITY: found, BIAS: bias})

    return task.phase(
        POPULAR,
        0,
        aggregator=aggregator,
        tell=lambda state: None,
        add_up=add_up,
        absorb=absorb,
        phone=partial(task.phone, "popularity round", 0, False),
    )


def _exact_phase(task: _Task, aggregator: Aggregator) -> Phase:
    """Return the second sum without noise: the moments of whole rows."""
    how, layout = regression_of(task.config), task.layout

    def tell(state: ServerState) -> IntArray:
        popularity = _popularity(state)
        return frequent(popularity, noise_scale=0.0, most=task.config.history_items)

    def add_up(kept: IntArray, cohort: IntArray, round_index: int, clip_norm: float) -> CohortTotal:
        return CohortTotal(history_moments(task.rows(cohort), layout, kept, how))

    def absorb(state: ServerState, published: Published) -> ServerState:
        kept = tell(state)
        tower = exact_tower(published.update, layout, kept, how, task.rank)
        return _with(state, {**tower, BIAS: bias_of(_popularity(state), kept)})

    down = 4 * min(layout.n_items, task.config.history_items)
    return task.phase(
        MOMENTS,
        1,
        aggregator=aggregator,
        tell=tell,
        add_up=add_up,
        absorb=absorb,
        phone=partial(task.phone, "moments round", down, True),
    )


def _noisy(task: _Task, aggregator: Aggregator) -> Phase:
    """Return the second sum under noise: the moments of tastes over the frequent items."""
    layout, dislike = task.layout, task.config.dislike_input
    scale = aggregator.noise_scale(BOUND)

    def tell(state: ServerState) -> Frequent:
        popularity = _popularity(state)
        kept = frequent(popularity, noise_scale=scale, most=task.config.history_items)
        return Frequent.of(popularity, kept)

    def add_up(items: Frequent, cohort: IntArray, round_index: int, bound: float) -> CohortTotal:
        return CohortTotal({"triangle": taste_moments(task.rows(cohort), layout, items, dislike)})

    def absorb(state: ServerState, published: Published) -> ServerState:
        items = tell(state)
        triangle = np.asarray(published.update["triangle"])
        tower = noisy_tower(
            triangle, layout, items, dislike=dislike, rank=task.rank, noise_scale=scale
        )
        return _with(state, {**tower, BIAS: bias_of(_popularity(state), items.kept)})

    # A phone receives the positions of the items and their weights.
    down = 8 * min(layout.n_items, task.config.history_items)
    return task.phase(
        MOMENTS,
        1,
        aggregator=aggregator,
        tell=tell,
        add_up=add_up,
        absorb=absorb,
        phone=partial(task.phone, "moments round", down, True),
    )


def _popularity(state: ServerState) -> npt.NDArray[np.float64]:
    return np.asarray(state.params[POPULARITY], np.float64)


def _with(state: ServerState, found: Mapping[str, npt.ArrayLike]) -> ServerState:
    new = {name: jnp.asarray(array) for name, array in found.items()}
    return replace(state, params={**state.params, **new})


def layout_for(config: RunConfig, catalogue: Catalogue) -> Layout:
    """Return the columns of a row; under noise only items, because each column adds noise."""
    if config.mechanism != "none":
        return Layout(n_items=catalogue.n_items)
    layout = layout_of(catalogue.schema, catalogue.n_items)
    return replace(
        layout,
        users=layout.users if config.feature_input else (),
        contexts=layout.contexts if config.context_input else (),
    )


def rank_for(config: RunConfig, federation: Federation) -> int:
    """Return the length of the tower's vectors; 0 means the size of the catalogue."""
    if config.mechanism != "none":
        return _RANK_UNDER_NOISE
    if config.history_rank == 0 and federation.n_items > config.history_items:
        raise SettingsError(
            f"`history_rank` must be > 0 for more than {config.history_items:,} items"
            f" (`history_items`); got 0 with {federation.n_items:,} items"
        )
    return min(config.history_rank, federation.n_items)


def regression_of(config: RunConfig) -> Regression:
    """Return the settings of the regression."""
    return Regression(
        dislike=config.dislike_input,
        feature=config.feature_input,
        context=config.context_input,
        dislike_target=config.dislike_target,
        l2=config.history_l2,
        dropout=config.history_dropout,
    )


def split_budget(
    config: RunConfig, split: Split, n_items: int
) -> tuple[Aggregator, Aggregator, Aggregator]:
    """Return the aggregators of the two sums and of the rounds; together they cost `epsilon`.

    With rounds on top, the sums get the share `stage1_share` of ε. Without, they get all of it.
    """
    public, true = split.public_train, len(split.train)
    users = true if config.sampling == "fixed" else public
    everybody, some = (
        sampling_of(config.sampling, min(cohort, users), true=true, public=public)
        for cohort in (config.stage1_cohort, config.cohort)
    )
    if config.mechanism == "none":
        return plain(everybody), plain(everybody), plain(some)
    if config.mechanism != "gaussian":
        raise SettingsError(f"{config.recipe} takes Gaussian noise only; got {config.mechanism}")
    if config.clip_quantile and not config.rounds:
        raise SettingsError(
            "`clip_quantile` is for rounds of training; `rounds` is 0, and the two sums have a"
            " fixed bound"
        )
    given, epsilon = config.noise_multiplier, config.epsilon

    def found(sampling: Sampling, rounds: int, share: float, spent: PrivacyLedger) -> float:
        return find_noise(
            sampling,
            rounds=rounds,
            epsilon=epsilon and share * epsilon,
            delta=config.delta,
            mechanism="gaussian",
            spent=spent,
        )

    part = config.stage1_share if config.rounds else 1.0
    whole = found(everybody, 1, part, PrivacyLedger()) if given is None else given
    popular = popularity_share(everybody.cohort, n_items, whole)
    first = gaussian(everybody, clip_norm=BOUND, noise_multiplier=whole / math.sqrt(popular))
    check_budget(first.release, rounds=1, epsilon=epsilon, delta=config.delta)
    spent = PrivacyLedger().record(first.release)
    rest = found(everybody, 1, part, spent) if given is None else whole / math.sqrt(1 - popular)
    second = gaussian(everybody, clip_norm=BOUND, noise_multiplier=rest)
    check_budget(second.release, rounds=1, epsilon=epsilon, delta=config.delta, spent=spent)
    if not config.rounds:
        return first, second, plain(some)
    spent = spent.record(second.release)
    third = gaussian(
        some,
        clip_norm=config.clip_norm,
        noise_multiplier=found(some, config.rounds, 1.0, spent) if given is None else given,
        clip_quantile=config.clip_quantile or None,
    )
    rounds = config.rounds
    check_budget(third.release, rounds=rounds, epsilon=epsilon, delta=config.delta, spent=spent)
    return first, second, third


def popularity_share(people: int, n_items: int, noise_multiplier: float) -> float:
    """Return the share of the precision 1/z² that goes to popularity: 5 to 50 %.

    The largest of n noise values is about z√(2 ln n). With fewer people per unit of noise, a
    larger share of the budget is needed to tell popular items from unpopular ones. The formula
    and its limits were chosen by hand; not tuned.
    """
    wanted = _PEOPLE_PER_NOISE * math.log(max(n_items, 2)) * noise_multiplier / people
    return min(max(wanted, 0.05), 0.5)
