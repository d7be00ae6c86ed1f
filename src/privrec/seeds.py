"""The random numbers of a run, derived from (seed, round, purpose), and secret choices.

There are three seeded kinds: numpy generators for the server, JAX keys for compiled code, and
64-bit words for a device. A word also depends on the client and a position, so a client gets the
same words in any cohort, in any order and on any machine. `secret_choice` and `secret_coins` use no
seed; they draw the cohorts of runs with secure noise.
"""

import hashlib
import secrets
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import jax


Words = npt.NDArray[np.uint64]


def _digest(seed: int, round_index: int, purpose: str) -> bytes:
    return hashlib.sha256(f"{seed}/{round_index}/{purpose}".encode()).digest()


def rng(seed: int, round_index: int, purpose: str) -> np.random.Generator:
    """Return the numpy generator for a purpose in a round.

    >>> int(rng(0, 3, "cohort").integers(1000)) == int(rng(0, 3, "cohort").integers(1000))
    True
    """
    return np.random.Generator(
        np.random.PCG64(int.from_bytes(_digest(seed, round_index, purpose)[:16]))
    )


def key(seed: int, round_index: int, purpose: str) -> "jax.Array":
    """Return the JAX key for a purpose in a round."""
    import jax  # Imported here because a phone draws its words without JAX.

    return jax.random.key(int.from_bytes(_digest(seed, round_index, purpose)[:4]))


def client_words(
    seed: int,
    round_index: int,
    purpose: str,
    client: npt.NDArray[np.integer],
    position: npt.NDArray[np.integer],
) -> Words:
    """Return one uniform 64-bit word for each (client, position) pair; the arrays broadcast.

    SplitMix64's finaliser (Steele, Lea and Flood 2014) mixes in the client, then the position.
    """
    start = np.uint64(int.from_bytes(_digest(seed, round_index, purpose)[:8]))
    with np.errstate(over="ignore"):
        word = _mix(start + client.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return _mix(word + position.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03))


def _mix(word: Words) -> Words:
    word = word ^ (word >> np.uint64(30))
    word = word * np.uint64(0xBF58476D1CE4E5B9)
    word = word ^ (word >> np.uint64(27))
    word = word * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def secret_choice(count: int, size: int) -> npt.NDArray[np.int64]:
    """Return `size` distinct uniform integers below `count`, from the operating system."""
    return np.array(secrets.SystemRandom().sample(range(count), size), np.int64)


def secret_coins(count: int, share: float) -> npt.NDArray[np.int64]:
    """Return the indices of heads among `count` independent coins, each heads with `share`.

    The random bits come from the operating system. The probability is exact to 2^-53.
    """
    words = np.frombuffer(secrets.token_bytes(8 * count), np.uint64)
    return np.flatnonzero((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share)
