"""Large catalogues of made-up data, where a person looks at one item of each group."""

import hashlib
import tracemalloc
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.data import synthetic as module
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.seeds import rng

GENRES = "embed/item.genres"


@pytest.fixture(scope="module")
def large() -> Federation:
    return synthetic(SyntheticSettings(users=10**6, items=50_000, longest=100))


@given(items=st.integers(1, 3000), longest=st.integers(1, 400))
def test_every_item_is_in_one_group(items: int, longest: int) -> None:
    fame = rng(0, 0, "test").permutation(items) + 1
    groups, appeal = module._grouped(fame, longest)
    assert sorted(groups.by_fame.tolist()) == list(range(items))
    # The most popular item first, as `fame` says.
    assert fame[groups.by_fame].tolist() == list(range(1, items + 1))
    assert len(groups.sizes) == min(items, max(1024, 4 * longest))
    assert groups.sizes.min() >= 1
    ends = groups.starts + groups.sizes
    assert (groups.starts[0], ends[-1]) == (0, items)
    assert groups.starts[1:].tolist() == ends[:-1].tolist()
    weights = [
        sum(k**-0.6 for k in range(start + 1, end + 1))
        for start, end in zip(groups.starts.tolist(), ends.tolist(), strict=True)
    ]
    np.testing.assert_allclose(np.exp(appeal), weights, rtol=1e-9)
    # Equal weights as far as whole items allow: no group has more than its share and one item.
    shared = [weight for weight, size in zip(weights, groups.sizes, strict=True) if size > 1]
    assert max(shared, default=0.0) <= sum(weights) / len(weights) + 1


def test_columns_of_a_large_catalogue_fit_together(large: Federation) -> None:
    clients = large.take(np.arange(500))
    assert clients.item.dtype == np.int32
    assert clients.item.min() >= 0
    assert clients.item.max() < large.n_items == 50_000
    assert (clients.sizes.min() >= 6, clients.sizes.max() <= large.largest) == (True, True)
    pairs = clients.owner * large.n_items + clients.item
    assert len(np.unique(pairs)) == len(pairs)
    assert 0.5 < clients.liked.mean() < 0.9
    catalogue = large.catalogue
    assert len(set(catalogue.titles)) == len(set(catalogue.item_ids)) == 50_000
    bag = large.items[GENRES]
    used = bag.weights > 0
    np.testing.assert_allclose(bag.weights.sum(1), 1, rtol=1e-6)
    # One, two or three genres, and no genre twice.
    assert set(used.sum(1).tolist()) == {1, 2, 3}
    several = np.where(used, bag.codes, [[-1, -2, -3]])
    assert (np.diff(np.sort(several, axis=1), axis=1) != 0).all()
    assert set(bag.codes[used].tolist()) == set(range(8))


def lines(clients: Clients, k: int) -> list[tuple[int, float, float]]:
    rows = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
    columns = (clients.item, clients.value, clients.time)
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def test_anybody_is_the_same_in_any_company_of_a_large_catalogue(large: Federation) -> None:
    together = large.take(np.arange(300))
    for some in ([7], [250, 3], [*range(100, 140)]):
        apart = large.take(np.array(some))
        assert [lines(apart, k) for k in range(len(some))] == [lines(together, k) for k in some]


def share_by_fame(
    federation: Federation, clients: Clients, fame: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The share of interactions with the first 10, the next 30, 100, 300 and 1,560 items."""
    counts = np.bincount(clients.item, minlength=federation.n_items)[np.argsort(fame)]
    sums = np.add.reduceat(counts, [0, 10, 40, 140, 440])
    return np.asarray(sums / sums.sum())


def test_groups_give_about_the_law_of_looking_at_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same catalogue of 2,000 items by both laws, and the same tastes."""
    settings = SyntheticSettings(users=1000, items=2000, longest=40)
    people = np.arange(1000)
    exact = synthetic(settings)
    world = module._world(settings)
    fame = np.rint(np.exp(world.appeal / -0.6)).astype(np.int64)
    groups, appeal = module._grouped(fame, settings.longest)
    assert len(groups.sizes) == 1024
    assert groups.sizes.max() > 2
    by_groups = replace(world, groups=groups, appeal=appeal)
    monkeypatch.setattr(module, "_world", lambda _: by_groups)
    other = synthetic(settings)
    one, two = exact.take(people), other.take(people)
    assert one.item.tolist() != two.item.tolist()
    assert one.sizes.tolist() == two.sizes.tolist()
    # About 25,000 interactions each: the standard error of a share is at most 0.0033 and that of
    # the mean of stars 0.007. The laws differ a little too.
    shares = [share_by_fame(exact, clients, fame) for clients in (one, two)]
    np.testing.assert_allclose(shares[0], shares[1], atol=0.02)
    assert abs(one.value.mean() - two.value.mean()) < 0.05


def test_an_old_run_on_a_large_catalogue_does_not_fit_the_new_people() -> None:
    def named(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    for items, is_new in ((4096, False), (4097, True)):
        federation = synthetic(SyntheticSettings(items=items))
        assert (federation.fingerprint != named(f"synthetic:items={items}")) == is_new


def test_the_cost_of_a_person_does_not_grow_with_the_catalogue() -> None:
    peaks = []
    for items in (5_000, 200_000):
        federation = synthetic(SyntheticSettings(items=items))
        federation.take(np.arange(2))
        tracemalloc.start()
        try:
            federation.take(np.arange(20))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
