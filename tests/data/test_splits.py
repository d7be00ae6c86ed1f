from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.data.clients import Clients, Split, chosen, halve, split_clients
from privrec.data.schema import Bag
from privrec.errors import SettingsError
from privrec.types import Halving

PLACE = "embed/context.place"


def people_with(sizes: list[int], ids: list[int] | None = None) -> Clients:
    """Each person's items are numbered in the order of time; the context repeats the item."""
    item = np.concatenate([np.arange(size) for size in sizes] or [np.arange(0)]).astype(np.int32)
    return Clients(
        ids=np.array(ids if ids is not None else range(len(sizes)), np.int64),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        item=item,
        value=item.astype(np.float32),
        liked=item % 3 > 0,
        time=item.astype(np.float64),
        features={},
        context={PLACE: Bag(codes=item[:, None], weights=np.ones((len(item), 1), np.float32))},
    )


def items_of(clients: Clients, k: int) -> list[int]:
    return [int(i) for i in clients.item[clients.offsets[k] : clients.offsets[k + 1]]]


def as_set(people: npt.NDArray[np.int64]) -> set[int]:
    return {int(person) for person in people}


def roles_of(ids: npt.NDArray[np.int64], split: Split) -> dict[int, str]:
    """Return each person's role by id."""
    roles = {"train": split.train, "validation": split.validation, "test": split.test}
    return {int(ids[person]): role for role, people in roles.items() for person in people}


@pytest.mark.parametrize(("tests", "validates"), [(0.2, 0.1), (0.5, 0.2), (0.0, 0.5), (0.3, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_sizes_are_about_the_shares(seed: int, tests: float, validates: float) -> None:
    people = 20_000
    split = split_clients(
        np.arange(people), seed=seed, test_share=tests, validation_share=validates
    )
    # Validation people are cut out of those who do not test.
    shares = (tests, (1 - tests) * validates, (1 - tests) * (1 - validates))
    sizes = (len(split.test), len(split.validation), len(split.train))
    for size, share in zip(sizes, shares, strict=True):
        # Independent draws: 5 standard deviations of a binomial, which is 0 for a share of 0.
        assert abs(size - people * share) <= 5 * np.sqrt(people * share * (1 - share))


# As ids are hashes, any 64 bits can be one.
some_ids = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=200, unique=True).map(
    lambda ids: np.array(ids, np.int64)
)
shares = st.floats(0, 0.9)


@settings(deadline=None)
@given(ids=some_ids, seed=st.integers(0, 99), test_share=shares, validation_share=shares)
def test_everybody_has_exactly_one_role(
    ids: npt.NDArray[np.int64], seed: int, test_share: float, validation_share: float
) -> None:
    def split(people: npt.NDArray[np.int64]) -> Split:
        return split_clients(
            people, seed=seed, test_share=test_share, validation_share=validation_share
        )

    try:
        found = split(ids)
    except SettingsError:
        # The error is right: with ten thousand more people some train, but none of these.
        others = np.setdiff1d(np.arange(10_000), ids)
        assert min(split(np.concatenate([ids, others])).train) >= len(ids)
        return
    everybody = np.concatenate([found.train, found.validation, found.test])
    assert sorted(everybody.tolist()) == list(range(len(ids)))


@settings(deadline=None)
@given(ids=some_ids, seed=st.integers(0, 99), data=st.data())
def test_nobodys_presence_changes_anybodys_role(
    ids: npt.NDArray[np.int64], seed: int, data: st.DataObject
) -> None:
    everybody = np.concatenate([ids, np.setdiff1d(np.arange(100), ids)])
    whole = roles_of(everybody, split_clients(everybody, seed=seed))
    # A subset in any order. At least a hundred people stay, so that some of them train.
    kept = data.draw(st.lists(st.sampled_from(ids.tolist()), unique=True))
    some = np.array(data.draw(st.permutations([*kept, *everybody[len(ids) :].tolist()])), np.int64)
    part = roles_of(some, split_clients(some, seed=seed))
    assert part == {person: whole[person] for person in some.tolist()}


def test_test_people_depend_on_the_seed_alone() -> None:
    ids = np.arange(500)
    tests = [
        as_set(split_clients(ids, seed=3, validation_share=share, people=people).test)
        for share, people in ((0, None), (0.1, None), (0.5, None), (0.1, 9))
    ]
    assert tests[0] == tests[1] == tests[2] == tests[3]
    assert as_set(split_clients(ids, seed=4).test) != tests[0]


def test_the_public_number_of_training_people_is_not_counted() -> None:
    # 0.8 · 0.9 of the public number, independent of the people in the data and of their roles.
    for ids in (np.arange(1000), np.arange(999), np.arange(5000, 6010)):
        assert split_clients(ids, seed=0, people=1000).public_train == 720
    assert split_clients(np.arange(1000), seed=0).public_train == 720
    half = split_clients(np.arange(50), seed=0, test_share=0.5, validation_share=0.2, people=1000)
    assert half.public_train == 400
    assert split_clients(np.arange(50), seed=0, people=1).public_train == 1


def test_roles_are_spread_over_the_population() -> None:
    # Files are often sorted, for example by joining date: a role must not be a contiguous range.
    split = split_clients(np.arange(3000), seed=1)
    for people in (split.train, split.validation, split.test):
        # The mean of a random subset is within 5 standard errors of the middle.
        assert abs(people.mean() - 1500) < 5 * 3000 / np.sqrt(12 * len(people))


def test_nobody_to_train_on_is_an_error_in_one_line() -> None:
    with pytest.raises(SettingsError, match="nobody is left to train on: 2 people") as caught:
        split_clients(np.arange(2), seed=0, test_share=1.0)
    assert "\n" not in str(caught.value)


HALVINGS: st.SearchStrategy[Halving] = st.sampled_from(get_args(Halving))


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    halving=HALVINGS,
)
def test_halves_are_floor_and_ceiling_of_each_person(
    sizes: list[int], seed: int, halving: Halving
) -> None:
    clients = people_with(sizes)
    first, second = halve(clients, seed=seed, halving=halving)
    assert first.ids.tolist() == second.ids.tolist() == clients.ids.tolist()
    for k, size in enumerate(sizes):
        one, other = items_of(first, k), items_of(second, k)
        assert (len(one), len(other)) == (size // 2, size - size // 2)
        assert sorted(one + other) == list(range(size))
        # Each half stays in the order of time.
        assert one == sorted(one)
        assert other == sorted(other)
    for half in (first, second):
        # All columns of a line stay together.
        assert half.value.tolist() == half.time.tolist() == half.item.tolist()
        assert half.liked.tolist() == [item % 3 > 0 for item in half.item.tolist()]
        assert half.context[PLACE].codes[:, 0].tolist() == half.item.tolist()


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8), data=st.data())
def test_a_persons_halves_do_not_depend_on_who_else_is_asked(
    sizes: list[int], data: st.DataObject
) -> None:
    clients = people_with(sizes, ids=[100 + 7 * k for k in range(len(sizes))])
    asked = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    halving = data.draw(HALVINGS)
    everybody = halve(clients, seed=5, halving=halving)
    some = halve(clients.take(np.array(asked)), seed=5, halving=halving)
    for whole, part in zip(everybody, some, strict=True):
        for k, position in enumerate(asked):
            assert items_of(part, k) == items_of(whole, position)


def test_time_takes_the_earlier_half() -> None:
    first, second = halve(people_with([5, 2, 1]), seed=0, halving="time")
    assert [items_of(first, k) for k in range(3)] == [[0, 1], [0], []]
    assert [items_of(second, k) for k in range(3)] == [[2, 3, 4], [1], [0]]


def test_random_halves_are_random() -> None:
    clients = people_with([10] * 2000)
    first, _ = halve(clients, seed=0)
    counts = np.bincount(first.item, minlength=10)
    # Each of 10 places is in the first half of half of 2000 people: 1000, sd 22.4.
    assert abs(counts - 1000).max() < 5 * np.sqrt(2000 / 4)
    # Neighbouring lines are drawn independently: a draw without replacement has both in the first
    # half with probability 5/10 · 4/9, sd sqrt(444 · (1 - 0.222)).
    table = first.item.reshape(2000, 5)
    both = ((table == 0).any(1) & (table == 1).any(1)).sum()
    assert abs(int(both) - 2000 * 2 / 9) < 5 * np.sqrt(2000 * 2 / 9 * 7 / 9)


def test_another_seed_gives_other_halves() -> None:
    clients = people_with([20] * 5)
    assert halve(clients, seed=0)[0].item.tolist() != halve(clients, seed=1)[0].item.tolist()
    assert halve(clients, seed=0)[0].item.tolist() == halve(clients, seed=0)[0].item.tolist()
    # Two people with the same number of lines do not get the same halves.
    first, _ = halve(clients, seed=0)
    assert len({tuple(items_of(first, k)) for k in range(5)}) > 1


def test_whoever_is_chosen_is_chosen_alone_and_among_many() -> None:
    # More people than are hashed at once, twice, and some more.
    ids = np.arange(7, 70_007)
    together = chosen(ids, 0.1, seed=3, purpose="test")
    assert abs(together.mean() - 0.1) < 0.006
    for k in (0, 1, 32_767, 32_768, 40_000, 65_535, 65_536, 69_999, *np.flatnonzero(together)[-5:]):
        assert chosen(ids[k : k + 1], 0.1, seed=3, purpose="test")[0] == together[k]
    assert chosen(ids[:0], 0.1, seed=3, purpose="test").shape == (0,)
