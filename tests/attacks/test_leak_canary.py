"""A model that learns only "training never drew this item as a negative" must gain nothing.

An easy mistake is to draw a device's negatives from the items outside *both* halves of its data.
Then the held-out items would be the only unknown items that are never drawn as negatives. The
canary is a model that can learn only that. It uses the same code as a real model: packing, local
training, scoring and ranking.
"""

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from privrec.algorithms.reptile.adapt import adapted_scorer
from privrec.algorithms.reptile.pack import Instances, PackedClient, draw_negatives
from privrec.core.model import ITEM_TABLE, Recommender
from privrec.core.scorer import Scorer, Scores
from privrec.core.training import LocalResult
from privrec.data.clients import Clients, halve
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.evaluation.ranking import EvalReport, evaluate
from privrec.types import Array, Key, Params

N_ITEMS = 60
# A first half has about nine likes, with 50 negatives each. The device does not know about fifty
# items. Each of them is drawn nine times on average, and never with probability e^-9.
INSTANCES = Instances(negatives=50, batch_size=64, dislike_target=0.5)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return synthetic(SyntheticSettings(users=1000, items=N_ITEMS, seed=11))


def canary_model(federation: Federation) -> Recommender:
    """An item's score is its one parameter, the same for all people; features have no effect."""

    def init(key: Key) -> dict[str, Array]:
        features = {f.table: jnp.zeros((f.rows, 1)) for f in federation.schema.features}
        return {ITEM_TABLE: jnp.zeros((N_ITEMS, 1)), **features}

    def user(dense: Params, rows: Mapping[str, Array], weights: Mapping[str, Array]) -> Array:
        return jnp.zeros((1, 1))

    def item(dense: Params, rows: Mapping[str, Array], weights: Mapping[str, Array]) -> Array:
        return rows[ITEM_TABLE][:, 0]

    def head(dense: Params, user: Array, item: Array) -> Array:
        return (user + item)[:, 0]

    return Recommender(init=init, user=user, item=item, head=head, loss=lambda s, t: s * t)


def count_negatives(params: Params, catalogue: Bags, client: PackedClient) -> LocalResult:
    """Subtract 1 from an item each time it is drawn as a negative (an instance of target 0)."""
    real = jnp.arange(len(client.target)) < client.size
    negative = (real & (client.target == 0)).astype(jnp.float32)
    counts = jnp.zeros((len(client.rows), 1)).at[client.item, 0].add(negative)
    nothing = {name: jnp.zeros_like(value) for name, value in params.items()}
    return LocalResult(update={**nothing, ITEM_TABLE: -counts}, loss=jnp.zeros(()))


@pytest.fixture(scope="module")
def canary(federation: Federation) -> Scorer:
    model = canary_model(federation)
    params = model.init(jax.random.key(0))
    return adapted_scorer(model, count_negatives, federation.catalogue, INSTANCES, params, seed=0)


def sing(federation: Federation, canary: Scorer, *, leaking: bool) -> EvalReport:
    """Return the canary's figures; with `leaking` the device packs both halves of its data."""
    chance = np.random.default_rng(0)

    def scorer(first: Clients, lines: Clients) -> Iterable[Scores]:
        known = federation.take(first.ids) if leaking else first
        # Counts are integers: adding less than 1 puts equal ones in a random order.
        return [table + chance.random(table.shape) for table in canary(known, lines)]

    return evaluate(federation, np.arange(federation.n_clients), scorer, seed=0)


def chance_of_hits(federation: Federation, k: int) -> tuple[float, float]:
    """Hits@k of a random guess, k / (candidates + 1), and a bound on its standard error."""
    sizes = federation.take(np.arange(federation.n_clients)).sizes
    # No person has an item twice, so all items that she does not have are candidates.
    shares = k / (N_ITEMS - sizes + 1)
    # A person's figure is a mean of draws with this probability: its variance is at most theirs.
    error = np.sqrt((shares * (1 - shares)).sum()) / len(shares)
    return float(shares.mean()), float(error)


def test_the_canary_gains_nothing(federation: Federation, canary: Scorer) -> None:
    report = sing(federation, canary, leaking=False)
    assert report.tested > 950
    for k in (5, 10, 20):
        expected, error = chance_of_hits(federation, k)
        assert error < 0.016
        # Not better than chance, and not worse: worse would be the same leak with opposite sign.
        assert abs(report.hits[k] - expected) < 4 * error, k


def test_the_canary_can_sing(federation: Federation, canary: Scorer) -> None:
    report = sing(federation, canary, leaking=True)
    assert report.hits[5] > 0.98
    expected, _ = chance_of_hits(federation, 5)
    assert expected < 0.2


def test_nearly_everything_unknown_is_drawn(federation: Federation) -> None:
    # Otherwise the canary could detect nothing: most counts would be 0, most ranks random.
    first, second = halve(federation.take(np.arange(300)), seed=0)
    line, item = draw_negatives(first, n_items=N_ITEMS, per_positive=50, seed=0, round_index=0)
    drawn = np.zeros((300, N_ITEMS), np.bool_)
    drawn[first.owner[line], item] = True
    assert drawn[second.owner, second.item].mean() > 0.95
    assert not drawn[first.owner, first.item].any()


def test_a_device_does_not_read_the_items_that_it_is_asked_about(
    federation: Federation, canary: Scorer
) -> None:
    first, second = halve(federation.take(np.arange(20)), seed=0)
    for one, other in zip(canary(first, second), canary(first, first), strict=True):
        assert np.asarray(one).tolist() == np.asarray(other).tolist()
