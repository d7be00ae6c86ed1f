"""The DSSM on a data set: the network, what it is trained on, and local training, by settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax

from privrec.algorithms.reptile.pack import Instances, buckets, dummy, pack
from privrec.algorithms.reptile.packed import PackedClient
from privrec.algorithms.reptile.settings import DssmSettings
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.schema import Bags, Schema
from privrec.models.api import Recommender
from privrec.models.dssm import dssm
from privrec.seeds import key
from privrec.types import IntArray

PackPairs = Callable[[Clients, int], list[PackedClient]]
"""(people, round_index) -> the instances that each of them trains on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """The DSSM of a run: `fresh()` is it before any training, `pack` builds what it trains on.

    `items` are the features of items that it knows.
    """

    recommender: Recommender
    items: Bags
    fresh: Callable[[], dict[str, jax.Array]]
    pack: PackPairs


def network_of(settings: DssmSettings, catalogue: Catalogue) -> Network:
    """Return the DSSM of these settings for this catalogue."""
    recommender = recommender_of(settings, catalogue)
    return Network(
        recommender=recommender,
        items=known(settings, catalogue).items,
        fresh=partial(fresh, recommender, settings.seed),
        pack=packer(instances_of(settings), catalogue.n_items, settings.seed),
    )


def recommender_of(settings: DssmSettings, catalogue: Catalogue) -> Recommender:
    """Return the network."""
    return dssm(
        known(settings, catalogue).schema,
        catalogue.n_items,
        embedding_size=settings.embedding_size,
        tower_size=settings.tower_size,
        hidden=settings.hidden,
        activation=settings.activation,
        target=settings.target,
        embedding_scale=settings.embedding_scale,
    )


def known(settings: DssmSettings, catalogue: Catalogue) -> Catalogue:
    """Return what the network knows of the catalogue: without side information, only the items."""
    if settings.side_information:
        return catalogue
    return replace(catalogue, schema=Schema(features=()), items={})


def fresh(recommender: Recommender, seed: int) -> dict[str, jax.Array]:
    """Return the parameters before any training."""
    params: dict[str, jax.Array] = jax.jit(recommender.init)(key(seed, 0, "init"))
    return params


def instances_of(settings: DssmSettings) -> Instances:
    """Return how a person's data becomes training instances."""
    return Instances(
        negatives=settings.negatives,
        batch_size=settings.batch_size,
        dislike_target=settings.dislike_target,
        ratings=settings.target == "rating",
        side_information=settings.side_information,
    )


def packer(instances: Instances, n_items: int, seed: int) -> PackPairs:
    """Return the function that builds the instances of some people in some round."""

    def pack_people(people: Clients, round_index: int) -> list[PackedClient]:
        return pack(people, instances, n_items=n_items, seed=seed, round_index=round_index)

    return pack_people


def empty_pairs(
    network: Network, settings: DssmSettings, federation: Federation, people: IntArray
) -> list[PackedClient]:
    """Return a client without instances for each shape that clients can have."""
    (example,) = network.pack(federation.take(people[:1]), 0)
    sizes = buckets(federation.largest, instances_of(settings))
    return [dummy(example, size, federation.n_items) for size in sizes]
