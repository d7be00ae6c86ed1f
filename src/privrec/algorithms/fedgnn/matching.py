"""The matching of neighbours: an exchange with a matching server that is not a sum.

The recommendation server sends a secret key to the devices, never to the matching server. A device
sends the matching server one vector of its person, and a token (a keyed hash) of each item that she
likes. The matching server groups the vectors by token. It knows no items, no catalogue and no key;
`match` has no arguments for them.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from privrec.types import F32, Array, BoolArray, IntArray, Leaf

_BYTES = 16
"""The length of a token in bytes: 128 bits of HMAC-SHA256."""
_PREFIX = "matching/"
KEY, TOKENS = f"{_PREFIX}key", f"{_PREFIX}tokens"
VECTORS, MARKS, COUNTS = f"{_PREFIX}vectors", f"{_PREFIX}marks", f"{_PREFIX}counts"


class Offer(NamedTuple):
    """All that one device sends to the matching server.

    `marks` has a random number for each token, by which the device finds its own vector among the
    vectors that it receives.
    """

    tokens: tuple[bytes, ...]
    vector: F32
    marks: tuple[int, ...]


class Neighbour(NamedTuple):
    """What the matching server sends to devices about one person: her vector and its mark."""

    vector: F32
    mark: int


# --- the matching server ------------------------------------------------------------------------


def match(
    offers: Iterable[Offer], most: int, draw: np.random.Generator
) -> dict[bytes, list[Neighbour]]:
    """Return for each token up to `most` of the people who sent this token, chosen uniformly.

    This is reservoir sampling: with probability most/k, the k-th sender replaces a chosen one.
    """
    kept: dict[bytes, list[Neighbour]] = {}
    seen: dict[bytes, int] = {}
    for tokens, vector, marks in offers:
        for token, mark in zip(tokens, marks, strict=True):
            seen[token] = seen.get(token, 0) + 1
            here = kept.setdefault(token, [])
            if len(here) < most:
                here.append(Neighbour(vector, mark))
            elif (place := int(draw.integers(seen[token]))) < most:
                here[place] = Neighbour(vector, mark)
    return kept


# --- the recommendation server ------------------------------------------------------------------


def empty_table(n_items: int, most: int, size: int) -> dict[str, Array]:
    """Return the arrays that devices get before the matching: an empty table of neighbours."""
    return {
        KEY: jnp.zeros(8, jnp.uint32),
        TOKENS: jnp.zeros((n_items, _BYTES // 4), jnp.uint32),
        VECTORS: jnp.zeros((n_items, most, size), jnp.float32),
        MARKS: jnp.zeros((n_items, most), jnp.uint32),
        COUNTS: jnp.zeros(n_items, jnp.int32),
    }


def table_of(
    matched: Mapping[bytes, list[Neighbour]], key: bytes, n_items: int, most: int, size: int
) -> dict[str, Array]:
    """Return the arrays that devices get: the key, and the matched vectors in the order of tokens.

    The table has `n_items` entries, so that its size does not depend on what people like.
    """
    told = {name: np.array(leaf) for name, leaf in empty_table(n_items, most, size).items()}
    told[KEY] = np.frombuffer(key, np.uint32)
    for place, token in enumerate(sorted(matched)):
        people = matched[token]
        told[TOKENS][place] = np.frombuffer(token, np.uint32)
        told[COUNTS][place] = len(people)
        told[VECTORS][place, : len(people)] = [person.vector for person in people]
        told[MARKS][place, : len(people)] = [person.mark for person in people]
    return {name: jnp.asarray(leaf) for name, leaf in told.items()}


def is_trained(name: str) -> bool:
    """Return whether training changes this array: all arrays but the results of the matching."""
    return not name.startswith(_PREFIX)


def trained_of(params: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return the parameters that training changes."""
    return {name: leaf for name, leaf in params.items() if is_trained(name)}


# --- the device ---------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 17)
def item_token(key: bytes, item: int) -> bytes:
    """Return the token of an item: the first 16 bytes of HMAC-SHA256(key, item)."""
    return hmac.digest(key, int(item).to_bytes(8, "big"), "sha256")[:_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Directory:
    """The results of the matching on a device.

    `places` maps a token to the index of its `vectors` (n, m, d), `marks` (n, m) and `counts` (n,).
    """

    key: bytes
    places: Mapping[bytes, int]
    vectors: F32
    marks: Leaf
    counts: Leaf


def directory_of(told: Mapping[str, Leaf]) -> Directory | None:
    """Return the results of the matching from the server's arrays; None if there are none."""
    if KEY not in told:
        return None
    tokens, counts = np.asarray(told[TOKENS], np.uint32), np.asarray(told[COUNTS])
    return Directory(
        key=np.asarray(told[KEY], np.uint32).tobytes(),
        places={tokens[k].tobytes(): int(k) for k in np.flatnonzero(counts)},
        vectors=np.asarray(told[VECTORS]),
        marks=np.asarray(told[MARKS]),
        counts=counts,
    )


def neighbours_of(directory: Directory, items: IntArray, marks: IntArray) -> tuple[F32, BoolArray]:
    """Return the vectors of the neighbours of k items (k, m, d), and whether each exists (k, m).

    `marks` (k,) are the marks of the device, by which its own vector is left out.
    """
    most = directory.vectors.shape[1]
    places = np.array(
        [directory.places.get(item_token(directory.key, int(item)), -1) for item in items],
        np.int64,
    ).reshape(-1)
    counts = np.where(places >= 0, directory.counts[places], 0)
    known = (np.arange(most) < counts[:, None]) & (directory.marks[places] != marks[:, None])
    return np.where(known[..., None], directory.vectors[places], np.float32(0)), known
