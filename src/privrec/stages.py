"""The stages of a recipe's training, each a federated algorithm with its people and its noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax

from privrec.config import RunConfig
from privrec.data.federation import Federation
from privrec.data.splits import Split
from privrec.federated.lanes import cohort_runner, warm_up
from privrec.federated.local import LocalTrain, local_sgd
from privrec.federated.pack import Instances, Packed, PackedClient, buckets, dummy, pack
from privrec.federated.round import (
    FederatedAlgorithm,
    Publish,
    RoundReport,
    ServerState,
    federated,
    play_round,
    server_optimizer,
)
from privrec.models.api import ITEM_TABLE, Recommender
from privrec.noises import find_noises, volunteers_of
from privrec.phone import PhoneShare, share_of_training, usual_person
from privrec.pretrain.features import vectors_of_features
from privrec.pretrain.joint import join, local_joint, rescaled
from privrec.pretrain.objectives import SelfSupervision, local_ssl, self_supervision
from privrec.pretrain.views import SequenceClient, Views, draw_views, empty_client, row_buckets
from privrec.privacy.aggregate import Aggregator
from privrec.privacy.release import Release
from privrec.seeds import key, rng, secret_rng
from privrec.types import IntArray, Params

PackPeople = Callable[[IntArray, int], Sequence[Packed]]
Play = Callable[[ServerState, Publish], tuple[ServerState, RoundReport]]
ITEMS, TRAIN = "items", "train"
"""The names of the two stages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """Rounds `first` to `first + rounds - 1` of a run.

    `aggregator` has the release of each; `init(params)` returns the state before the first one,
    given the parameters of the stage before; `prepare(params)` compiles, `play(state, publish)`
    plays a round, `phone(params)` measures one person's part of it. After a stage that `ranks`
    there is something to rank with. `volunteers` tells that only people take part who gave up the
    guarantee.
    """

    name: str
    rounds: int
    first: int
    aggregator: Aggregator
    init: Callable[[Params | None], ServerState]
    prepare: Callable[[Params], None]
    play: Play
    phone: Callable[[Params], PhoneShare] | None = None
    ranks: bool = True
    volunteers: bool = False

    @property
    def last(self) -> int:
        """The number of rounds of the run when the stage is over."""
        return self.first + self.rounds

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release


def federated_stages(
    config: RunConfig,
    federation: Federation,
    split: Split,
    recommender: Recommender,
    instances: Instances,
) -> tuple[Stage, ...]:
    """Return the stages of a federated recipe: one, or first the item vectors and then the rest."""
    first, rest = find_noises(config, federation, split)
    pairs = packer(config, federation, instances)
    sizes = buckets(federation.largest, instances)

    def fresh() -> dict[str, jax.Array]:
        params: dict[str, jax.Array] = jax.jit(recommender.init)(key(config.seed, 0, "init"))
        return params

    if config.stage1 == "none":
        local = local_pairs(config, recommender, config.local_lr)

        def examples() -> list[Packed]:
            (example,) = pairs(split.train[:1], 0)
            return [dummy(example, size, federation.n_items) for size in sizes]

        algorithm = _algorithm(config, local, rest)
        return (
            _stage(
                TRAIN,
                0,
                config.rounds,
                algorithm,
                config,
                federation,
                split.train,
                pairs,
                examples,
                lambda before: fresh(),
            ),
        )
    ssl = self_supervision(
        item_weight=config.item_mask_weight, segment_weight=config.segment_mask_weight
    )
    views = views_of(config)
    return (
        *_item_stage(config, federation, split, ssl, views, first, fresh),
        _joint_stage(config, federation, split, recommender, pairs, sizes, ssl, views, rest, fresh),
    )


def views_of(config: RunConfig) -> Views:
    """Return how sequences become views."""
    return Views(
        most=config.views,
        window=config.view_window,
        segment=config.view_segment,
        negatives=config.view_negatives,
        others=config.view_others,
        batch_size=min(config.batch_size, config.views),
    )


def _item_stage(
    config: RunConfig,
    federation: Federation,
    split: Split,
    ssl: SelfSupervision,
    views: Views,
    aggregator: Aggregator,
    fresh: Callable[[], Params],
) -> tuple[Stage, ...]:
    """Return stage one; none where item vectors come from the items' own features alone."""
    public = config.stage1 == "public"
    people = volunteers_of(config, federation, split) if public else split.train
    if len(people) == 0:
        return ()

    def examples() -> list[Packed]:
        sizes = row_buckets(federation.largest, views)
        return [empty_client(views, size, federation.n_items) for size in sizes]

    def start(before: Params | None) -> Params:
        encoders = ssl.init(key(config.seed, 0, "encoders"), config.embedding_size)
        return {ITEM_TABLE: fresh()[ITEM_TABLE], **encoders}

    local = local_views(config, ssl, views, config.stage1_lr)
    algorithm = _algorithm(config, local, aggregator, config.stage1_server_lr)
    stage = _stage(
        ITEMS,
        0,
        config.stage1_rounds,
        algorithm,
        config,
        federation,
        people,
        view_packer(config, federation, views),
        examples,
        start,
    )
    return (replace(stage, volunteers=public, ranks=False),)


def _joint_stage(
    config: RunConfig,
    federation: Federation,
    split: Split,
    recommender: Recommender,
    pairs: Callable[[IntArray, int], list[PackedClient]],
    sizes: Sequence[int],
    ssl: SelfSupervision,
    views: Views,
    aggregator: Aggregator,
    fresh: Callable[[], Params],
) -> Stage:
    """Return stage two: the DSSM from stage one's item vectors, on the joint loss."""
    n_items = federation.n_items
    public_only = config.stage1 == "public" and len(volunteers_of(config, federation, split)) == 0

    drawn = view_packer(config, federation, views)

    def pack_both(cohort: IntArray, round_index: int) -> Sequence[Packed]:
        instances = pairs(cohort, round_index)
        return [
            join(*both, n_items) for both in zip(instances, drawn(cohort, round_index), strict=True)
        ]

    def examples() -> list[Packed]:
        (example,) = pairs(split.train[:1], 0)
        nobody = empty_client(views, len(empty_client(views, 1, n_items).rows), n_items)
        return [join(dummy(example, size, n_items), nobody, n_items) for size in sizes]

    def start(before: Params | None) -> Params:
        model = dict(fresh())
        if before is None:
            model[ITEM_TABLE] = vectors_of_features(
                federation, model[ITEM_TABLE], config.embedding_scale
            )
            return {**model, **ssl.init(key(config.seed, 0, "encoders"), config.embedding_size)}
        return {**model, **rescaled(before, config.embedding_scale)}

    local = local_joint(
        local_views(config, ssl, views, config.local_lr),
        local_pairs(config, recommender, config.local_lr * config.dssm_weight),
        config.item_rate,
    )
    first = 0 if public_only else config.stage1_rounds
    return _stage(
        TRAIN,
        first,
        config.rounds,
        _algorithm(config, local, aggregator, item_rate=config.item_rate),
        config,
        federation,
        split.train,
        pack_both,
        examples,
        start,
    )


def local_pairs(config: RunConfig, recommender: Recommender, learning_rate: float) -> LocalTrain:
    """Return the DSSM's local training."""
    return local_sgd(
        recommender,
        learning_rate=learning_rate,
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        max_steps=config.local_steps or None,
    )


def local_views(
    config: RunConfig, ssl: SelfSupervision, views: Views, learning_rate: float
) -> LocalTrain:
    """Return the self-supervised local training."""
    return local_ssl(
        ssl,
        learning_rate=learning_rate,
        epochs=config.local_epochs,
        batch_size=views.batch_size,
    )


def packer(
    config: RunConfig, federation: Federation, instances: Instances
) -> Callable[[IntArray, int], list[PackedClient]]:
    """Return what builds the instances of some people in some round."""

    def pack_people(people: IntArray, round_index: int) -> list[PackedClient]:
        return pack(
            federation.take(people),
            instances,
            n_items=federation.n_items,
            seed=config.seed,
            round_index=round_index,
        )

    return pack_people


def view_packer(
    config: RunConfig, federation: Federation, views: Views
) -> Callable[[IntArray, int], list[SequenceClient]]:
    """Return what draws the views of some people in some round."""

    def pack_views(people: IntArray, round_index: int) -> list[SequenceClient]:
        return draw_views(
            federation.take(people),
            views,
            n_items=federation.n_items,
            seed=config.seed,
            round_index=round_index,
        )

    return pack_views


def _algorithm(
    config: RunConfig,
    local: LocalTrain,
    aggregator: Aggregator,
    server_lr: float | None = None,
    item_rate: float = 1.0,
) -> FederatedAlgorithm:
    optimizer = server_optimizer(config.server_optimizer, server_lr or config.server_lr, item_rate)
    return federated(local=local, aggregator=aggregator, server_optimizer=optimizer)


def _stage(
    name: str,
    first: int,
    rounds: int,
    algorithm: FederatedAlgorithm,
    config: RunConfig,
    federation: Federation,
    population: IntArray,
    pack_people: PackPeople,
    examples: Callable[[], Sequence[Packed]],
    start: Callable[[Params | None], Params],
) -> Stage:
    run_cohort = cohort_runner(algorithm.local, algorithm.aggregator.clip, dict(federation.items))

    def play(state: ServerState, publish: Publish) -> tuple[ServerState, RoundReport]:
        # A cohort that can be guessed amplifies nothing: secure noise comes with a secret draw.
        secret = config.draws_in_secret
        return play_round(
            algorithm,
            state,
            population=population,
            pack=pack_people,
            run_cohort=run_cohort,
            draw=secret_rng() if secret else rng(config.seed, state.round_index, "cohort"),
            publish=publish,
        )

    def phone(params: Params) -> PhoneShare:
        (client,) = pack_people(usual_person(federation, population), first)
        steps = config.local_epochs * -(-int(client.size) // config.batch_size)
        local, catalogue = algorithm.local, dict(federation.items)
        return share_of_training(f"{name} round", local, params, catalogue, client, steps)

    return Stage(
        name=name,
        rounds=rounds,
        first=first,
        aggregator=algorithm.aggregator,
        init=lambda before: replace(algorithm.init(start(before)), round_index=first),
        prepare=lambda params: warm_up(run_cohort, params, examples()),
        play=play,
        phone=phone,
    )
