"""Masked views: masked items do not leak, segments never overlap, short sequences are skipped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.algorithms.reptile.pack import Instances, pack
from privrec.algorithms.two_stage.joint import join
from privrec.algorithms.two_stage.views import (
    SequenceClient,
    Views,
    draw_views,
    empty_client,
    in_order,
    other_places,
    row_buckets,
    unseen,
)
from privrec.data.clients import Clients

N_ITEMS = 60
VIEWS = Views(most=8, window=6, segment=3, negatives=5, others=4, batch_size=4)


def clients_of(*sequences: list[int], liked: list[list[bool]] | None = None) -> Clients:
    items = [item for sequence in sequences for item in sequence]
    likes = [True] * len(items) if liked is None else [one for row in liked for one in row]
    return Clients(
        ids=np.arange(len(sequences)),
        offsets=np.concatenate([[0], np.cumsum([len(sequence) for sequence in sequences])]),
        item=np.array(items, np.int32),
        value=np.where(likes, 5.0, 1.0).astype(np.float32),
        liked=np.array(likes, np.bool_),
        time=np.arange(len(items), dtype=np.float64),
        features={},
        context={},
    )


def views_of(
    *sequences: list[int], round_index: int = 0, views: Views = VIEWS
) -> list[SequenceClient]:
    return draw_views(
        clients_of(*sequences), views, n_items=N_ITEMS, seed=0, round_index=round_index
    )


sequences = st.lists(st.integers(0, N_ITEMS - 1), min_size=3, max_size=40, unique=True)


@settings(deadline=None, max_examples=60)
@given(sequence=sequences, round_index=st.integers(0, 50))
def test_what_is_masked_is_never_seen(sequence: list[int], round_index: int) -> None:
    (client,) = views_of(sequence, round_index=round_index)
    seen = set(sequence)
    assert client.size == min(len(sequence), VIEWS.most)
    truths = client.rows[client.truth[: client.size]]
    assert len(set(truths.tolist())) == client.size  # Each view hides another item.
    for k in range(int(client.size)):
        width = int(client.length[k])
        assert width == min(len(sequence), VIEWS.window)
        window = client.rows[client.masked[k, :width]].tolist()
        assert truths[k] not in window
        (stranger,) = [item for item in window if item not in seen]
        start = window.index(stranger)
        # All else is the sequence around the hidden item, in its order.
        whole = [*window[:start], int(truths[k]), *window[start + 1 :]]
        begin = sequence.index(whole[0])
        assert sequence[begin : begin + width] == whole
    assert not set(client.rows[client.pool].tolist()) & seen


@settings(deadline=None, max_examples=60)
@given(sequence=sequences, round_index=st.integers(0, 50))
def test_a_segment_never_overlaps_the_one_it_replaces(
    sequence: list[int], round_index: int
) -> None:
    (client,) = views_of(sequence, round_index=round_index)
    for k in range(int(client.size)):
        width, span = int(client.length[k]), int(client.span[k])
        assert span == min(VIEWS.segment, (width + 1) // 3) >= 1
        true, *others = (client.rows[segment[:span]].tolist() for segment in client.segments[k])
        place = sequence.index(true[0])
        assert sequence[place : place + span] == true
        for other in others:
            start = sequence.index(other[0])
            assert sequence[start : start + span] == other
            assert abs(start - place) >= span
            assert not set(other) & set(true)
        # In the window the replacement stands where the true segment was.
        window = client.rows[client.torn[k, :width]].tolist()
        offsets = [
            offset
            for offset in range(width - span + 1)
            if window[offset : offset + span] == others[0]
            and sequence[place - offset : place - offset + width]
            == [*window[:offset], *true, *window[offset + span :]]
        ]
        assert offsets


@pytest.mark.parametrize("sequence", [[], [1], [1, 2], [4, 4, 4, 7, 7]])
def test_fewer_than_three_items_are_skipped(sequence: list[int]) -> None:
    """Each item counts once, however often it occurs."""
    (client,) = views_of(sequence)
    assert client.size == 0


def test_only_what_was_liked_makes_a_sequence() -> None:
    liked = [[True, True, False, True]]
    (client,) = draw_views(
        clients_of([1, 2, 3, 4], liked=liked), VIEWS, n_items=N_ITEMS, seed=0, round_index=0
    )
    assert set(client.rows[client.truth[:3]].tolist()) == {1, 2, 4}
    # Disliked items are not negatives either.
    assert not {1, 2, 3, 4} & set(client.rows[client.pool].tolist())


def test_somebody_who_has_seen_everything_is_skipped() -> None:
    (client,) = views_of(list(range(N_ITEMS)))
    assert client.size == 0
    nearly = list(range(N_ITEMS - 1))
    (client,) = views_of(nearly)
    assert client.rows[client.pool].tolist() == [N_ITEMS - 1] * VIEWS.negatives


def test_views_depend_on_the_client_and_the_round_alone() -> None:
    first, second = list(range(0, 20)), list(range(20, 45))
    alone = draw_views(
        clients_of(first, second).take(np.array([1])), VIEWS, n_items=N_ITEMS, seed=0, round_index=3
    )
    both = views_of(first, second, round_index=3)
    for one, other in zip(alone[0], both[1], strict=True):
        np.testing.assert_array_equal(one, other)
    later = views_of(first, second, round_index=4)[1]
    assert not np.array_equal(later.truth, both[1].truth)


@given(total=st.integers(2, 30), span=st.integers(1, 10), seed=st.integers(0, 99))
def test_other_places_are_all_the_places_beside(total: int, span: int, seed: int) -> None:
    if total < 3 * span - 1:
        return
    begin = np.arange(total - span + 1)
    # So many draws that a place is missed with probability (18/19)^2000 = 1e-47.
    found = other_places(begin, span, total, 2000, np.random.default_rng(seed))
    for k in begin:
        allowed = {b for b in range(total - span + 1) if abs(b - k) >= span}
        assert set(found[k].tolist()) <= allowed
        assert allowed
        if len(allowed) < 20:
            assert set(found[k].tolist()) == allowed


def test_negatives_are_drawn_from_all_that_is_unseen() -> None:
    seen = np.array([0, 1, 2])
    found = unseen(seen, 3000, 10, np.random.default_rng(0))
    counts = np.bincount(found, minlength=10)
    assert counts[:3].sum() == 0
    assert counts[3:].min() > 300
    assert len(unseen(np.arange(10), 5, 10, np.random.default_rng(0))) == 0


def test_every_client_fits_a_row_bucket() -> None:
    buckets = row_buckets(500, Views(**{**vars_of(VIEWS), "most": 200, "window": 50}))
    for length in (3, 10, 100, 500):
        views = Views(**{**vars_of(VIEWS), "most": 200, "window": 50})
        (client,) = draw_views(
            clients_of(list(range(length))), views, n_items=1000, seed=0, round_index=0
        )
        assert len(client.rows) in buckets


def vars_of(views: Views) -> dict[str, int]:
    return {name: getattr(views, name) for name in views.__slots__}


def test_joined_clients_mean_the_same_items() -> None:
    clients = clients_of([5, 9, 2, 30, 31], [7, 8])
    instances = Instances(negatives=2, batch_size=4)
    pairs = pack(clients, instances, n_items=N_ITEMS, seed=0, round_index=0)
    drawn = draw_views(clients, VIEWS, n_items=N_ITEMS, seed=0, round_index=0)
    for one, two in zip(pairs, drawn, strict=True):
        both = join(one, two, N_ITEMS)
        count = int(one.size)
        np.testing.assert_array_equal(
            both.rows[both.pairs.item[:count]], one.rows[one.item[:count]]
        )
        real = both.rows[both.rows < N_ITEMS]
        assert len(set(real.tolist())) == len(real)
        assert both.size == one.size
        for name in ("truth", "masked", "torn", "segments") if two.size else ():
            old, new = (getattr(client, name)[: int(two.size)] for client in (two, both.sequence))
            if name == "truth":
                np.testing.assert_array_equal(both.rows[new], two.rows[old])
            else:
                width = int(two.length[0] if name in ("masked", "torn") else two.span[0])
                np.testing.assert_array_equal(
                    both.rows[new[..., :width]], two.rows[old[..., :width]]
                )
        if two.size:
            np.testing.assert_array_equal(both.rows[both.sequence.pool], two.rows[two.pool])


def test_an_empty_client_has_the_shapes_of_a_full_one() -> None:
    (client,) = views_of(list(range(30)))
    empty = empty_client(VIEWS, len(client.rows), N_ITEMS)
    for one, other in zip(empty, client, strict=True):
        assert np.shape(one) == np.shape(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype


def test_each_item_once_in_the_order_of_time() -> None:
    assert in_order(np.array([3, 1, 3, 2, 1])).tolist() == [3, 1, 2]
