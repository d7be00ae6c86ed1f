"""The recipes of PrivRec+: a linear model computed from two sums over people.

The history model ("tower" in names) scores all items by a person's row: the vector of her likes,
dislikes and features. The first sum is the popularity of each item; the second says which items
occur together (`sums.py`). The server computes the model from these sums in closed form
(`solve.py`). Variants:

- Under noise, if items have public features, a small sum between the two says which features matter
  (`public.py`).
- For a large catalogue, rounds of a subspace iteration replace the second sum (`subspace.py`).
- Rounds of gradient training may follow (`softmax.py`).

Under noise, each sum and each round is one release: one noised publication that costs privacy
budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from privrec.algorithms.budgets import BOUND
from privrec.algorithms.privrec_plus.added import with_items
from privrec.algorithms.privrec_plus.budget import (
    PublicBudget,
    exact_work,
    hop_of,
    items_with_vector,
    layout_for,
    noisy_work,
    pairs_work,
    public_budget,
    public_features,
    public_kernels,
    public_work,
    rank_for,
    regression_of,
    rounds_work,
    split_budget,
    subspace_rounds,
    subspace_work,
    sweeps_work,
)
from privrec.algorithms.privrec_plus.choice import KEYS, ahead, find, usual
from privrec.algorithms.privrec_plus.hop import PAIRS, neighbours, pairs_device
from privrec.algorithms.privrec_plus.kernels import Kernels
from privrec.algorithms.privrec_plus.opinion import SECOND, SECOND_WEIGHT
from privrec.algorithms.privrec_plus.path import path_of
from privrec.algorithms.privrec_plus.public import (
    ALIGNMENTS,
    MOST_ITEMS,
    TRUST,
    Commons,
    Learned,
    Public,
    alignment_accepts,
    alignment_device,
    basis_of,
    commons_of,
    frequent_told,
    learned_from,
    moments_accepts,
    moments_device,
    public_of,
    public_start,
    tower_of,
    trust_of,
)
from privrec.algorithms.privrec_plus.rows import (
    BASIS,
    SCALE,
    Frequent,
    Hop,
    history_scorer,
    rows_of,
)
from privrec.algorithms.privrec_plus.scoring import (
    BIAS,
    DISLIKES,
    FREQUENCY,
    LIKES,
    MEAN_WEIGHT,
    OUT,
    POPULARITY,
    RECENCY,
    Layout,
    check_tower,
)
from privrec.algorithms.privrec_plus.settings import (
    NoisedPlusSettings,
    PlusSettings,
    SumsSettings,
    in_subspace,
    without_noise,
)
from privrec.algorithms.privrec_plus.softmax import softmax_phase
from privrec.algorithms.privrec_plus.solve import bias_of, blank, exact_tower, frequent, noisy_tower
from privrec.algorithms.privrec_plus.subspace import Within, noisy_subspace_phase, subspace_phase
from privrec.algorithms.privrec_plus.sums import (
    PEOPLE,
    TRIANGLE,
    WEIGHT,
    history_device,
    popularity_device,
    taste_device,
)
from privrec.algorithms.privrec_plus.sweeps import sweeps_phase
from privrec.algorithms.recipe import Choice, Plan, Recipe, Task
from privrec.core.phase import Accepted, Phase, ServerState, Stage, Told, positions, weights
from privrec.core.scorer import Scorer
from privrec.data.clients import Split
from privrec.data.federation import Federation
from privrec.errors import RunFolderError
from privrec.privacy.aggregate import Aggregator, Published
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.types import Array, Params

POPULAR, MOMENTS = "popularity", "moments"
"""The names of the stage of the first sum, and of the stage that sums moments."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """The settings, data and array shapes from which the phases of PrivRec+ are built."""

    settings: SumsSettings
    federation: Federation
    split: Split
    layout: Layout
    rank: int
    public_start: Mapping[str, npt.ArrayLike] = field(default_factory=dict)

    @property
    def in_subspace(self) -> bool:
        return in_subspace(self.settings, self.federation.n_items)

    @property
    def exact_subspace(self) -> PlusSettings | None:
        """The settings of a subspace iteration without noise, or None for any other run."""
        return without_noise(self.settings) if self.in_subspace else None

    @property
    def hop(self) -> Hop | None:
        return hop_of(self.settings, self.federation.n_items)

    @property
    def second_opinion(self) -> PlusSettings | None:
        """The settings of a run with the second model (`opinion.py`), or None for any other run."""
        exact = without_noise(self.settings)
        return exact if exact and exact.second_opinion else None

    def kept(self, before: Params | None) -> dict[str, Array]:
        """Return the parameters of the phase before, with initial values for missing parameters."""
        dislikes = self.settings.dislike_input > 0
        start = blank(self.layout, rank=self.rank, dislikes=dislikes)
        start[POPULARITY] = np.zeros(self.layout.n_items, np.float32)
        if self.exact_subspace:
            start |= {FREQUENCY: np.zeros(self.layout.size, np.float32)}
            start |= {MEAN_WEIGHT: np.zeros((), np.float32)}
        if self.hop:
            start |= self.hop.blank(self.layout.n_items)
        if exact := without_noise(self.settings):
            start |= {RECENCY: np.asarray(exact.recency, np.float32)} if exact.recency else {}
        if second := self.second_opinion:
            start[SECOND] = np.zeros((self.layout.n_items, second.second_rank), np.float32)
            start[SECOND_WEIGHT] = np.asarray(second.second_opinion, np.float32)
        start |= {name: np.asarray(array, np.float32) for name, array in self.public_start.items()}
        known = before or {}
        return {name: jnp.asarray(known.get(name, array)) for name, array in start.items()}

    def phase(self, name: str, first: int, aggregator: Aggregator, **parts: Any) -> Phase:
        """Return a phase of one round that starts with the parameters of the phase before."""

        def start(before: Params | None) -> ServerState:
            return ServerState(
                round_index=first,
                params=self.kept(before),
                opt_state=(),
                clip_norm=aggregator.clip_norm,
            )

        return Phase(
            name=name,
            rounds=1,
            first=first,
            population=self.split.train,
            aggregator=aggregator,
            start=start,
            ranks=name == MOMENTS,
            **parts,
        )

    def in_basis(self, phase: Phase, rows: int, width: int, number_bytes: int) -> Phase:
        """Return a phase of a subspace iteration with its cost and the arrays that devices accept.

        The basis has the shape (rows, width). A device sends numbers of `number_bytes` bytes.
        """
        per_entry = number_bytes * width

        def cost(params: Params) -> DeviceCost:
            simple = self.cost("subspace round", (per_entry + 8) * rows, False, params)
            entries = simple.bytes_up // 8
            return replace(
                simple,
                bytes_up=entries * (8 + per_entry),
                multiply_adds=2 * entries * self.rank,
            )

        accepts = {BASIS: Accepted(shape=(rows, width)), SCALE: weights((rows,), or_zero=True)}
        return replace(phase, device=replace(phase.device, cost=cost), accepts=accepts)

    def cost(self, what: str, down: int, pairs: bool, params: Params) -> DeviceCost:
        person = self.federation.take(usual_person(self.federation, self.split.train))
        entries = rows_of(person, self.layout).nnz
        return DeviceCost(
            what=what,
            bytes_down=down,
            # A position and a weight per entry, from which a trusted server computes the products.
            bytes_up=8 * entries,
            multiply_adds=entries * (entries + 1) // 2 if pairs else 2 * entries,
            milliseconds=milliseconds(lambda: rows_of(person, self.layout)),
        )


def plus_stages(of: Task[SumsSettings]) -> tuple[Phase, ...]:
    """Return the phases of PrivRec+: popularity, moments, and optional further sums and rounds."""
    settings, federation, split = of.settings, of.federation, of.split
    layout = layout_for(settings, federation.catalogue)
    if kernels := public_kernels(settings, federation.catalogue):
        return _public_stages(of, layout, kernels)
    rank = rank_for(settings, federation.catalogue)
    task = _Task(settings=settings, federation=federation, split=split, layout=layout, rank=rank)
    releases = subspace_rounds(settings) if task.in_subspace else 1
    first, second, rest = split_budget(settings, split, federation.n_items, sums=releases)
    sums: tuple[Phase, ...] = (_popularity_phase(task, first), _history_phase(task, second))
    if task.hop:
        sums = (*sums, _pairs_phase(task, task.hop, second, first=sums[-1].last))
    if exact := task.second_opinion:
        sums = (*sums, _second_phase(task, exact, second, sums[-1].last))
    if not settings.rounds:
        return sums
    people, played = split.train, sums[-1].last
    trained = softmax_phase(
        settings, federation, people, rest, layout=layout, first=played, kept=task.kept
    )
    cohort = rest.release.sampling.cohort
    work = partial(rounds_work, settings, layout, rank, cohort)
    return (*sums, replace(trained, work=work))


def _public_stages(of: Task[SumsSettings], layout: Layout, kernels: Kernels) -> tuple[Phase, ...]:
    """Return the phases of a run under noise that uses public features of items (`public.py`)."""
    budget, n_items = public_budget(of.settings, of.split, layout.n_items), layout.n_items
    large = budget.widest is not None
    task = _Task(
        settings=of.settings,
        federation=of.federation,
        split=of.split,
        layout=layout,
        rank=budget.rank,
        public_start=public_start(kernels, budget.directions, n_items, large=large),
    )
    first = _popularity_phase(task, budget.popularity)
    work = partial(public_work, layout, len(kernels), budget.rank)
    second = replace(_alignments_phase(task, kernels, budget), work=work)
    if budget.moments is None:
        return first, replace(second, ranks=True)
    third = _public_moments_phase(task, kernels, budget, budget.moments)
    return first, second, replace(third, work=work)


def _alignments_phase(task: _Task, kernels: Kernels, budget: PublicBudget) -> Phase:
    """Return the phase of the alignments: they say which features of items matter.

    The server then computes the basis of the moments or, in a run without moments, the final model.
    """
    scale, noise = (
        aggregator.noise_scale(BOUND) for aggregator in (budget.popularity, budget.alignments)
    )

    def commons(state: ServerState) -> Commons:
        return commons_of(kernels, _popularity(state), scale)

    def absorb(state: ServerState, published: Published) -> ServerState:
        sums = np.asarray(published.update[ALIGNMENTS], np.float64)
        people = budget.alignments.release.sampling.cohort
        trust = trust_of(sums, commons(state), people, noise)
        public = Public(trust, basis_of(_popularity(state), kernels, trust, budget.directions))
        if budget.moments is None:
            return _with_tower(task, kernels, budget, state, public, None)
        kept = public.params(task.layout.n_items, large=budget.widest is not None)
        return _state_with_params(state, kept)

    size, n_items = len(kernels), task.layout.n_items
    device = alignment_device(task.layout, kernels, task.settings.dislike_input)
    cost = partial(task.cost, "alignments round", 8 * size * (n_items + size), True)
    return task.phase(
        ALIGNMENTS,
        1,
        budget.alignments,
        device=replace(device, cost=cost),
        tell=lambda state: commons(state).told(),
        absorb=absorb,
        accepts=alignment_accepts(size, n_items),
    )


def _public_moments_phase(
    task: _Task, kernels: Kernels, budget: PublicBudget, aggregator: Aggregator
) -> Phase:
    """Return the phase of the third release. What it sums depends on the trust in features.

    With many people, it sums the moments in the basis if the trust is above 0. With a medium number
    of people (`spending_of`), it sums popularity again if the trust is at least `least_trust`. In
    all other cases it sums the moments over frequent items, as without features.
    """
    directions, noise = budget.directions, aggregator.noise_scale(BOUND)
    first_noise = budget.popularity.noise_scale(BOUND)

    in_between = budget.least_trust <= 1

    def again(public: Public) -> bool:
        return public.trust.trust >= budget.least_trust

    def by_features(public: Public) -> bool:
        return again(public) if in_between else public.trust.trust > 0

    def tell(state: ServerState) -> Told:
        public = public_of(state.params)
        if not by_features(public):
            return frequent_told(public.basis.items, _frequent(task, state, noise))
        return public.basis.told(popularity=again(public))

    def absorb(state: ServerState, published: Published) -> ServerState:
        public = public_of(state.params)
        if not by_features(public):
            return _with_noisy_tower(task, state, published, noise)
        if not again(public):
            sums = np.asarray(published.update[TRIANGLE], np.float64)
            learned = learned_from(sums, directions, noise)
            return _with_tower(task, kernels, budget, state, public, learned)
        second = np.asarray(published.update[POPULARITY], np.float64)
        both = _popularity(state) / first_noise**2 + second / noise**2
        popularity = both / (1 / first_noise**2 + 1 / noise**2)
        state = _state_with_params(state, {POPULARITY: popularity})
        popularity = _popularity(state)  # As rounded to 32 bits.
        basis = basis_of(popularity, kernels, public.trust, directions)
        return _with_tower(task, kernels, budget, state, Public(public.trust, basis), None)

    accepts = moments_accepts(task.layout.n_items)
    dislike = task.settings.dislike_input
    device = moments_device(task.layout, dislike, popularity_device(task.layout, dislike))
    down = 4 * directions * (accepts["kept"].shape[0] or 0)
    return task.phase(
        MOMENTS,
        2,
        aggregator,
        device=replace(device, cost=partial(task.cost, "moments round", down, True)),
        tell=tell,
        absorb=absorb,
        accepts=accepts,
    )


def _with_tower(
    task: _Task,
    kernels: Kernels,
    budget: PublicBudget,
    state: ServerState,
    public: Public,
    learned: Learned | None,
) -> ServerState:
    popularity = _popularity(state)
    people = budget.popularity.release.sampling.cohort
    basis, trust, widest = public.basis, public.trust, budget.widest
    tower = tower_of(basis, learned, trust, kernels, popularity, people, widest=widest)
    ranked = public.basis.items.kept
    if public.trust.trust:
        ranked = np.arange(task.layout.n_items)
    new: dict[str, npt.ArrayLike] = {
        **public.params(task.layout.n_items, large=budget.widest is not None),
        LIKES: tower.inside,
        OUT: tower.outside,
        BIAS: bias_of(popularity, ranked),
    }
    if DISLIKES in state.params:
        new[DISLIKES] = task.settings.dislike_input * tower.inside
    return _state_with_params(state, new)


def _history_phase(task: _Task, aggregator: Aggregator) -> Phase:
    settings, exact = task.settings, without_noise(task.settings)
    if task.in_subspace:
        work = partial(subspace_work, settings, task.layout, task.rank)
        if exact:
            return replace(_exact_subspace(task, exact, aggregator), work=work)
        return replace(_noisy_subspace(task, aggregator), work=work)
    if exact:
        work = partial(exact_work, exact, task.layout, task.rank)
        return replace(_exact_phase(task, exact, aggregator), work=work)
    work = partial(noisy_work, settings, task.layout, task.rank)
    return replace(_noisy_phase(task, aggregator), work=work)


def _second_phase(task: _Task, settings: PlusSettings, aggregator: Aggregator, first: int) -> Phase:
    layout = task.layout
    phase = sweeps_phase(
        layout,
        task.federation,
        aggregator,
        population=task.split.train,
        first=first,
        columns=layout.item_columns if settings.dislike_input else layout.n_items,
        width=settings.second_rank,
        sweeps=settings.second_sweeps,
        seed=settings.seed,
        kept=task.kept,
    )
    return replace(phase, work=partial(sweeps_work, layout, settings.second_rank))


def _noisy_subspace(task: _Task, aggregator: Aggregator) -> Phase:
    settings = task.settings
    phase = noisy_subspace_phase(
        task.layout,
        aggregator,
        dislike=settings.dislike_input,
        most=settings.history_items,
        population=task.split.train,
        rounds=subspace_rounds(settings),
        seed=settings.seed,
        kept=task.kept,
    )
    return task.in_basis(phase, task.layout.n_items, task.rank - 1, 8)


def _exact_subspace(task: _Task, settings: PlusSettings, aggregator: Aggregator) -> Phase:
    phase = subspace_phase(
        task.layout,
        Within(
            how=regression_of(settings),
            power=settings.subspace_power,
            discount=settings.popularity_discount,
        ),
        aggregator,
        population=task.split.train,
        first=1,
        rounds=subspace_rounds(settings),
        seed=settings.seed,
        kept=task.kept,
    )
    return task.in_basis(phase, task.layout.size, task.rank, 4)


def _pairs_phase(task: _Task, hop: Hop, aggregator: Aggregator, *, first: int) -> Phase:
    layout = task.layout

    def absorb(state: ServerState, published: Published) -> ServerState:
        frequency = np.asarray(state.params[FREQUENCY], np.float64)[: layout.n_items]
        return _state_with_params(state, neighbours(published.update, frequency, hop))

    device = pairs_device(layout, hop)
    phase = task.phase(
        PAIRS,
        first,
        aggregator,
        device=replace(device, cost=partial(task.cost, "pairs round", 0, True)),
        tell=lambda state: {},
        absorb=absorb,
        work=partial(pairs_work, layout, hop),
        alone="set `hop_weight` to 0",
    )
    return replace(phase, ranks=True)


def _popularity_phase(task: _Task, aggregator: Aggregator) -> Phase:
    def absorb(state: ServerState, published: Published) -> ServerState:
        found = published.update[POPULARITY]
        # With this bias, the model can rank even if the budget ends after this phase.
        bias = bias_of(np.asarray(found), np.zeros(0, np.int64))
        new: dict[str, npt.ArrayLike] = {POPULARITY: found, BIAS: bias}
        if task.exact_subspace:
            new[FREQUENCY] = published.update[FREQUENCY]
            new[MEAN_WEIGHT] = published.update[WEIGHT] / max(published.update[PEOPLE], 1.0)
        return _state_with_params(state, new)

    exact = task.exact_subspace
    frequency = regression_of(exact) if exact else None
    device = popularity_device(task.layout, task.settings.dislike_input, frequency=frequency)
    cost = partial(task.cost, "popularity round", 0, False)
    return task.phase(
        POPULAR,
        0,
        aggregator,
        device=replace(device, cost=cost),
        tell=lambda state: {},
        absorb=absorb,
    )


def _exact_phase(task: _Task, settings: PlusSettings, aggregator: Aggregator) -> Phase:
    """Return the phase of the sum of row·rowᵀ over people, without noise."""
    how, layout, most = regression_of(settings), task.layout, settings.history_items

    def tell(state: ServerState) -> Told:
        return {"kept": frequent(_popularity(state), noise_scale=0.0, most=most)}

    def absorb(state: ServerState, published: Published) -> ServerState:
        kept = tell(state)["kept"]
        tower = exact_tower(published.update, layout, kept, how, task.rank)
        return _state_with_params(state, {**tower, BIAS: bias_of(_popularity(state), kept)})

    device = history_device(layout, how)
    cost = partial(task.cost, "moments round", 4 * min(layout.n_items, most), True)
    return task.phase(
        MOMENTS,
        1,
        aggregator,
        device=replace(device, cost=cost),
        tell=tell,
        absorb=absorb,
        accepts={"kept": positions(layout.n_items, most)},
    )


def _noisy_phase(task: _Task, aggregator: Aggregator) -> Phase:
    """Return the phase of the second sum under noise (`sums.py: taste_moments`)."""
    layout, most, scale = task.layout, task.settings.history_items, aggregator.noise_scale(BOUND)
    device = taste_device(layout, task.settings.dislike_input)
    # A phone receives a position and a weight for each item.
    cost = partial(task.cost, "moments round", 8 * min(layout.n_items, most), True)
    return task.phase(
        MOMENTS,
        1,
        aggregator,
        device=replace(device, cost=cost),
        tell=lambda state: _frequent(task, state, scale).told(),
        absorb=lambda state, published: _with_noisy_tower(task, state, published, scale),
        accepts=Frequent.accepts(layout.n_items, most),
    )


def _frequent(task: _Task, state: ServerState, noise_scale: float) -> Frequent:
    """Return the frequent items, over which moments are summed if no features are used."""
    popularity, most = _popularity(state), task.settings.history_items
    most = min(most, MOST_ITEMS) if task.public_start else most
    return Frequent.of(popularity, frequent(popularity, noise_scale=noise_scale, most=most))


def _with_noisy_tower(
    task: _Task, state: ServerState, published: Published, noise_scale: float
) -> ServerState:
    """Return the state with the history model over frequent items in its parameters."""
    items = _frequent(task, state, noise_scale)
    tower = noisy_tower(
        np.asarray(published.update[TRIANGLE]),
        task.layout,
        items,
        dislike=task.settings.dislike_input,
        rank=task.rank,
        noise_scale=noise_scale,
    )
    # No features determined these directions, so kernels cannot give vectors to new items.
    trust = {TRUST: np.zeros(())} if task.public_start else {}
    ranked = bias_of(_popularity(state), items.kept)
    return _state_with_params(state, {**tower, **trust, BIAS: ranked})


def _popularity(state: ServerState) -> npt.NDArray[np.float64]:
    return np.asarray(state.params[POPULARITY], np.float64)


def _state_with_params(state: ServerState, found: Mapping[str, npt.ArrayLike]) -> ServerState:
    new = {name: jnp.asarray(array, jnp.float32) for name, array in found.items()}
    return replace(state, params={**state.params, **new})


def by_history(layout: Layout, params: Params, *, adapted: bool) -> Scorer:
    """Return a scorer that ranks items with the history model.

    If not `adapted`, the scorer ignores the person's likes and dislikes.
    """
    tower = {name: np.asarray(array) for name, array in params.items()}
    if LIKES not in tower:
        raise RunFolderError(f"the parameters have no {LIKES!r}: they are of another recipe")
    check_tower(tower, layout)
    return history_scorer(tower, layout, adapted=adapted)


def plus_plan(task: Task[SumsSettings]) -> Plan:
    """Return the plan of a run."""
    layout = layout_for(task.settings, task.federation.catalogue)
    return Plan(
        task=task,
        stages=partial(plus_stages, task),
        ranker=partial(by_history, layout, adapted=True),
        unadapted=partial(by_history, layout, adapted=False),
    )


def plus_path(task: Task[SumsSettings], stages: Sequence[Stage]) -> tuple[str, ...]:
    """Return sentences for `--dry-run`: which releases a run makes, and why."""
    settings, catalogue = task.settings, task.federation.catalogue
    kernels = public_kernels(settings, catalogue)
    return path_of(task, stages, kernels, subspace=in_subspace(settings, catalogue.n_items))


# With this `stage1_cohort`, all training people contribute to the sums.
_VALUES: Mapping[str, Any] = {
    "stage1_cohort": 10**9,
    "sampling": "fixed",
    "rounds": 200,
    "cohort": 200,
    "validate_every": 50,
    "server_lr": 0.003,
    "weight_decay": 6e-5,
    "embedding_scale": 0.05,
}
PRIVREC_PLUS = Recipe(
    summary="finds what goes with the items on a person's device; learned from sums over people",
    settings=PlusSettings,
    server_sees="items",
    plan=plus_plan,
    items_with_vector=items_with_vector,
    public_features=public_features,
    with_items=with_items,
    path=plus_path,
    values={**_VALUES, "dislike_target": 0.6, "patience": 3},
    choice=Choice(
        keys=KEYS, usual=usual, find=partial(find, plus_plan), ahead=partial(ahead, plus_plan)
    ),
    presets={
        # 2 % validation people show the training curve, but are too few to choose the best round.
        # So `patience` is 0.
        "movielens-1m": {
            "rounds": 0,
            "second_opinion": 3.0,
            "patience": 0,
            "cohort": 500,
            "history_l2": 200.0,
            "history_dropout": 0.75,
            "validation_share": 0.02,
        },
        "frappe": {
            "rounds": 0,
            "history_rank": 0,
            "history_l2": 20.0,
            "history_dropout": 0.66,
            "dislike_input": 0.0,
            "validation_share": 0.0,
        },
    },
)
# There are no training rounds: noise on a few hundred thousand weights does more harm than good.
DP_PRIVREC_PLUS = replace(
    PRIVREC_PLUS,
    summary="as privrec-plus, but from a few sums with noise: differential privacy for each person",
    settings=NoisedPlusSettings,
    values={
        **_VALUES,
        "mechanism": "gaussian",
        "sampling": "poisson",
        "epsilon": 8.0,
        "rounds": 0,
        "validation_share": 0.0,
    },
    presets={},
    choice=None,
)
