import os
import subprocess
import sys
from collections.abc import Callable

import jax
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from privrec.seeds import _mix, client_words, key, rng

Draw = Callable[[int, int, str], list[int]]
Grid = npt.NDArray[np.uint64]


def from_rng(seed: int, round_index: int, purpose: str) -> list[int]:
    return [int(word) for word in rng(seed, round_index, purpose).integers(2**63, size=4)]


def from_key(seed: int, round_index: int, purpose: str) -> list[int]:
    return [int(word) for word in jax.random.key_data(key(seed, round_index, purpose))]


def from_words(seed: int, round_index: int, purpose: str) -> list[int]:
    words = client_words(seed, round_index, purpose, np.array([3]), np.arange(4))
    return [int(word) for word in words]


DRAWS = pytest.mark.parametrize("draw", [from_rng, from_key, from_words])


def grid(clients: int, positions: int, *, seed: int = 5) -> Grid:
    return client_words(seed, 2, "test", np.arange(clients)[:, None], np.arange(positions)[None, :])


def p_value(counts: npt.NDArray[np.integer]) -> float:
    """The probability of counts at least this uneven if all cells are equally likely."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, counts.size - 1))


@DRAWS
def test_same_seed_round_and_purpose_give_the_same_numbers(draw: Draw) -> None:
    assert draw(7, 3, "cohort") == draw(7, 3, "cohort")


@DRAWS
def test_changing_any_one_part_changes_the_numbers(draw: Draw) -> None:
    # (1, 23) and (12, 3) would give the same text if the parts had no separator.
    asked = [(1, 23), (12, 3), (1, 3), (0, 0), (1, 0), (0, 1), (123, 0)]
    streams = [
        tuple(draw(seed, round_index, purpose))
        for seed, round_index in asked
        for purpose in ("cohort", "negatives", "")
    ]
    assert len(set(streams)) == len(streams)


def test_numbers_do_not_depend_on_the_process() -> None:
    # Python's hash() of text differs from one process to the next.
    program = (
        "import numpy as np; from privrec.seeds import client_words, rng;"
        "print(rng(4, 2, 'cohort').integers(2**63),"
        " client_words(4, 2, 'order', np.array([9]), np.array([1]))[0])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    out = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    here = client_words(4, 2, "order", np.array([9]), np.array([1]))
    assert out.stdout.split() == [str(rng(4, 2, "cohort").integers(2**63)), str(here[0])]


def test_the_mixer_is_splitmix64() -> None:
    # The first outputs of SplitMix64 from the state 1234567, as published with the generator.
    state = (1234567 + np.arange(1, 6, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(
        np.uint64
    )
    assert _mix(state).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@settings(deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=12
    ),
    data=st.data(),
)
def test_a_word_depends_on_its_client_and_position_only(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(pairs))
    together = client_words(
        1, 1, "p", np.array([c for c, _ in shuffled]), np.array([p for _, p in shuffled])
    )
    for (client, position), word in zip(shuffled, together, strict=True):
        assert client_words(1, 1, "p", np.array([client]), np.array([position]))[0] == word


def test_clients_and_positions_broadcast() -> None:
    clients, positions = np.arange(4, dtype=np.int32), np.arange(3)
    table = client_words(0, 0, "p", clients[:, None], positions[None, :])
    line = client_words(0, 0, "p", np.repeat(clients, 3), np.tile(positions, 4))
    assert table.shape == (4, 3)
    assert table.reshape(-1).tolist() == line.tolist()


@pytest.mark.parametrize("shift", [0, 12, 27, 58])
def test_words_are_uniform_in_low_and_in_high_bits(shift: int) -> None:
    cells = (grid(300, 400) >> np.uint64(shift)) & np.uint64(63)
    assert 1e-4 < p_value(np.bincount(cells.reshape(-1).astype(np.int64), minlength=64)) < 1 - 1e-4


@pytest.mark.parametrize("modulus", [7, 600, 3706])
def test_remainders_are_uniform(modulus: int) -> None:
    cells = (grid(600, 500) % np.uint64(modulus)).reshape(-1).astype(np.int64)
    assert 1e-4 < p_value(np.bincount(cells, minlength=modulus)) < 1 - 1e-4


@pytest.mark.parametrize("axis", [0, 1])
def test_neighbours_say_nothing_about_each_other(axis: int) -> None:
    words = grid(401, 401)
    here, there = (words[:-1], words[1:]) if axis == 0 else (words[:, :-1], words[:, 1:])
    pair = (here % np.uint64(8)) * np.uint64(8) + there % np.uint64(8)
    counts = np.bincount(pair.reshape(-1).astype(np.int64), minlength=64)
    assert 1e-4 < p_value(counts) < 1 - 1e-4
    # A good mixer flips half of the 64 bits, with a standard deviation of 4.
    turned = np.bitwise_count(here ^ there)
    assert abs(float(turned.mean()) - 32) < 0.1
    assert abs(float(turned.std()) - 4) < 0.1


def test_no_two_pairs_share_a_word() -> None:
    # A linear rule would give (client + a, position) and (client, position + b) the same word.
    assert len(np.unique(grid(1000, 500))) == 500_000
