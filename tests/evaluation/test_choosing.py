"""What a choice of settings may see: training people and training lines alone."""

from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

from privrec.data.federation import Federation
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.evaluation.choosing import FEWEST, Trial, is_better, is_in_fifth, trial_of
from privrec.evaluation.protocols import Protocol
from privrec.types import Candidates, IntArray, ProtocolName
from protocol_toys import Line, items, of, timed

SEED = 3


@pytest.fixture(scope="module")
def people() -> Federation:
    return synthetic(SyntheticSettings(users=400, items=50, longest=30))


def protocol_of(name: ProtocolName) -> Protocol:
    among: Candidates = "not-kept" if name == "files" else "unseen"
    return Protocol(name=name, candidates=among, seed=SEED)


def trial_on(name: ProtocolName, data: Federation) -> Trial:
    protocol = protocol_of(name)
    split = protocol.roles(data)
    trial = trial_of(protocol, data, split.train, split.validation)
    assert trial is not None
    return trial


def test_under_halves_nobody_is_looked_at_who_is_learned_from_or_tested(people: Federation) -> None:
    split, trial = protocol_of("halves").roles(people), trial_on("halves", people)
    assert set(split.validation.tolist()) <= set(trial.tested.tolist())
    assert not set(trial.tested.tolist()) & set(trial.train.tolist())
    assert not set(split.test.tolist()) & {*trial.tested.tolist(), *trial.train.tolist()}
    # Few validate, so a fifth of those who train are looked at too.
    assert len(trial.train) == len(split.train) - len(split.train) // 5
    assert len(trial.tested) == len(split.validation) + len(split.train) // 5


def test_a_fifth_of_each_list_is_held_out_of_what_is_learned_from(people: Federation) -> None:
    def never(positions: IntArray) -> NoReturn:
        raise AssertionError("a choice must not read the test file")

    trial = trial_on("files", replace(people, take_test=never))
    everybody = np.arange(people.n_clients)
    held = trial.view(everybody)
    whole, learned = people.take(everybody), trial.federation.take(everybody)
    np.testing.assert_array_equal(learned.item, held.kept.item)
    np.testing.assert_array_equal(held.hidden.sizes, (whole.sizes + 2) // 5)
    np.testing.assert_array_equal(held.hidden.sizes + held.kept.sizes, whole.sizes)
    for one in range(20):
        lines = sorted(
            (item, time)
            for part in (held.kept, held.hidden)
            for item, time in zip(
                part.take(np.array([one])).item, part.take(np.array([one])).time, strict=True
            )
        )
        alone = whole.take(np.array([one]))
        assert lines == sorted(zip(alone.item, alone.time, strict=True))
    assert held.tested.liked.all()
    assert trial.figure == "Recall@20"


def test_a_persons_fifth_is_random_and_does_not_depend_on_others(people: Federation) -> None:
    everybody = people.take(np.arange(people.n_clients))
    held = is_in_fifth(everybody, SEED)
    for one in (0, 7, 300):
        alone = is_in_fifth(everybody.take(np.array([one])), SEED)
        start, end = everybody.offsets[one : one + 2]
        np.testing.assert_array_equal(alone, held[start:end])
    assert (is_in_fifth(everybody, SEED + 1) != held).any()
    place = np.arange(len(held)) - everybody.offsets[everybody.owner]
    shares = [held[place == k].mean() for k in range(5)]
    assert max(shares) - min(shares) < 0.12  # The first lines are as likely as the others.


# In the order of time: 1 liked, 3 liked, 4 disliked, 0 liked, 2 disliked, 5 liked.
LINES: list[tuple[int, float, float]] = [
    (1, 5.0, 10.0),
    (3, 4.0, 20.0),
    (4, 2.0, 25.0),
    (0, 5.0, 30.0),
    (2, 1.0, 40.0),
    (5, 5.0, 50.0),
]


def test_leave_last_holds_out_the_like_before_the_tested_one() -> None:
    names = [f"p{k}" for k in range(60)]
    lines: list[Line] = [(name, *line) for name in names for line in LINES]
    trial = trial_on("leave-last", timed(lines, people=names))
    # The last like, 5, is the final report's: it is nowhere here.
    assert of(trial.view(np.array([0]))) == ([1, 3, 4], [0, 2], [0])
    assert items(trial.federation.take(np.array([0]))) == [1, 3, 4]


def test_with_too_few_people_nothing_is_chosen() -> None:
    data = synthetic(SyntheticSettings(users=100, items=30, longest=20))
    protocol = protocol_of("halves")
    split = protocol.roles(data)
    assert trial_of(protocol, data, split.train, split.validation) is None


@pytest.mark.parametrize(("several", "is_enough"), [(FEWEST - 1, False), (FEWEST, True)])
def test_who_has_nothing_to_test_is_not_looked_at(several: int, *, is_enough: bool) -> None:
    names = [f"p{k}" for k in range(3 * FEWEST)]
    lines: list[Line] = [(name, *line) for name in names[:several] for line in LINES]
    lines += [(name, *LINES[0]) for name in names[several:]]
    data, everybody = timed(lines, people=names), np.arange(len(names))
    trial = trial_of(protocol_of("leave-last"), data, everybody, everybody[:0])
    assert (trial is not None) == is_enough


def test_better_means_by_more_than_the_error_of_the_difference() -> None:
    draw = np.random.default_rng(0)
    usual = draw.uniform(size=400)
    assert is_better(usual + 0.01, usual)
    assert not is_better(usual, usual)
    assert not is_better(usual - 0.01, usual)
    noisy = usual + draw.permuted(np.repeat([-0.5, 0.5], 200))
    assert not is_better(noisy, usual)  # On average the same.
    assert not is_better(noisy + 0.01, usual)  # Better by less than the error, 0.025.
    assert is_better(noisy + 0.05, usual)
