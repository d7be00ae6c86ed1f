import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from privrec.algorithms.reptile.pack import draw_negatives
from privrec.data.clients import Clients, halve

Ints = npt.NDArray[np.int64]
Line = tuple[int, bool]


def people_with(histories: list[list[Line]], ids: list[int] | None = None) -> Clients:
    """People by their (item, liked) lines."""
    lines = [line for history in histories for line in history]
    liked = np.array([liked for _, liked in lines], np.bool_)
    return Clients(
        ids=np.array(ids if ids is not None else range(len(histories)), np.int64),
        offsets=np.concatenate([[0], np.cumsum([len(h) for h in histories])]).astype(np.int64),
        item=np.array([item for item, _ in lines], np.int32),
        value=liked.astype(np.float32),
        liked=liked,
        time=np.arange(len(lines), dtype=np.float64),
        features={},
        context={},
    )


def draw(
    clients: Clients, *, n_items: int, each: int = 2, seed: int = 0, round_index: int = 0
) -> tuple[Ints, Ints]:
    return draw_negatives(
        clients, n_items=n_items, per_positive=each, seed=seed, round_index=round_index
    )


def of_client(clients: Clients, k: int, drawn: tuple[Ints, Ints]) -> list[tuple[int, int]]:
    """(place of the line in the client's own history, item) of the client's negatives."""
    line, item = drawn
    mine = clients.owner[line] == k
    return [
        (int(place), int(i))
        for place, i in zip(line[mine] - clients.offsets[k], item[mine], strict=True)
    ]


def p_value(counts: Ints) -> float:
    expected = counts.sum() / counts.size
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), counts.size - 1))


HISTORIES = st.lists(
    st.lists(st.tuples(st.integers(0, 29), st.booleans()), max_size=8), min_size=1, max_size=6
)


@settings(deadline=None)
@given(histories=HISTORIES, each=st.integers(0, 5), seed=st.integers(0, 99))
def test_each_like_gets_its_unseen_items(histories: list[list[Line]], each: int, seed: int) -> None:
    # Repeated items and dislikes occur. With 8 of 30 items seen, 24 failed tries in a row have
    # probability 2e-14.
    clients = people_with(histories)
    drawn = draw(clients, n_items=30, each=each, seed=seed)
    for k, history in enumerate(histories):
        negatives = of_client(clients, k, drawn)
        wanted = [place for place, (_, liked) in enumerate(history) if liked for _ in range(each)]
        assert sorted(place for place, _ in negatives) == wanted
        seen = {item for item, _ in history}
        assert all(0 <= item < 30 and item not in seen for _, item in negatives)


@settings(deadline=None)
@given(histories=HISTORIES, data=st.data())
def test_a_devices_draws_do_not_depend_on_the_cohort(
    histories: list[list[Line]], data: st.DataObject
) -> None:
    clients = people_with(histories, ids=[50 + 3 * k for k in range(len(histories))])
    asked = data.draw(st.lists(st.integers(0, len(histories) - 1), min_size=1, unique=True))
    some = clients.take(np.array(asked))
    whole, part = draw(clients, n_items=30), draw(some, n_items=30)
    for k, position in enumerate(asked):
        assert of_client(some, k, part) == of_client(clients, position, whole)


def test_draws_are_uniform_over_the_unseen() -> None:
    # 400 people with the same five of twenty items, so that the draws can be counted together.
    seen: list[Line] = [(0, True), (3, True), (4, False), (11, True), (19, True)]
    clients = people_with([seen] * 400)
    _, item = draw(clients, n_items=20, each=10)
    counts = np.bincount(item, minlength=20)
    unseen = np.setdiff1d(np.arange(20), [line[0] for line in seen])
    assert counts.sum() == counts[unseen].sum() == 400 * 4 * 10
    assert 1e-4 < p_value(counts[unseen]) < 1 - 1e-4


def test_items_of_the_second_half_are_drawn_like_any_other() -> None:
    history: list[Line] = [(item, True) for item in range(8)]
    first, second = halve(people_with([history] * 600), seed=2)
    line, item = draw(first, n_items=20, each=10)
    person = first.owner[line]
    held_out = np.zeros((600, 20), np.bool_)
    held_out[second.owner, second.item] = True
    own = np.zeros((600, 20), np.bool_)
    own[first.owner, first.item] = True
    assert not own[person, item].any()
    # 4 of the 16 items that the device does not know are held out: a quarter of the draws.
    share, n_draws = held_out[person, item].mean(), len(item)
    assert n_draws == 600 * 4 * 10
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / n_draws)


def test_nobody_waits_for_somebody_who_has_seen_everything() -> None:
    everything: list[Line] = [(item, True) for item in range(10)]
    clients = people_with([everything, [(2, True)], everything[:9]])
    line, item = draw(clients, n_items=10, each=3)
    owner = clients.owner[line]
    assert (owner == 0).sum() == 0
    assert (owner == 1).sum() == 3
    # One item of ten is left: a draw of 24 tries finds it with chance 1 - 0.9^24 = 0.92.
    assert set(item[owner == 2]) == {9}
    assert 15 <= (owner == 2).sum() <= 27


def test_nobody_and_nothing_liked_give_nothing() -> None:
    for clients in (people_with([]), people_with([[]]), people_with([[(1, False)], []])):
        line, item = draw(clients, n_items=10)
        assert len(line) == len(item) == 0


def test_rounds_seeds_and_people_draw_differently() -> None:
    history: list[Line] = [(item, True) for item in range(10)]
    clients = people_with([history, history])
    drawn = [
        tuple(item for _, item in of_client(clients, k, draws))
        for draws in (
            draw(clients, n_items=1000),
            draw(clients, n_items=1000, round_index=1),
            draw(clients, n_items=1000, seed=1),
        )
        for k in (0, 1)
    ]
    assert len(set(drawn)) == 6
    # Within one person, no two likes or draws repeat each other: 20 draws of 1000 items.
    assert len(set(drawn[0])) > 15
    again = draw(clients, n_items=1000)
    assert tuple(item for _, item in of_client(clients, 0, again)) == drawn[0]


def test_rounds_are_independent() -> None:
    # Two draws agree 1/20 of the time and no more: 20 items are unseen, 24,000 pairs.
    clients = people_with([[(20 + item, True) for item in range(10)]] * 600)
    one = draw(clients, n_items=30, each=4)[1]
    other = draw(clients, n_items=30, each=4, round_index=1)[1]
    assert abs((one == other).mean() - 0.05) < 4 * np.sqrt(0.05 * 0.95 / len(one))


def test_a_second_try_does_not_take_the_next_draw() -> None:
    # Half of all tries hit a seen item. Consecutive draws still agree 1/10 of the time: 10 unseen.
    clients = people_with([[(item, True) for item in range(10)]] * 300)
    line, item = draw(clients, n_items=20, each=4)
    assert len(item) == 300 * 10 * 4
    same_person = clients.owner[line[1:]] == clients.owner[line[:-1]]
    for gap in (1, 2, 3):
        pairs = same_person[gap - 1 :]
        agree = (item[gap:] == item[:-gap])[pairs]
        assert abs(agree.mean() - 0.1) < 4 * np.sqrt(0.1 * 0.9 / len(agree)), gap
