"""What secure sums are made of: one-time keys, sealed boxes, masks, shares, and who takes part."""

import hashlib
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privrec.errors import FederationError, SettingsError

Words: TypeAlias = npt.NDArray[np.uint64]

KEY_BYTES = 32
SHARE_BYTES = 4 + 33
"""A share of 32 bytes: 4 bytes of its point, and a number below `_PRIME`."""
_PRIME = 2**256 + 297
"""The smallest prime above all secrets of 32 bytes."""
COMPLETE_UP_TO = 256
"""Up to so many nodes, everybody is everybody's neighbour (chosen by hand)."""
ADVERTISED = ("cipher", "mask", "seed")
"""What a node tells all others: two public keys and a digest of its seed, besides a signature."""
KINDS = (b"s", b"k")
"""The marks of shares: of a seed, and of a mask key."""
MOST_SIGNATURE = 1024
_NONCE_BYTES = 12
_WORDS_AT_ONCE = 2**17


class KeyPair(NamedTuple):
    """A one-time X25519 key pair, as raw bytes."""

    private: bytes
    public: bytes


def new_keys() -> KeyPair:
    """Return a fresh key pair."""
    key = X25519PrivateKey.generate()
    return KeyPair(key.private_bytes_raw(), key.public_key().public_bytes_raw())


def public_of(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, context: bytes) -> bytes:
    """Return 32 bytes that only the two owners of the keys can compute, for this context."""
    try:
        peer = X25519PublicKey.from_public_bytes(public)
        secret = X25519PrivateKey.from_private_bytes(private).exchange(peer)
    except ValueError as error:
        raise FederationError("a public key of a node is not valid") from error
    return derive(secret, context)


def derive(secret: bytes, context: bytes) -> bytes:
    """Return 32 bytes from a secret and a context (HKDF-SHA256)."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=context).derive(secret)


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of the parts, each after its length: no two lists have the same text."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def number(value: object) -> bytes:
    """Return a node's number, or a count, as 8 bytes; raise `FederationError` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise FederationError(f"the number of a node must be in 0 … 2^64 - 1; got {value!r}")
    return value.to_bytes(8, "big")


def add_mask(total: Words, seed: bytes, *, sign: int) -> None:
    """Add a mask to `total`, or subtract it if `sign` is -1, in place.

    The mask looks random to whoever has not the seed of 32 bytes (AES-256-CTR). The counter starts
    at zero, so a seed must be used once only. Pieces stay in the processor's cache.
    """
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(8 * min(_WORDS_AT_ONCE, len(total)))
    for start in range(0, len(total), _WORDS_AT_ONCE):
        piece = total[start : start + _WORDS_AT_ONCE]
        mask = np.frombuffer(stream.update(zeros[: 8 * len(piece)]), "<u8")
        if sign < 0:
            np.subtract(piece, mask, out=piece)
        else:
            np.add(piece, mask, out=piece)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Return the content encrypted and bound to `about`: who to whom, in which round (AES-GCM)."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes:
    """Return the content of a box; raise `FederationError` if it was not sealed so."""
    try:
        return AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise FederationError("a sealed share cannot be opened") from error


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return `holders` shares of 32 bytes; `threshold` of them give the secret, fewer give nothing.

    Shamir's shares: values at 1 … holders of a polynomial over the integers modulo `_PRIME` whose
    value at 0 is the secret and whose other coefficients are random. A share is its point, in four
    bytes, and the value there.
    """
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    shares = []
    for point in range(1, holders + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % _PRIME
        shares.append(point.to_bytes(4, "big") + value.to_bytes(SHARE_BYTES - 4, "big"))
    return shares


def combine(shares: Sequence[bytes]) -> bytes:
    """Return the secret of exactly `threshold` shares of `split`; wrong shares give wrong bytes."""
    weights = _weights(tuple(int.from_bytes(share[:4], "big") for share in shares))
    values = (int.from_bytes(share[4:], "big") for share in shares)
    total = sum(weight * value for weight, value in zip(weights, values, strict=True)) % _PRIME
    return (total % (1 << 8 * KEY_BYTES)).to_bytes(KEY_BYTES, "big")


@lru_cache(maxsize=4)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's weights at zero of different points; they are the same for many secrets."""
    weights = []
    for own in points:
        top = bottom = 1
        for other in points:
            if other != own:
                top, bottom = top * other % _PRIME, bottom * (other - own) % _PRIME
        weights.append(top * pow(bottom, -1, _PRIME) % _PRIME)
    return tuple(weights)


def default_degree(nodes: int) -> int:
    """Return how many neighbours each of `nodes` nodes has: all, or 4 log2(nodes) + 40, made even.

    Bell et al. (2020), section 3, show that O(log nodes + statistical bits) neighbours are enough.
    Let the missing and the colluding nodes be chosen before the graph is drawn. Two parts of the
    ring are cut off from each other only if two stretches of degree / 2 nodes are all missing or
    colluding: with 40 % such nodes, a probability below 2^-70. With 10 % colluding nodes and a
    threshold of 0.7 of the nodes, some neighbourhood breaks 2t > n + colluding (see `secure_sum`)
    with a probability below 2^-36. The number 40 is chosen by hand.

    The price is that a neighbourhood can lose more than its part: with that threshold and 1,000
    nodes, a round fails in 1 of 10,000 cases if 10 % are missing, but in 1 of 10 if 15 % are.

    >>> default_degree(50), default_degree(1000)
    (49, 80)
    """
    if nodes < 1:
        raise SettingsError(f"`nodes` must be >= 1; got {nodes}")
    if nodes <= COMPLETE_UP_TO:
        return nodes - 1
    return 2 * math.ceil(2.0 * math.log2(nodes) + 20.0)


def neighbours(members: Sequence[int], degree: int, seed: bytes) -> dict[int, tuple[int, ...]]:
    """Return each member's neighbours, in order.

    With at most degree + 1 members, all others are. Otherwise members lie on a ring, in the order
    of a hash of the seed and their number, and everybody's neighbours are the degree / 2 members
    on either side (Bell et al. 2020, section 3).
    """
    if len(set(members)) != len(members):
        raise FederationError("a node is twice among the members")
    if len(members) <= degree + 1:
        return {me: tuple(sorted(set(members) - {me})) for me in members}
    if degree < 2 or degree % 2:
        raise SettingsError(f"`degree` must be even and >= 2; got {degree}")
    ring = sorted(members, key=lambda member: digest(b"ring", seed, number(member)))
    steps = [step for k in range(1, degree // 2 + 1) for step in (-k, k)]
    return {
        me: tuple(sorted(ring[(place + step) % len(ring)] for step in steps))
        for place, me in enumerate(ring)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """Who takes part in one attempt of a round: the same on every node and on the server."""

    keys: Mapping[int, Mapping[str, bytes]]
    threshold: int
    neighbours: Mapping[int, tuple[int, ...]]
    name: bytes
    """A digest of all of it. Every secret and signature after `keys` is bound to it."""

    @classmethod
    def of(
        cls, keys: Mapping[int, Mapping[str, bytes]], *, context: bytes, threshold: int, degree: int
    ) -> "Roster":
        """Return the roster of these keys; their signatures are for the nodes to check.

        `threshold` is how many nodes must remain at the end: more than half of the members. The
        graph follows from a digest of everything here, so no single node chooses its neighbours.
        """
        members = _members(keys)
        if not len(members) / 2 < threshold <= len(members) or len(members) < 2:
            raise FederationError(
                f"`threshold` must be more than half of {len(members)} nodes, and not more than"
                f" all of them; got {threshold}"
            )
        parts = [keys[node][part] for node in members for part in ADVERTISED]
        if len(set(parts)) != len(parts):
            raise FederationError("two nodes have the same one-time key")
        rows = [
            digest(number(node), *(keys[node][part] for part in ADVERTISED)) for node in members
        ]
        name = digest(b"roster", context, number(threshold), number(degree), *rows)
        try:
            graph = neighbours(members, degree, name)
        except SettingsError as error:
            raise FederationError(str(error)) from error
        known = {node: dict(parts) for node, parts in keys.items()}
        return cls(keys=known, threshold=threshold, neighbours=graph, name=name)

    def holders(self, node: int) -> list[int]:
        """Return who holds shares of a node's secrets: its neighbours and itself, in order."""
        return sorted((*self.neighbours[node], node))

    def needed(self, node: int) -> int:
        """Return how many shares give a secret of a node: `threshold` in proportion, rounded up.

        As `threshold` is more than half of all, this is more than half of the holders.
        """
        return -(-self.threshold * (len(self.neighbours[node]) + 1) // len(self.keys))

    def about(self, what: bytes, *nodes: int) -> bytes:
        """Return the name of one use of a secret in this attempt, to derive keys from."""
        return digest(what, self.name, *map(number, nodes))

    def share_digests(self, dealer: int, holder: int, shares: Sequence[bytes]) -> bytes:
        """Return 64 bytes: the digests of a holder's shares of the seed and of the mask key.

        A share has 256 random bits, so its digest does not give it away.
        """
        where = self.about(b"share", dealer, holder)
        return b"".join(
            digest(where, kind, share) for kind, share in zip(KINDS, shares, strict=True)
        )


def _members(keys: Mapping[int, Mapping[str, bytes]]) -> list[int]:
    """Return the members in order, after a check of the form of their keys."""
    for node, parts in by_node(keys, "keys").items():
        check_advertised(node, parts)
    return sorted(keys)


def check_advertised(node: int, parts: object) -> None:
    """Raise `FederationError` unless a node's keys have the right form."""
    number(node)
    if not isinstance(parts, Mapping) or set(parts) != {*ADVERTISED, "signature"}:
        raise FederationError(f"the keys of node {node} are incomplete")
    if not all(is_bytes(parts[part], KEY_BYTES) for part in ADVERTISED):
        raise FederationError(f"the keys of node {node} have a wrong length")
    if not is_bytes(parts["signature"]):
        raise FederationError(f"the signature of node {node} has a wrong length")


def by_node(value: object, what: str) -> Mapping[int, Any]:
    """Return a mapping as it is; raise `FederationError` for anything else."""
    if not isinstance(value, Mapping):
        raise FederationError(f"the {what} are not by node")
    return value


def is_bytes(value: object, length: int | None = None) -> bool:
    """Return whether this is a byte string of a length, or of one that a signature can have."""
    if not isinstance(value, bytes):
        return False
    return 0 < len(value) <= MOST_SIGNATURE if length is None else len(value) == length
