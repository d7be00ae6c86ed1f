"""The phases of the DSSM's recipes: one phase, or item vectors first and then the DSSM."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax

from privrec.algorithms.budgets import stage_aggregators, volunteers_of
from privrec.algorithms.reptile.local import local_sgd
from privrec.algorithms.reptile.pack import Instances, PackedClient, buckets, dummy, pack
from privrec.algorithms.reptile.phase import DeviceHalf, reptile
from privrec.algorithms.two_stage.features import vectors_of_features
from privrec.algorithms.two_stage.joint import join, local_joint, rescaled
from privrec.algorithms.two_stage.objectives import SelfSupervision, local_ssl, self_supervision
from privrec.algorithms.two_stage.views import (
    SequenceClient,
    Views,
    draw_views,
    empty_client,
    row_buckets,
)
from privrec.core.local import LocalTrain, Packed
from privrec.core.optimize import server_optimizer
from privrec.core.phase import Phase
from privrec.data.federation import Federation
from privrec.data.splits import Split
from privrec.models.api import ITEM_TABLE, Recommender
from privrec.privacy.aggregate import Aggregator
from privrec.seeds import key
from privrec.settings import RunConfig
from privrec.simulate.cost import DeviceCost, cost_of_training, usual_person
from privrec.types import IntArray, Params

ITEMS, TRAIN = "items", "train"
"""The names of the two phases."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What every phase of a recipe is built from."""

    config: RunConfig
    federation: Federation
    split: Split
    recommender: Recommender
    instances: Instances

    def fresh(self) -> dict[str, jax.Array]:
        """Return the model before any training."""
        params: dict[str, jax.Array] = jax.jit(self.recommender.init)(
            key(self.config.seed, 0, "init")
        )
        return params

    def pairs(self, people: IntArray, round_index: int) -> list[PackedClient]:
        """Return the instances of some people in some round."""
        return packer(self.config, self.federation, self.instances)(people, round_index)

    def empty_pairs(self) -> list[PackedClient]:
        """Return a client without instances for each shape that clients can have."""
        (example,) = self.pairs(self.split.train[:1], 0)
        sizes = buckets(self.federation.largest, self.instances)
        return [dummy(example, size, self.federation.n_items) for size in sizes]


def federated_stages(task: Task) -> tuple[Phase, ...]:
    """Return the phases of a federated recipe: one, or item vectors first and then the DSSM."""
    config = task.config
    first, rest = stage_aggregators(config, task.federation, task.split)
    if config.stage1 == "none":
        device = DeviceHalf(
            pack=task.pairs,
            local=local_pairs(config, task.recommender, config.local_lr),
            catalogue=dict(task.federation.items),
            examples=task.empty_pairs,
        )
        alone = reptile(
            device,
            name=TRAIN,
            first=0,
            rounds=config.rounds,
            population=task.split.train,
            aggregator=rest,
            optimizer=server_optimizer(config.server_optimizer, config.server_lr),
            start=lambda before: task.fresh(),
        )
        return (_with_phone(alone, task, device),)
    ssl = self_supervision(
        item_weight=config.item_mask_weight, segment_weight=config.segment_mask_weight
    )
    return (*_item_phase(task, ssl, first), _joint_phase(task, ssl, rest))


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


def _item_phase(task: Task, ssl: SelfSupervision, aggregator: Aggregator) -> tuple[Phase, ...]:
    """Return phase one; no phase where item vectors come from item features alone."""
    config, federation, views = task.config, task.federation, views_of(task.config)
    public = config.stage1 == "public"
    people = volunteers_of(config, federation, task.split) if public else task.split.train
    if len(people) == 0:
        return ()

    def examples() -> list[Packed]:
        sizes = row_buckets(federation.largest, views)
        return [empty_client(views, size, federation.n_items) for size in sizes]

    def start(before: Params | None) -> Params:
        encoders = ssl.init(key(config.seed, 0, "encoders"), config.embedding_size)
        return {ITEM_TABLE: task.fresh()[ITEM_TABLE], **encoders}

    device = DeviceHalf(
        pack=view_packer(config, federation, views),
        local=local_views(config, ssl, views, config.stage1_lr),
        catalogue=dict(federation.items),
        examples=examples,
    )
    phase = reptile(
        device,
        name=ITEMS,
        first=0,
        rounds=config.stage1_rounds,
        population=people,
        aggregator=aggregator,
        optimizer=server_optimizer(config.server_optimizer, config.stage1_server_lr),
        start=start,
    )
    return (replace(_with_phone(phase, task, device), volunteers=public, ranks=False),)


def _joint_phase(task: Task, ssl: SelfSupervision, aggregator: Aggregator) -> Phase:
    """Return phase two: the DSSM from phase one's item vectors, on the joint loss."""
    config, federation, views = task.config, task.federation, views_of(task.config)
    n_items = federation.n_items
    drawn = view_packer(config, federation, views)

    def pack_both(cohort: IntArray, round_index: int) -> Sequence[Packed]:
        both = zip(task.pairs(cohort, round_index), drawn(cohort, round_index), strict=True)
        return [join(pairs, own_views, n_items) for pairs, own_views in both]

    def examples() -> list[Packed]:
        nobody = empty_client(views, len(empty_client(views, 1, n_items).rows), n_items)
        return [join(empty, nobody, n_items) for empty in task.empty_pairs()]

    def start(before: Params | None) -> Params:
        model = dict(task.fresh())
        if before is None:
            model[ITEM_TABLE] = vectors_of_features(
                federation, model[ITEM_TABLE], config.embedding_scale
            )
            return {**model, **ssl.init(key(config.seed, 0, "encoders"), config.embedding_size)}
        return {**model, **rescaled(before, config.embedding_scale)}

    device = DeviceHalf(
        pack=pack_both,
        local=local_joint(
            local_views(config, ssl, views, config.local_lr),
            local_pairs(config, task.recommender, config.local_lr * config.dssm_weight),
            config.item_rate,
        ),
        catalogue=dict(federation.items),
        examples=examples,
    )
    volunteers = config.stage1 == "public" and len(volunteers_of(config, federation, task.split))
    has_first = config.stage1 != "public" or volunteers
    phase = reptile(
        device,
        name=TRAIN,
        first=config.stage1_rounds if has_first else 0,
        rounds=config.rounds,
        population=task.split.train,
        aggregator=aggregator,
        optimizer=server_optimizer(config.server_optimizer, config.server_lr, config.item_rate),
        start=start,
    )
    return _with_phone(phase, task, device)


def _with_phone(phase: Phase, task: Task, device: DeviceHalf) -> Phase:
    """Return the phase with a `phone` that measures what one round costs one device."""
    config = task.config

    def phone(params: Params) -> DeviceCost:
        (client,) = device.pack(usual_person(task.federation, phase.population), phase.first)
        steps = config.local_epochs * -(-int(client.size) // config.batch_size)
        what = f"{phase.name} round"
        return cost_of_training(what, device.local, params, device.catalogue, client, steps)

    return replace(phase, phone=phone)


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
    """Return the function that builds the instances of some people in some round."""

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
    """Return the function that draws the views of some people in some round."""

    def pack_views(people: IntArray, round_index: int) -> list[SequenceClient]:
        return draw_views(
            federation.take(people),
            views,
            n_items=federation.n_items,
            seed=config.seed,
            round_index=round_index,
        )

    return pack_views
