"""What each protocol trains on, keeps and tests, on data whose answer is plain; no JAX here."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from privrec.core.scorer import Scorer, Scores
from privrec.data.clients import Clients, chosen, halve, split_clients
from privrec.data.synthetic import SyntheticSettings, synthetic
from privrec.errors import SettingsError
from privrec.evaluation.protocols import Protocol, resolve
from privrec.evaluation.ranking import evaluate
from privrec.types import ProtocolName
from protocol_toys import Line, everybody, items, moody, of, report_of, returning, timed

EVERYBODY_VALIDATES = 1.0


# In the order of time: 1 liked, 3 liked, 4 disliked, 0 liked, 2 disliked.
ANN: list[Line] = [
    ("ann", 0, 5.0, 30.0),
    ("ann", 1, 5.0, 10.0),
    ("ann", 2, 1.0, 40.0),
    ("ann", 3, 4.0, 20.0),
    ("ann", 4, 2.0, 25.0),
]


def test_leave_last_tests_the_last_like_and_trains_on_what_came_before() -> None:
    federation = timed(ANN, people=["ann"])
    protocol = Protocol(name="leave-last", candidates="unseen", seed=0, validation_share=0.0)
    assert items(protocol.training(federation).take(np.array([0]))) == [1, 3, 4]
    # The dislike after the tested like is nowhere but among what she has met.
    assert of(protocol.testing(federation)(np.array([0]))) == ([1, 3, 4], [0, 2], [0])
    assert of(protocol.validating(federation)(np.array([0])))[2] == []


def test_a_validation_person_holds_back_one_like_more() -> None:
    federation = timed(ANN, people=["ann"])
    protocol = Protocol(
        name="leave-last", candidates="unseen", seed=0, validation_share=EVERYBODY_VALIDATES
    )
    assert items(protocol.training(federation).take(np.array([0]))) == [1]
    # What the final report asks for, and whatever came after it, is unknown to validation.
    assert of(protocol.validating(federation)(np.array([0]))) == ([1], [3, 4], [3])
    # At the test her device knows what it held back before.
    assert of(protocol.testing(federation)(np.array([0]))) == ([1, 3, 4], [0, 2], [0])


@pytest.mark.parametrize(("share", "least"), [(0.0, 2), (EVERYBODY_VALIDATES, 3)])
@pytest.mark.parametrize("likes", [0, 1, 2, 3])
def test_whoever_has_too_few_likes_trains_with_all_lines(
    share: float, least: int, likes: int
) -> None:
    lines = [("bob", item, 5.0 if item < likes else 1.0, float(item)) for item in range(4)]
    lines += [("eve", 9, 5.0, 0.0)]
    federation = timed(lines, people=["bob", "eve", "nobody"])
    protocol = Protocol(name="leave-last", candidates="unseen", seed=0, validation_share=share)
    trained = protocol.training(federation).take(everybody(federation))
    held = protocol.testing(federation)(everybody(federation))
    if likes < least:
        assert items(trained) == [0, 1, 2, 3]
        assert of(held) == ([0, 1, 2, 3], [], [])
        assert items(protocol.validating(federation)(np.array([0])).tested) == []
    else:
        assert items(held.tested) == [likes - 1]
        assert len(items(trained)) == (likes - 2 if share else likes - 1)
    assert of(held, 1) == ([9], [], [])
    assert of(held, 2) == ([], [], [])
    assert items(trained, 2) == []


def test_equal_times_are_told_apart_by_position() -> None:
    lines = [("ann", item, 5.0 if item % 2 else 1.0, 7.0) for item in (4, 5, 0, 3, 8)]
    federation = timed(lines, people=["ann"])
    protocol = Protocol(name="leave-last", candidates="unseen", seed=0, validation_share=0.0)
    assert of(protocol.testing(federation)(np.array([0]))) == ([4, 5, 0], [3, 8], [3])
    assert items(protocol.training(federation).take(np.array([0]))) == [4, 5, 0]


def test_data_without_times_has_no_last_like() -> None:
    federation = timed(ANN, people=["ann"], time=False)
    with pytest.raises(SettingsError) as caught:
        resolve("leave-last", None, federation)
    assert str(caught.value).startswith("`protocol` must not be 'leave-last' where lines have no")
    assert "\n" not in str(caught.value)
    assert resolve(None, None, federation) == ("halves", "unseen")


def slow_leave_last(lines: list[tuple[int, bool]], validates: bool) -> dict[str, list[int]]:
    """(item, liked) in the order of time -> what training, device, validation and test have."""
    likes = [place for place, (_, liked) in enumerate(lines) if liked]
    found = [item for item, _ in lines]
    if len(likes) < (3 if validates else 2):
        return {"trained": found, "kept": found, "tested": [], "shown": found, "validated": []}
    last, before = likes[-1], likes[-2]
    return {
        "trained": found[: before if validates else last],
        "kept": found[:last],
        "tested": [found[last]],
        "shown": found[: before if validates else last],
        "validated": [found[before]] if validates else [],
    }


def test_leave_last_equals_a_slow_loop() -> None:
    federation = synthetic(SyntheticSettings(users=300, items=60, longest=12))
    protocol = Protocol(name="leave-last", candidates="unseen", seed=4, validation_share=0.3)
    split = protocol.roles(federation)
    people = np.random.default_rng(0).permutation(300)
    trained = protocol.training(federation).take(people)
    held = protocol.testing(federation)(people)
    looked = protocol.validating(federation)(people)
    for k, person in enumerate(people):
        whole = federation.take(np.array([person]))
        lines = list(zip(whole.item.tolist(), whole.liked.tolist(), strict=True))
        assert {
            "trained": items(trained, k),
            "kept": items(held.kept, k),
            "tested": items(held.tested, k),
            "shown": items(looked.kept, k),
            "validated": items(looked.tested, k),
        } == slow_leave_last(lines, bool(np.isin(person, split.validation)))
        assert items(held.kept, k) + items(held.hidden, k) == whole.item.tolist()
    assert 0 < (held.tested.sizes == 0).sum() < 50


@pytest.mark.parametrize("name", ["leave-last", "files"])
def test_everybody_trains_and_the_public_number_is_the_declared_one(name: ProtocolName) -> None:
    people = [f"p{n}" for n in range(200)]
    federation = timed([("p0", 0, 5.0, 0.0)], people=people, test=[("p0", 1, 5.0, 1.0)])
    protocol = Protocol(name=name, candidates="unseen", seed=3, validation_share=0.2)
    split = protocol.roles(federation)
    assert split.public_train == 1000
    assert split.train.tolist() == split.test.tolist() == split.fitted.tolist() == list(range(200))
    ids = federation.ids(everybody(federation))
    validates = chosen(ids, 0.2, seed=3, purpose="validation")
    assert split.validation.tolist() == np.flatnonzero(validates).tolist()
    assert 20 < len(split.validation) < 60


BEA: list[Line] = [("bea", item, 5.0, float(item)) for item in range(6)]
ASKED: list[Line] = [
    ("bea", 10, 5.0, 9.0),
    ("bea", 11, 1.0, 9.0),
    ("bea", 3, 4.0, 9.0),
    # New to the training file: a person and an item.
    ("tom", 12, 5.0, 9.0),
]


def test_files_train_on_the_one_and_test_the_likes_of_the_other() -> None:
    federation = timed(BEA, people=["bea", "tom", "sue"], test=ASKED)
    protocol = Protocol(name="files", candidates="not-kept", seed=0, validation_share=0.0)
    training = protocol.training(federation)
    trained = training.take(everybody(federation))
    assert [items(trained, k) for k in range(3)] == [list(range(6)), [], []]
    assert training.take_test is None
    held = protocol.testing(federation)(everybody(federation))
    assert of(held, 0) == ([0, 1, 2, 3, 4, 5], [10, 11, 3], [10, 3])
    assert of(held, 1) == ([], [12], [12])
    assert of(held, 2) == ([], [], [])
    # She who is only in the test file is tested; she who is in neither is not.
    report = report_of(protocol.testing(federation), everybody(federation), silent(60), n_items=60)
    assert (report.tested, report.skipped) == (2, 1)


def test_files_validate_on_half_of_the_training_lines() -> None:
    federation = timed(BEA, people=["bea", "tom"], test=ASKED)
    protocol = Protocol(
        name="files", candidates="not-kept", seed=0, validation_share=EVERYBODY_VALIDATES
    )
    first, second = halve(federation.take(np.array([0])), seed=0)
    assert protocol.training(federation).take(np.array([0])).item.tolist() == first.item.tolist()
    held = protocol.validating(federation)(np.array([0]))
    assert of(held) == (items(first), items(second), items(second))
    # The device that is tested keeps them all.
    assert items(protocol.testing(federation)(np.array([0])).kept) == list(range(6))


def test_what_goes_with_the_data_is_taken_unless_told() -> None:
    plain, fixed = timed(BEA, people=["bea"]), timed(BEA, people=["bea", "tom"], test=ASKED)
    assert resolve("auto", "auto", plain) == ("halves", "unseen")
    assert resolve("auto", "auto", fixed) == ("files", "not-kept")
    assert resolve("leave-last", "auto", fixed) == ("leave-last", "unseen")
    assert resolve("leave-last", "not-kept", plain) == ("leave-last", "not-kept")
    for name, candidates, said in [
        ("files", None, "`protocol` must be 'halves' or 'leave-last' for data without a test file"),
        (
            "leavelast",
            None,
            "`protocol` must be 'halves', 'leave-last' or 'files'; got 'leavelast'",
        ),
        ("halves", "all", "`candidates` must be 'unseen' or 'not-kept'; got 'all'"),
    ]:
        with pytest.raises(SettingsError) as caught:
            resolve(name, candidates, plain)
        assert str(caught.value).startswith(said)


def test_halves_are_what_they_were() -> None:
    federation = synthetic(SyntheticSettings(users=120, items=60))
    protocol = Protocol(
        name="halves",
        candidates="unseen",
        seed=2,
        halving="time",
        test_share=0.3,
        validation_share=0.2,
    )
    assert protocol.training(federation) is federation
    old = split_clients(np.arange(120), seed=2, test_share=0.3, validation_share=0.2, people=120)
    new = protocol.roles(federation)
    assert old.public_train == new.public_train
    for name in ("train", "validation", "test"):
        assert getattr(old, name).tolist() == getattr(new, name).tolist()
    for view in (protocol.testing(federation), protocol.validating(federation)):
        held = view(new.test)
        first, second = halve(federation.take(new.test), seed=2, halving="time")
        assert held.kept.item.tolist() == first.item.tolist()
        assert held.hidden.item.tolist() == second.item.tolist()
    scorer = moody(60)
    before = evaluate(federation, new.test, scorer, seed=2, halving="time")
    after = report_of(protocol.testing(federation), new.test, scorer, n_items=federation.n_items)
    assert before == after
    assert "recall" not in after.as_json()


def silent(n_items: int) -> Scorer:
    def score(kept: Clients, tested: Clients) -> Iterator[Scores]:
        return iter([np.zeros((1, n_items))] * len(kept))

    return score


def test_the_training_view_never_gives_a_held_out_line_to_anybody() -> None:
    """Whole, in pieces, and one by one: the view is the same, and positions stay positions."""
    federation = returning()
    for name in ("leave-last", "files"):
        protocol = Protocol(name=name, candidates="unseen", seed=1, validation_share=0.3)
        training = protocol.training(federation)
        whole = training.take(everybody(federation))
        for person in everybody(federation)[::-1]:
            alone = training.take(np.array([person]))
            assert alone.item.tolist() == items(whole, int(person))
        assert (training.n_clients, training.fingerprint) == (50, federation.fingerprint)
        spoilt = replace(federation, take_test=None)
        assert protocol.training(spoilt).take(everybody(federation)).item.tolist() == (
            whole.item.tolist()
        )
