"""PrivRec+: two sums over people, a history tower from them in closed form, and rounds on top.

Everybody who takes part adds her row once to say what is popular, and once more to say what goes
together (`history/`). Then come rounds of training, if any (`plus_softmax.py`). Under noise each
sum is one release, as each round is, and the budget's split is found here.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from privrec.config import RunConfig
from privrec.data.catalogue import Catalogue
from privrec.data.federation import Federation, chunks
from privrec.data.splits import Split
from privrec.errors import SettingsError
from privrec.federated.round import Publish, RoundReport, ServerState
from privrec.history.fit import (
    Frequent,
    Regression,
    exact_tower,
    frequent,
    noisy_tower,
    popularity_of,
    taste_moments,
)
from privrec.history.layout import Layout, layout_of
from privrec.history.rows import Rows, rows_of
from privrec.history.scoring import BIAS, POPULARITY
from privrec.history.tower import bias_of, blank
from privrec.noises import sampling_of
from privrec.phone import PhoneShare, milliseconds, usual_person
from privrec.plus_softmax import softmax_stage
from privrec.privacy.aggregate import Aggregator, CohortTotal, gaussian, plain
from privrec.privacy.budget import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.sampling import Sampling
from privrec.seeds import rng, secret_rng
from privrec.stages import Play, Stage
from privrec.types import Array, Params

POPULAR, MOMENTS = "popularity", "moments"
"""The names of the first two stages."""

BOUND = 1.0
"""The length of what one person adds to a noised sum."""

_RANK_UNDER_NOISE = 64
_PEOPLE_PER_NOISE = 12.0


def history_stages(config: RunConfig, federation: Federation, split: Split) -> tuple[Stage, ...]:
    """Return the stages of PrivRec+: what is popular, what goes together, and rounds on top."""
    layout, rank = layout_for(config, federation.catalogue), rank_for(config, federation)
    dislike = config.dislike_input
    first, second, rest = split_budget(config, split, federation.n_items)
    sampling = first.release.sampling
    reports: dict[int, RoundReport] = {}

    def rows(state: ServerState) -> Iterator[Rows]:
        """Draw the cohort of a round, and yield its people's rows a few hundred at a time."""
        secret = config.draws_in_secret
        draw = secret_rng() if secret else rng(config.seed, state.round_index, "cohort")
        cohort = sampling.draw(split.train, draw)
        reports[state.round_index] = RoundReport(
            round_index=state.round_index, clients=len(cohort), loss=None
        )
        return (rows_of(federation.take(part), layout) for part in chunks(cohort))

    def after(
        state: ServerState, found: Mapping[str, npt.ArrayLike]
    ) -> tuple[ServerState, RoundReport]:
        params = {**state.params, **{name: jnp.asarray(array) for name, array in found.items()}}
        nobody = RoundReport(round_index=state.round_index, clients=None, loss=None)
        report = reports.pop(state.round_index, nobody)
        return replace(state, round_index=state.round_index + 1, params=params), report

    def count(state: ServerState, publish: Publish) -> tuple[ServerState, RoundReport]:
        def add_up() -> CohortTotal:
            return CohortTotal({POPULARITY: popularity_of(rows(state), layout, dislike)})

        found = publish(state, add_up).update[POPULARITY]
        # Should the budget end here, there is something to rank by.
        bias = bias_of(np.asarray(found), np.zeros(0, np.int64))
        return after(state, {POPULARITY: found, BIAS: bias})

    def relate(state: ServerState, publish: Publish) -> tuple[ServerState, RoundReport]:
        popularity = np.asarray(state.params[POPULARITY], np.float64)
        scale = second.noise_scale(BOUND)
        kept = frequent(popularity, noise_scale=scale, most=config.history_items)
        if config.mechanism == "none":
            publish(state, lambda: CohortTotal({}))
            tower = exact_tower(rows(state), layout, kept, regression_of(config), rank)
        else:
            shape = Frequent.of(popularity, kept)

            def add_up() -> CohortTotal:
                return CohortTotal({"triangle": taste_moments(rows(state), layout, shape, dislike)})

            triangle = np.asarray(publish(state, add_up).update["triangle"])
            tower = noisy_tower(
                triangle, layout, shape, dislike=dislike, rank=rank, noise_scale=scale
            )
        return after(state, {**tower, BIAS: bias_of(popularity, kept)})

    def phone(what: str, down: int, pairs: bool) -> Callable[[Params], PhoneShare]:
        def measure(params: Params) -> PhoneShare:
            person = federation.take(usual_person(federation, split.train))
            entries = rows_of(person, layout).nnz
            return PhoneShare(
                what=what,
                bytes_down=down,
                # A position and a weight each; the trusted server multiplies them out.
                bytes_up=8 * entries,
                multiply_adds=entries * (entries + 1) // 2 if pairs else 2 * entries,
                milliseconds=milliseconds(lambda: rows_of(person, layout)),
            )

        return measure

    start = blank(layout, rank=rank, dislikes=dislike > 0)
    start[POPULARITY] = np.zeros(federation.n_items, np.float32)
    # Before the second sum a phone is told which items count, and under noise how much.
    told = (8 if second.release.is_private else 4) * min(federation.n_items, config.history_items)

    def kept(before: Params | None) -> dict[str, Array]:
        known = before or {}
        return {name: jnp.asarray(known.get(name, array)) for name, array in start.items()}

    sums = (
        _stage(POPULAR, 0, first, count, kept, phone("popularity round", 0, pairs=False)),
        _stage(MOMENTS, 1, second, relate, kept, phone("moments round", told, pairs=True)),
    )
    if not config.rounds:
        return sums
    return (*sums, softmax_stage(config, federation, split.train, layout, rest, 2, kept))


def layout_for(config: RunConfig, catalogue: Catalogue) -> Layout:
    """Return what a row has: under noise only items, since every further column costs."""
    if config.mechanism != "none":
        return Layout(n_items=catalogue.n_items)
    layout = layout_of(catalogue.schema, catalogue.n_items)
    return replace(
        layout,
        users=layout.users if config.feature_input else (),
        contexts=layout.contexts if config.context_input else (),
    )


def rank_for(config: RunConfig, federation: Federation) -> int:
    """Return the length of the tower's vectors; 0 is that of the catalogue."""
    if config.mechanism != "none":
        return _RANK_UNDER_NOISE
    if config.history_rank == 0 and federation.n_items > config.history_items:
        raise SettingsError(
            f"`history_rank` must be > 0 for more than {config.history_items:,} items"
            f" (`history_items`); got 0 with {federation.n_items:,} items"
        )
    return min(config.history_rank, federation.n_items)


def regression_of(config: RunConfig) -> Regression:
    """Return how likes are explained."""
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
    """Return what bounds and noises the two sums and each round; all together cost `epsilon`.

    Where there are rounds on top, the sums get `stage1_share` of it, and all of it where not.
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

    Noise on n numbers reaches about z√(2 ln n); the fewer people there are per unit of noise, the
    more of the budget it takes to tell popular items from unpopular ones at all.
    """
    wanted = _PEOPLE_PER_NOISE * math.log(max(n_items, 2)) * noise_multiplier / people
    return min(max(wanted, 0.05), 0.5)


def _stage(
    name: str,
    place: int,
    aggregator: Aggregator,
    play: Play,
    kept: Callable[[Params | None], dict[str, Array]],
    phone: Callable[[Params], PhoneShare],
) -> Stage:
    """Return a stage of one round; what the one before published is kept."""

    def init(before: Params | None) -> ServerState:
        return ServerState(round_index=place, params=kept(before), opt_state=(), clip_norm=BOUND)

    return Stage(
        name=name,
        rounds=1,
        first=place,
        aggregator=aggregator,
        init=init,
        prepare=lambda params: None,
        play=play,
        phone=phone,
        ranks=name == MOMENTS,
    )
