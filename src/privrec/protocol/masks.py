"""The means of secure sums: one-time keys, encryption, masks, secret shares, and the roster.

The roster says which nodes are members of an attempt of a round (see `secure_sum.py`).
"""

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
"""The bytes of a share of a 32-byte secret: 4 for its point, 33 for a number below `_PRIME`."""
_PRIME = 2**256 + 297
"""The smallest prime that is larger than every secret of 32 bytes."""
COMPLETE_UP_TO = 256
"""With at most this many nodes, all nodes are neighbours of each other. Chosen by hand."""
ADVERTISED = ("cipher", "mask", "seed")
"""What a node sends to all others, with a signature: two public keys and a digest of its seed."""
KINDS = (b"s", b"k")
"""The byte before a share of a seed, and the byte before a share of a mask key."""
MOST_SIGNATURE = 1024
_NONCE_BYTES = 12
_WORDS_AT_ONCE = 2**17


class KeyPair(NamedTuple):
    """A one-time X25519 key pair, as raw bytes."""

    private: bytes
    public: bytes


def new_keys() -> KeyPair:
    """Return a new random key pair."""
    key = X25519PrivateKey.generate()
    return KeyPair(key.private_bytes_raw(), key.public_key().public_bytes_raw())


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of a private key, both as raw bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, context: bytes) -> bytes:
    """Return 32 secret bytes for this context; only the owners of the two keys can compute them."""
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
    """Return the SHA-256 of the parts, each after its length.

    With the lengths, two different lists of parts are never the same input of the hash.
    """
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def number(value: object) -> bytes:
    """Return a node's number, or a count, as 8 bytes; raise `FederationError` for other values."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise FederationError(f"the number of a node must be in 0 … 2^64 - 1; got {value!r}")
    return value.to_bytes(8, "big")


def add_mask(total: Words, seed: bytes, *, sign: int) -> None:
    """Add a mask to `total` in place, or subtract the mask if `sign` is -1.

    The mask is the output of AES-256-CTR with `seed` (32 bytes) as the key. The counter starts at
    zero, so a seed must be used only once. The mask is computed in pieces that fit into the
    processor's cache.
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
    """Return the content encrypted with AES-GCM; `unseal` needs the same `about` to open it.

    `about` names the sender, the receiver and the attempt of a round.
    """
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes:
    """Return the content that `seal` encrypted; raise if the key or `about` is another one."""
    try:
        return AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise FederationError("a sealed share cannot be opened") from error


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return `holders` shares of a 32-byte secret.

    Any `threshold` shares give the secret, and fewer give no information about it. This is Shamir's
    secret sharing: a polynomial over the integers modulo `_PRIME` has the secret as its value at 0,
    and its other coefficients are random. A share has a point of 1 … holders (4 bytes) and the
    polynomial's value there.
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
    """Return the 32-byte secret from exactly `threshold` shares; wrong shares give wrong bytes."""
    weights = _weights(tuple(int.from_bytes(share[:4], "big") for share in shares))
    values = (int.from_bytes(share[4:], "big") for share in shares)
    total = sum(weight * value for weight, value in zip(weights, values, strict=True)) % _PRIME
    return (total % (1 << 8 * KEY_BYTES)).to_bytes(KEY_BYTES, "big")


@lru_cache(maxsize=4)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the weights of Lagrange interpolation at 0 from values at these different points.

    They are cached, because many secrets are shared at the same points.
    """
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

    Two neighbours share a pairwise mask. Bell et al. (2020), section 3, show that O(log nodes +
    statistical bits) neighbours are enough. We assume that the missing and the colluding nodes are
    chosen before the graph is drawn. Two parts of the ring (see `neighbours`) are separated only if
    all nodes in two stretches of degree / 2 nodes are missing or colluding. If 40 % of the nodes
    are, the probability is below 2^-70. With 10 % colluding nodes and a threshold of 0.7 of the
    nodes, the probability that any neighbourhood breaks 2t > n + colluding (see `secure_sum`) is
    below 2^-36. The number 40 is chosen by hand.

    By chance, more nodes can be missing in a neighbourhood than on average. With this threshold and
    1,000 nodes, a round fails in 1 of 10,000 cases if 10 % of the nodes are missing, and in 1 of 10
    cases if 15 % are missing.

    >>> default_degree(50), default_degree(1000)
    (49, 80)
    """
    if nodes < 1:
        raise SettingsError(f"`nodes` must be >= 1; got {nodes}")
    if nodes <= COMPLETE_UP_TO:
        return nodes - 1
    return 2 * math.ceil(2.0 * math.log2(nodes) + 20.0)


def neighbours(members: Sequence[int], degree: int, seed: bytes) -> dict[int, tuple[int, ...]]:
    """Return the neighbours of each member, sorted by number.

    With at most degree + 1 members, all other members are neighbours. Otherwise the members lie on
    a ring, in the order of a hash of the seed and their number, and the degree / 2 members on each
    side are neighbours (Bell et al. 2020, section 3).
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
    """The members of one attempt of a round. Every node and the server compute the same roster.

    `keys` has the public keys of each member, and `neighbours` the graph of `neighbours`.
    `threshold` members must remain until the end of the attempt.
    """

    keys: Mapping[int, Mapping[str, bytes]]
    threshold: int
    neighbours: Mapping[int, tuple[int, ...]]
    name: bytes
    """A digest of the whole roster, on which all secrets and signatures after the step `keys`
    depend."""

    @classmethod
    def of(
        cls, keys: Mapping[int, Mapping[str, bytes]], *, context: bytes, threshold: int, degree: int
    ) -> "Roster":
        """Return the roster of these keys; nodes check the signatures of the keys themselves.

        `threshold` is more than half of the members. The graph of neighbours is computed from a
        digest of all arguments, so no single node chooses its neighbours.
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
        """Return the nodes that hold shares of a node's secrets: its neighbours and itself."""
        return sorted((*self.neighbours[node], node))

    def needed(self, node: int) -> int:
        """Return how many shares give a secret of a node.

        It is the same fraction of the holders as `threshold` is of the members, rounded up, and so
        more than half of the holders.
        """
        return -(-self.threshold * (len(self.neighbours[node]) + 1) // len(self.keys))

    def about(self, what: bytes, *nodes: int) -> bytes:
        """Return a digest that names one use of a secret in this attempt.

        Keys, masks and signatures for different uses depend on different digests.
        """
        return digest(what, self.name, *map(number, nodes))

    def share_digests(self, dealer: int, holder: int, shares: Sequence[bytes]) -> bytes:
        """Return 64 bytes: the digests of a holder's shares of the seed and of the mask key.

        A share has 256 random bits, so nobody can find it from its digest.
        """
        where = self.about(b"share", dealer, holder)
        return b"".join(
            digest(where, kind, share) for kind, share in zip(KINDS, shares, strict=True)
        )


def _members(keys: Mapping[int, Mapping[str, bytes]]) -> list[int]:
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
    """Return `value` if it is a mapping; raise `FederationError` otherwise."""
    if not isinstance(value, Mapping):
        raise FederationError(f"the {what} are not by node")
    return value


def is_bytes(value: object, length: int | None = None) -> bool:
    """Return whether `value` is bytes of this length, or of a length that a signature can have."""
    if not isinstance(value, bytes):
        return False
    return 0 < len(value) <= MOST_SIGNATURE if length is None else len(value) == length
