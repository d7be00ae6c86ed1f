"""The recipes of two stages: item vectors by self-supervision, then the DSSM with these vectors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax
import numpy as np
from pydantic import Field, model_validator

from privrec.algorithms.budgets import aggregator_of, noised
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.reptile.adapt import dssm_plan
from privrec.algorithms.reptile.dssm import Network, dssm, empty_pairs, fresh, network_of
from privrec.algorithms.reptile.local import local_sgd
from privrec.algorithms.reptile.pack import steps_of
from privrec.algorithms.reptile.phase import reptile_stages
from privrec.algorithms.reptile.settings import NOISED_PRESETS, NOISED_VALUES, ReptileSettings
from privrec.algorithms.settings import NoiseSettings
from privrec.algorithms.training import Training, training_phase
from privrec.algorithms.two_stage.joint import (
    JointClient,
    join,
    local_joint,
    rescaled,
    vectors_of_features,
)
from privrec.algorithms.two_stage.objectives import init_encoders, local_ssl, self_supervision
from privrec.algorithms.two_stage.views import (
    SequenceClient,
    Views,
    draw_views,
    empty_client,
    row_buckets,
)
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN, Phase
from privrec.core.scorer import Scorer
from privrec.core.tables import check_shapes
from privrec.core.training import LocalTrain, Packed, server_optimizer
from privrec.data.clients import Clients, Split
from privrec.errors import SettingsError
from privrec.evaluation.references import neighbours
from privrec.privacy.aggregate import Aggregator, plain
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Sampling
from privrec.seeds import key
from privrec.settings import Positive, Size, Weight
from privrec.simulate.cost import usual_person
from privrec.types import Array, Law, Params, ServerOptimizer

Stage1 = Literal["none", "paper", "public", "private"]


class StageOneSettings(NoiseSettings):
    """The settings of stage one, which learns item vectors from sequences."""

    retired: ClassVar[frozenset[str]] = frozenset({"volunteers"})

    stage1: Stage1 = "none"
    """How item vectors are learned before the DSSM: "none" (not at all), "paper" (from all training
    people, without noise and thus without a guarantee), "public" (from public item features,
    without rounds), "private" (under noise)."""
    stage1_rounds: Size = 100
    """Rounds of stage one."""
    stage1_cohort: Size = 100
    """People per round of stage one."""
    stage1_clip_norm: Positive = 1.0
    """The largest norm of one client's update in stage one."""
    stage1_lr: Positive = 0.5
    """Learning rate of local training in stage one."""
    stage1_server_lr: Positive = 0.01
    """Learning rate of the server's optimizer in stage one."""
    sampling: Law = "poisson"
    """How the people of a round are drawn: poisson, or fixed (a fixed number, as in the paper)."""
    server_optimizer: ServerOptimizer = "adam"
    """The server's optimizer, which uses the mean update: plain, momentum or adam."""
    local_epochs: Size = 1
    """Epochs over a client's data per round."""
    batch_size: Size = 32
    """Instances per step on a device."""
    embedding_size: Size = 64
    """Length of an embedding vector."""
    embedding_scale: Positive = 0.1
    """Standard deviation of embeddings before training."""

    views: Size = 32
    """Upper limit for the views of a person's sequence per round."""
    view_window: Annotated[int, Field(ge=3)] = 20
    """Upper limit for the items of a sequence that a view shows."""
    view_segment: Size = 5
    """Upper limit for the items of a replaced segment."""
    view_negatives: Size = 64
    """Negative items per replaced item in the item loss."""
    view_others: Size = 4
    """Negative segments per replaced segment in the segment loss."""
    item_mask_weight: Weight = 1.0
    """Weight of the item loss."""
    segment_mask_weight: Weight = 0.3
    """Weight of the segment loss."""

    @model_validator(mode="after")
    def _a_private_stage_needs_noise(self) -> "StageOneSettings":
        if self.stage1 == "private" and self.mechanism == "none":
            raise ValueError('`stage1` = "private" needs a recipe with noise, such as dp-privrec')
        return self


class TwoStageSettings(ReptileSettings, StageOneSettings):
    """The settings of both stages: item vectors first, then the DSSM."""

    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon for a private stage one."""
    dssm_weight: Positive = 1.0
    """Weight of the DSSM's loss relative to the self-supervised loss in stage two."""
    item_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Speed at which stage two changes the item vectors, relative to other parameters; 0 keeps the
    vectors of stage one."""


ITEMS = "items"
"""The name of the first stage."""


def two_stages(task: Task[TwoStageSettings]) -> tuple[Phase, ...]:
    """Return the phases of both stages; only those of the second if stage one has no rounds."""
    settings, federation, split = task.settings, task.federation, task.split
    if settings.stage1 == "none":
        return reptile_stages(task)
    network, spent = network_of(settings, federation.catalogue), PrivacyLedger()
    if settings.stage1 == "public":
        second = aggregator_of(settings, split, spent)
        return (_joint_phase(task, network, second, first=0),)
    first = _stage_one_aggregator(settings, split, share=settings.stage1_share)
    if settings.stage1 == "private":
        spent = spent.record(first.release, settings.stage1_rounds)
    items = _item_phase(task, first, network.fresh)
    second = aggregator_of(settings, split, spent)
    return (items, _joint_phase(task, network, second, items.rounds))


def item_stage(task: Task[StageOneSettings]) -> tuple[Phase, ...]:
    """Return stage one alone."""
    settings, federation, split = task.settings, task.federation, task.split
    if settings.stage1 in ("none", "public"):
        raise SettingsError(
            f"`stage1` must have rounds for {settings.recipe}, which has no other stage;"
            f" got {settings.stage1!r}"
        )
    if settings.mechanism != "none" and settings.stage1 != "private":
        raise SettingsError(
            f'`stage1` must be "private" for {settings.recipe} with noise; got {settings.stage1!r}'
        )
    network = dssm(
        federation.schema,
        federation.n_items,
        embedding_size=settings.embedding_size,
        embedding_scale=settings.embedding_scale,
    )
    aggregator = _stage_one_aggregator(settings, split, share=1.0)
    return (_item_phase(task, aggregator, partial(fresh, network, settings.seed)),)


def _training(
    task: Task[StageOneSettings],
    pack: Callable[[Clients, int], Sequence[Packed]],
    local: LocalTrain,
    examples: Callable[[], Sequence[Packed]],
) -> Training:
    settings, federation = task.settings, task.federation
    return Training(
        pack=pack,
        local=local,
        catalogue=dict(federation.items),
        examples=examples,
        usual=lambda: federation.take(usual_person(federation, task.split.train)),
        steps=partial(steps_of, batch_size=settings.batch_size, epochs=settings.local_epochs),
    )


def _pack_views(
    task: Task[StageOneSettings], people: Clients, round_index: int
) -> list[SequenceClient]:
    settings, n_items = task.settings, task.federation.n_items
    views = views_of(settings)
    return draw_views(people, views, n_items=n_items, seed=settings.seed, round_index=round_index)


def _encoders(settings: StageOneSettings) -> dict[str, Array]:
    return init_encoders(key(settings.seed, 0, "encoders"), settings.embedding_size)


def views_of(settings: StageOneSettings) -> Views:
    """Return the rules that make views from sequences."""
    return Views(
        most=settings.views,
        window=settings.view_window,
        segment=settings.view_segment,
        negatives=settings.view_negatives,
        others=settings.view_others,
        batch_size=min(settings.batch_size, settings.views),
    )


def local_views(settings: StageOneSettings, rate: float) -> LocalTrain:
    """Return the self-supervised local training, with this learning rate."""
    loss = self_supervision(
        item_weight=settings.item_mask_weight, segment_weight=settings.segment_mask_weight
    )
    return local_ssl(
        loss,
        learning_rate=rate,
        epochs=settings.local_epochs,
        batch_size=views_of(settings).batch_size,
    )


def _stage_one_aggregator(settings: StageOneSettings, split: Split, *, share: float) -> Aggregator:
    """Return the aggregator of stage one; a private stage one costs `share` of epsilon."""
    users = len(split.train) if settings.sampling == "fixed" else split.public_train
    cohort = min(settings.stage1_cohort, users)
    sampling = Sampling(law=settings.sampling, users=users, cohort=cohort)
    if settings.stage1 != "private":
        return plain(sampling)
    return noised(
        settings,
        sampling,
        rounds=settings.stage1_rounds,
        clip_norm=settings.stage1_clip_norm,
        epsilon=settings.epsilon and settings.epsilon * share,
        spent=PrivacyLedger(),
    )


def _item_phase(
    task: Task[Any], aggregator: Aggregator, fresh_model: Callable[[], Params]
) -> Phase:
    """Return the phase of stage one: item vectors from sequences."""
    settings, federation, views = task.settings, task.federation, views_of(task.settings)

    def examples() -> list[Packed]:
        sizes = row_buckets(federation.largest, views)
        return [empty_client(views, size, federation.n_items) for size in sizes]

    def start(before: Params | None) -> Params:
        return {ITEM_TABLE: fresh_model()[ITEM_TABLE], **_encoders(settings)}

    local = local_views(settings, settings.stage1_lr)
    phase = training_phase(
        _training(task, partial(_pack_views, task), local, examples),
        name=ITEMS,
        first=0,
        rounds=settings.stage1_rounds,
        population=task.split.train,
        aggregator=aggregator,
        optimizer=server_optimizer(settings.server_optimizer, settings.stage1_server_lr),
        start=start,
        model=fresh_model,
    )
    return replace(phase, ranks=False)


def _joint_phase(
    task: Task[TwoStageSettings], network: Network, aggregator: Aggregator, first: int
) -> Phase:
    """Return the phase of stage two: the DSSM on the joint loss, from given item vectors."""
    settings, federation, n_items = task.settings, task.federation, task.federation.n_items
    views = views_of(settings)

    def examples() -> list[Packed]:
        nobody = empty_client(views, len(empty_client(views, 1, n_items).rows), n_items)
        empty = empty_pairs(network, settings, federation, task.split.train)
        return [join(pairs, nobody, n_items) for pairs in empty]

    def pack(people: Clients, round_index: int) -> list[JointClient]:
        parts = network.pack(people, round_index), _pack_views(task, people, round_index)
        return [join(pairs, sequence, n_items) for pairs, sequence in zip(*parts, strict=True)]

    def start(before: Params | None) -> Params:
        model: dict[str, jax.Array] = dict(network.fresh())
        scale = settings.embedding_scale
        if before is None:
            model[ITEM_TABLE] = vectors_of_features(federation, model[ITEM_TABLE], scale)
            return {**model, **_encoders(settings)}
        return {**model, **rescaled(before, scale)}

    local = local_joint(
        local_views(settings, settings.local_lr),
        local_sgd(
            network.recommender,
            learning_rate=settings.local_lr * settings.dssm_weight,
            epochs=settings.local_epochs,
            batch_size=settings.batch_size,
            max_steps=settings.local_steps or None,
            whole_batch=settings.whole_batch,
        ),
        settings.item_rate,
    )
    return training_phase(
        _training(task, pack, local, examples),
        name=TRAIN,
        first=first,
        rounds=settings.rounds,
        population=task.split.train,
        aggregator=aggregator,
        optimizer=server_optimizer(
            settings.server_optimizer, settings.server_lr, settings.item_rate
        ),
        start=start,
        model=network.fresh,
    )


def by_neighbours(settings: StageOneSettings, n_items: int, params: Params) -> Scorer:
    """Return the scorer: it ranks items by the similarity of their vectors to liked items."""
    check_shapes(params, {ITEM_TABLE: (n_items, settings.embedding_size)})
    return neighbours(np.asarray(params[ITEM_TABLE]))


def item_plan(task: Task[StageOneSettings]) -> Plan:
    """Return the plan of stage one alone."""
    ranker = partial(by_neighbours, task.settings, task.federation.n_items)
    return Plan(task=task, stages=partial(item_stage, task), ranker=ranker)


_STAGE_ONE: Mapping[str, Any] = {
    "stage1": "paper",
    "stage1_rounds": 300,
    "sampling": "fixed",
    "server_optimizer": "adam",
    "local_epochs": 1,
}
DP_PRIVREC = Recipe(
    summary="item vectors by self-supervision first, then privrec; both under noise",
    settings=TwoStageSettings,
    server_sees="updates",
    plan=partial(dssm_plan, two_stages),
    # Under noise, few rounds with large cohorts are better, in both stages. Noisy steps would
    # destroy the item vectors of stage one, so stage two changes them slowly (`item_rate`).
    values={
        **NOISED_VALUES,
        "item_rate": 0.1,
        "stage1": "private",
        "stage1_rounds": 40,
        "stage1_cohort": 200,
        "stage1_clip_norm": 0.3,
    },
    presets={
        **NOISED_PRESETS,
        "movielens-1m": {**NOISED_PRESETS["movielens-1m"], "stage1_cohort": 500},
    },
)
SSL_ITEMS = Recipe(
    summary="stage one alone: neighbours of item vectors learned from sequences",
    settings=StageOneSettings,
    server_sees="updates",
    plan=item_plan,
    values=_STAGE_ONE,
    presets={"movielens-1m": {"stage1_rounds": 600}},
)
