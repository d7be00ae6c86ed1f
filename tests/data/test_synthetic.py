import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.data import synthetic as module
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.errors import SettingsError
from privrec.seeds import client_words

SMALL = SyntheticSettings(users=60, items=80, longest=30, seed=4)
AGE, REGION, GENRES = "embed/user.age", "embed/user.region", "embed/item.genres"


@pytest.fixture(scope="module")
def population() -> tuple[Federation, Clients]:
    federation = synthetic(SyntheticSettings())
    return federation, federation.take(np.arange(federation.n_clients))


def lines_of(clients: Clients, k: int) -> list[tuple[int, float, bool, float]]:
    rows = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
    return list(
        zip(
            clients.item[rows].tolist(),
            clients.value[rows].tolist(),
            clients.liked[rows].tolist(),
            clients.time[rows].tolist(),
            strict=True,
        )
    )


def as_lists(clients: Clients) -> list[object]:
    return [
        clients.ids.tolist(),
        [lines_of(clients, k) for k in range(len(clients))],
        {
            name: (bag.codes.tolist(), bag.weights.tolist())
            for name, bag in clients.features.items()
        },
    ]


def test_the_same_settings_give_the_same_world() -> None:
    one, other = synthetic(SMALL), synthetic(SMALL)
    assert as_lists(one.take(np.arange(60))) == as_lists(other.take(np.arange(60)))
    assert one.items[GENRES].codes.tolist() == other.items[GENRES].codes.tolist()
    other = synthetic(SyntheticSettings(users=60, items=80, longest=30, seed=5))
    assert one.take(np.arange(60)).item.tolist() != other.take(np.arange(60)).item.tolist()


def test_more_people_leave_the_first_ones_as_they_are() -> None:
    larger = synthetic(SyntheticSettings(users=10**6, items=80, longest=30, seed=4))
    assert as_lists(larger.take(np.arange(60))) == as_lists(synthetic(SMALL).take(np.arange(60)))


@settings(deadline=None, max_examples=40)
@given(positions=st.lists(st.integers(0, 59), max_size=20))
def test_anybody_is_the_same_in_any_company(positions: list[int]) -> None:
    federation = synthetic(SMALL)
    everybody = federation.take(np.arange(60))
    asked = np.array(positions, np.int64)
    some = federation.take(asked)
    assert as_lists(some) == as_lists(everybody.take(asked))


def test_columns_fit_together(population: tuple[Federation, Clients]) -> None:
    federation, clients = population
    assert clients.ids.tolist() == list(range(2000))
    assert int(clients.offsets[-1]) == len(clients.item) == len(clients.value)
    assert clients.sizes.min() >= 6
    assert clients.sizes.max() <= federation.largest == 200
    assert clients.item.min() >= 0
    assert clients.item.max() < federation.n_items == 600
    assert set(clients.value.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert (clients.liked == (clients.value > federation.catalogue.positive_above)).all()
    catalogue = federation.catalogue
    assert len(set(catalogue.titles)) == len(set(catalogue.item_ids)) == 600
    for bag, count in ((clients.features[AGE], 5), (clients.features[REGION], 6)):
        assert set(bag.codes[:, 0].tolist()) == set(range(count))
        assert (bag.weights == 1).all()


def test_everybodys_lines_are_in_the_order_of_time(
    population: tuple[Federation, Clients],
) -> None:
    _, clients = population
    later = np.diff(clients.time)[clients.owner[1:] == clients.owner[:-1]]
    assert (later >= 0).all()
    # The order is independent of the stars: the best-liked items do not come first.
    place = np.arange(len(clients.item)) - clients.offsets[clients.owner]
    earlier = place < (clients.sizes // 2)[clients.owner]
    stars = clients.value[earlier].mean() - clients.value[~earlier].mean()
    # The standard error of the difference: a spread of 1 star over half of the lines each.
    assert abs(stars) < 4 * 2 / np.sqrt(len(place))


def test_nobody_meets_an_item_twice(population: tuple[Federation, Clients]) -> None:
    federation, clients = population
    pairs = clients.owner * federation.n_items + clients.item
    assert len(np.unique(pairs)) == len(pairs)
    assert not federation.repeats


@pytest.mark.parametrize(("items", "longest", "largest"), [(20, 200, 10), (600, 10, 10)])
def test_largest_bounds_everybody(items: int, longest: int, largest: int) -> None:
    federation = synthetic(SyntheticSettings(users=500, items=items, longest=longest))
    sizes = federation.take(np.arange(500)).sizes
    assert federation.largest == largest
    # Active people reach the bound; nobody exceeds it.
    assert sizes.max() == largest


def test_activity_and_fame_have_long_tails(population: tuple[Federation, Clients]) -> None:
    federation, clients = population
    sizes = clients.sizes
    # A log-normal with sigma 0.8 has mean / median = exp(0.32) = 1.38, and its busiest tenth has
    # 32 % of all interactions; a Poisson activity of the same mean would have 1 and 13 %.
    assert sizes.mean() / np.median(sizes) > 1.2
    assert np.sort(sizes)[-200:].sum() / sizes.sum() > 0.28
    counts = np.sort(np.bincount(clients.item, minlength=federation.n_items))
    assert counts[-60:].sum() / counts.sum() > 0.25


def genre_profiles(federation: Federation, clients: Clients) -> npt.NDArray[np.float64]:
    """Each person's mean genre weights over her likes, minus the mean of all people."""
    bag = federation.items[GENRES]
    table = np.zeros((federation.n_items, 8))
    np.add.at(table, (np.arange(federation.n_items)[:, None], bag.codes), bag.weights)
    sums, counts = np.zeros((len(clients), 8)), np.zeros((len(clients), 1))
    np.add.at(sums, clients.owner[clients.liked], table[clients.item[clients.liked]])
    np.add.at(counts, clients.owner[clients.liked], 1)
    profiles = sums / np.maximum(counts, 1)
    centred: npt.NDArray[np.float64] = profiles - profiles.mean(0)
    return centred


@pytest.mark.parametrize("feature", [AGE, REGION])
def test_demographics_explain_part_of_taste(
    feature: str, population: tuple[Federation, Clients]
) -> None:
    federation, clients = population
    profiles = genre_profiles(federation, clients)
    code = clients.features[feature].codes[:, 0]

    def explained(group: npt.NDArray[np.integer]) -> float:
        """The share of the variance between groups: eta squared."""
        means = [profiles[group == g].mean(0) for g in range(group.max() + 1)]
        between = sum((group == g).sum() * float((mean**2).sum()) for g, mean in enumerate(means))
        return float(between / (profiles**2).sum())

    shuffled = np.random.default_rng(0).permutation(code)
    assert explained(shuffled) < 0.01
    # A part, not all: two features and an individual taste share the variance.
    assert 0.03 < explained(code) < 0.6


def test_genres_explain_part_of_taste(population: tuple[Federation, Clients]) -> None:
    federation, clients = population
    half = np.random.default_rng(0).random(len(clients.item)) < 0.5
    one = genre_profiles(federation, clients.keep(half))
    other = genre_profiles(federation, clients.keep(~half))
    keep = clients.sizes > 40
    one, other = one[keep], other[keep]

    def similarity(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
        return float(
            ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean()
        )

    # Half of a person's likes predicts the genres of the other half, better than another person's.
    assert similarity(one, other) > 0.6
    assert abs(similarity(one, np.roll(other, 1, axis=0))) < 0.15


def test_ratings_follow_taste_rather_than_chance(population: tuple[Federation, Clients]) -> None:
    _, clients = population
    # There are enough likes to rank and enough dislikes.
    assert 0.5 < clients.liked.mean() < 0.9
    likes = np.bincount(clients.owner[clients.liked], minlength=2000)
    assert (likes >= 2).mean() > 0.99


def test_a_million_people_cost_what_the_cohort_costs() -> None:
    tracemalloc.start()
    try:
        federation = synthetic(SyntheticSettings(users=10**6, items=100, longest=50))
        clients = federation.take(np.array([999_999, 0, 5, 17, 400_000, 1, 2, 3, 123_456, 9]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert clients.ids[0] == 999_999
    # One byte for each of the million would be 1 MB.
    assert peak < 500_000


def test_the_most_extreme_words_make_people_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in (0, 2**64 - 1):

        def extreme(
            seed: int,
            round_index: int,
            purpose: str,
            client: npt.NDArray[np.integer],
            position: npt.NDArray[np.integer],
            word: int = word,
        ) -> npt.NDArray[np.uint64]:
            if purpose == "synthetic choice":
                return client_words(seed, round_index, purpose, client, position)
            return np.full(np.broadcast_shapes(client.shape, position.shape), word, np.uint64)

        monkeypatch.setattr(module, "client_words", extreme)
        clients = synthetic(SMALL).take(np.arange(3))
        assert len(clients.item) == clients.sizes.sum() > 0
        assert np.isfinite(clients.value).all()
        assert set(clients.features[AGE].codes[:, 0].tolist()) <= set(range(5))


@pytest.mark.parametrize(
    ("name", "value", "least"), [("users", 1, 2), ("items", 19, 20), ("longest", 9, 10)]
)
def test_sizes_too_small_are_refused(name: str, value: int, least: int) -> None:
    with pytest.raises(SettingsError, match=f"`{name}` must be >= {least}; got {value}$"):
        SyntheticSettings(**{name: value})
