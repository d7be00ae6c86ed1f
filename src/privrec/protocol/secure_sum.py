"""Secure sums: the server learns the sum of the nodes' vectors modulo 2^64, and no single vector.

The protocol is that of Bonawitz et al. (2017), figure 4, with the graph of neighbours of Bell et
al. (2020). `NodeRound` has the steps of a node, `route` and `unmask` have the steps of the server;
the network is elsewhere. Survivors are the nodes whose vectors are in the sum.

Masks: a node adds a mask from its own random seed, and one mask for each neighbour, which the
neighbour subtracts. Its n holders (its neighbours and the node itself) hold shares of its seed and
of its one-time mask key. t shares give a secret. At the end, the holders send shares of the seed if
the node is a survivor, and shares of the mask key if the node dropped out. Anybody who has both
secrets of a node can remove all masks from its vector.

Nobody can collect both secrets if 2t > n + c, where c of the n holders collude with the server. An
honest holder sends shares of only one kind, a colluding one of both. So at most n + c shares can be
collected, and the two secrets need 2t. With a smaller t, a server could tell one half of the
holders that a node remained, and the other half that it dropped out.

The sum has enough nodes, because `threshold` nodes sign the list of survivors. An honest node signs
only one list, so by the same count over all nodes no second list can get `threshold` signatures.
Without these signatures, the server must be trusted to tell all nodes the same list.

The server cannot divide the honest survivors into two groups and unmask each group separately,
whichever nodes it declares as dropped out. To separate two groups on the ring of neighbours, it
needs degree / 2 adjacent nodes that are not honest survivors. For an honest survivor next to these
nodes, at most 1 + degree / 2 + c nodes would send shares of its seed. If t is larger than this
number, nobody can unmask this survivor.

A hostile node can make an attempt fail, and it can add any vector to the sum, as in every secure
sum without proofs about the vectors: no code here checks that a vector is in the range of its
coding. A hostile node cannot change the sum by wrong shares, because the server has a digest of
each share and of each seed, and the public part of each mask key.

Before a node helps to unmask a sum, it writes to its disk which sum it is (`node.py: Reveals`).
Before the server asks nodes to unmask a sum, it does the same (`server.py: Unmasking`).

Two sums of one round without noise, over different nodes, would show what single nodes added: a
node whose answer is late could be in only one of them. So if nodes add no noise, a node helps to
unmask only one sum of a round. And once the server has asked for the masks of a round, it can
finish the round only with the same nodes and people.

No linear combination of a round's sums is the vector of one node, if the server asks all nodes for
the same people and arrays of the round in every attempt. Proof: let S_k be the nodes in sum k, and
let R_k, a subset of S_k, be the nodes that helped. Each node helps once, so the R_k are disjoint,
and 2|R_k| > |S_k| (`Terms.threshold`). If Σ c_k 1(S_k) = 1(x) for a node x, then 1 >= Σ_k sign(c_k)
Σ_{i in R_k} 1(i = x) >= Σ_k |c_k| (2|R_k| - |S_k|) >= Σ_k |c_k|. So Σ c_k over the sets with x can
be 1 only if all c_k are positive and all sets have x. But then the combination also has the vectors
of all other nodes in these sets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import urandom
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from privrec.errors import FederationError
from privrec.protocol import masks
from privrec.protocol.masks import (
    ADVERTISED,
    KINDS,
    SHARE_BYTES,
    KeyPair,
    Roster,
    Words,
    by_node,
    check_advertised,
    digest,
    is_bytes,
    number,
)

_DIGESTS = 2 * 32
# In bytes: the digests of two shares, then the encrypted shares with a nonce and a tag.
_SEALED = _DIGESTS + 12 + 2 * SHARE_BYTES + 16
_SEED, _KEY = KINDS
# How many selections of shares are tried if they do not fit together. Chosen by hand.
_TRIES = 8
_AFTER = {
    "keys": {"start"},
    "shares": {"keys"},
    "accept": {"shares"},
    "mask": {"accept"},
    "agree_on": {"mask"},
    "reveal": {"mask", "agree_on"},
}


class BadDealer(FederationError):
    """The shares that the node `node` made of its secrets cannot be used."""

    def __init__(self, node: int, why: str) -> None:
        super().__init__(f"the shares of node {node} {why}")
        self.node = node


class SavedRound(BaseModel):
    """The state of a `NodeRound`, with its secrets, between two steps.

    It never leaves the machine of its node. Each saved state must be used once: two vectors with
    the same masks would show their difference.
    """

    model_config = ConfigDict(frozen=True, ser_json_bytes="hex", val_json_bytes="hex")

    context: bytes
    cipher: tuple[bytes, bytes]
    pair: tuple[bytes, bytes]
    seed: bytes
    advertised: dict[str, bytes]
    keys: dict[int, dict[str, bytes]]
    threshold: int
    degree: int
    held: dict[int, tuple[bytes, bytes]]
    masks: dict[int, bytes]
    agreed: tuple[int, ...] | None
    last: str


class NodeRound:
    """The steps of one node in one attempt of a round.

    Each step comes once and in order; after a failed step, no other step is possible. `context`
    names the federation, the run, the round and the attempt. `sign` signs with the node's enrolment
    key. `verify(node, message, signature)` checks a signature of another node.
    With `saved`, the attempt goes on from this state.
    """

    def __init__(
        self,
        *,
        me: int,
        context: bytes,
        sign: Callable[[bytes], bytes],
        verify: Callable[[int, bytes, bytes], bool],
        saved: SavedRound | None = None,
    ) -> None:
        number(me)
        self._me, self._context, self._sign, self._verify = me, context, sign, verify
        self._cipher, self._pair, self._seed = masks.new_keys(), masks.new_keys(), urandom(32)
        self._advertised: dict[str, bytes] = {}
        self._roster: Roster
        self._dealt: dict[str, Any] = {"keys": {}, "threshold": 0, "degree": 0}
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._masks: dict[int, bytes] = {}
        self._agreed: tuple[int, ...] | None = None
        self._last = "start"
        if saved is not None:
            self._restore(saved)

    def saved(self) -> SavedRound:
        """Return the state after the last step."""
        return SavedRound(
            context=self._context,
            cipher=self._cipher,
            pair=self._pair,
            seed=self._seed,
            advertised=self._advertised,
            **self._dealt,
            held=self._held,
            masks=self._masks,
            agreed=self._agreed,
            last=self._last,
        )

    def _restore(self, saved: SavedRound) -> None:
        self._cipher, self._pair = KeyPair(*saved.cipher), KeyPair(*saved.pair)
        self._seed = saved.seed
        self._advertised, self._held, self._masks = saved.advertised, saved.held, saved.masks
        self._agreed, self._last = saved.agreed, saved.last
        if saved.keys:
            self._dealt = {name: getattr(saved, name) for name in self._dealt}
            self._roster = Roster.of(**self._dealt, context=self._context)

    @contextmanager
    def _step(self, step: str) -> Iterator[None]:
        if self._last not in _AFTER[step]:
            raise FederationError(f"`{step}` cannot come after `{self._last}` in one attempt")
        self._last = f"a failed {step}"
        yield
        self._last = step

    def keys(self) -> dict[str, bytes]:
        """Return the node's two public keys, a digest of its seed, and a signature of all three."""
        with self._step("keys"):
            parts = {
                "cipher": self._cipher.public,
                "mask": self._pair.public,
                "seed": digest(b"seed", self._seed),
            }
            signature = self._sign(_keys_statement(self._context, self._me, parts))
            self._advertised = {**parts, "signature": signature}
            return dict(self._advertised)

    def shares(
        self, keys: Mapping[int, Mapping[str, bytes]], *, threshold: int, degree: int
    ) -> dict[int, bytes]:
        """Return for each neighbour two encrypted shares and their digests; for itself the digests.

        `keys` has the signed keys of all members (the nodes of this attempt). `threshold` and
        `degree` come from the node's own settings. A server that could choose them could give a
        node only hostile neighbours.
        """
        with self._step("shares"):
            roster = Roster.of(keys, context=self._context, threshold=threshold, degree=degree)
            if dict(keys.get(self._me, {})) != self._advertised:
                raise FederationError("the server has other keys of this node than it sent")
            for node, parts in keys.items():
                statement = _keys_statement(self._context, node, parts)
                if not self._verify(node, statement, parts["signature"]):
                    raise FederationError(f"the signature of node {node} is not valid")
            self._roster = roster
            self._dealt = {"keys": roster.keys, "threshold": threshold, "degree": degree}
            holders, needed = roster.holders(self._me), roster.needed(self._me)
            seeds = masks.split(self._seed, needed, len(holders))
            privates = masks.split(self._pair.private, needed, len(holders))
            dealt = dict(zip(holders, zip(seeds, privates, strict=True), strict=True))
            self._held[self._me] = dealt[self._me]
            return {holder: self._sealed(holder, pair) for holder, pair in dealt.items()}

    def _sealed(self, holder: int, pair: tuple[bytes, bytes]) -> bytes:
        digests = self._roster.share_digests(self._me, holder, pair)
        if holder == self._me:
            return digests
        about = self._roster.about(b"box", self._me, holder)
        key = masks.agree(self._cipher.private, self._roster.keys[holder]["cipher"], about)
        return digests + masks.seal(key, b"".join(pair), about + digests)

    def accept(self, sealed: Mapping[int, bytes]) -> None:
        """Decrypt the shares that neighbours made for this node; raise if there are too few.

        `sealed` has only neighbours that have not dropped out. `mask` cannot fail after this step,
        so a node takes it before it reads its people's data.
        """
        with self._step("accept"):
            roster, me = self._roster, self._me
            for node, box in by_node(sealed, "sealed shares").items():
                if node not in roster.neighbours[me]:
                    raise FederationError(f"shares came from {node!r}, which is no neighbour")
                self._held[node] = self._opened(node, box)
                self._masks[node] = _pair_seed(roster, self._pair.private, me, node)
            if len(self._held) < roster.needed(me):
                raise FederationError(
                    f"{len(self._held)} nodes of a neighbourhood are left, and"
                    f" {roster.needed(me)} are needed"
                )

    def mask(self, vector: Words) -> Words:
        """Return the vector plus the node's own mask and the masks with its accepted neighbours."""
        with self._step("mask"):
            total, me = _vector(vector).copy(), self._me
            own = masks.derive(self._seed, self._roster.about(b"own", me))
            masks.add_mask(total, own, sign=1)
            for node, pair in self._masks.items():
                masks.add_mask(total, pair, sign=1 if me < node else -1)
            return total

    def _opened(self, dealer: int, box: bytes) -> tuple[bytes, bytes]:
        if not is_bytes(box, _SEALED):
            raise BadDealer(dealer, "have a wrong length")
        roster, digests = self._roster, box[:_DIGESTS]
        about = roster.about(b"box", dealer, self._me)
        key = masks.agree(self._cipher.private, roster.keys[dealer]["cipher"], about)
        try:
            content = masks.unseal(key, box[_DIGESTS:], about + digests)
        except FederationError as error:
            raise BadDealer(dealer, "cannot be opened") from error
        pair = content[:SHARE_BYTES], content[SHARE_BYTES:]
        if roster.share_digests(dealer, self._me, pair) != digests:
            raise BadDealer(dealer, "are not those that it announced")
        return pair

    def agree_on(self, survivors: Sequence[int]) -> bytes:
        """Return this node's signature of the list of survivors."""
        with self._step("agree_on"):
            self._agreed = self._checked(survivors)
            return self._sign(_survivors_statement(self._roster, self._agreed))

    def _checked(self, survivors: Sequence[int]) -> tuple[int, ...]:
        """Return the survivors in order; raise if this node must not help to unmask their sum."""
        roster, listed = self._roster, _survivors(self._roster, survivors)
        near = set(listed) & set(roster.holders(self._me))
        if self._me not in listed:
            raise FederationError("this node is not among the survivors")
        if not near <= self._held.keys():
            raise FederationError("a survivor is a neighbour whose shares this node did not get")
        if len(near) < roster.needed(self._me):
            raise FederationError("too few survivors are neighbours of this node")
        return listed

    def reveal(
        self, survivors: Sequence[int], confirmations: Mapping[int, bytes] | None
    ) -> dict[int, bytes]:
        """Return one share for each node whose shares this node holds, after a byte for its kind.

        It is a share of the seed for survivors, and of the mask key for other nodes; never both.
        `confirmations` has the signatures of `agree_on` by node. It is None if the node's own
        settings trust the server to send the same list to all nodes.
        """
        with self._step("reveal"):
            listed = self._checked(survivors)
            if self._agreed is not None and listed != self._agreed:
                raise FederationError("this node has agreed on another list of survivors")
            if confirmations is not None:
                self._check_confirmations(listed, confirmations)
            return {
                node: _SEED + seed if node in listed else _KEY + private
                for node, (seed, private) in self._held.items()
            }

    def _check_confirmations(
        self, listed: tuple[int, ...], confirmations: Mapping[int, bytes]
    ) -> None:
        if self._agreed is None:
            raise FederationError("this node has not agreed on any list of survivors")
        statement = _survivors_statement(self._roster, listed)
        valid = [
            node
            for node, signature in by_node(confirmations, "confirmations").items()
            if node in listed and is_bytes(signature) and self._verify(node, statement, signature)
        ]
        if len(valid) < self._roster.threshold:
            raise FederationError(
                f"{len(valid)} nodes confirm this list of survivors, and"
                f" {self._roster.threshold} are needed"
            )


def check_keys(
    context: bytes,
    node: int,
    keys: Mapping[str, bytes],
    verify: Callable[[int, bytes, bytes], bool],
) -> None:
    """Raise `FederationError` unless a node's keys are complete, usable and signed by the node.

    Without this check, one hostile node's keys could make the attempt fail at all nodes.
    """
    check_advertised(node, keys)
    if len({keys[part] for part in ADVERTISED}) < len(ADVERTISED):
        raise FederationError(f"the keys of node {node} repeat each other")
    if not verify(node, _keys_statement(context, node, keys), keys["signature"]):
        raise FederationError(f"the signature of node {node} is not valid")
    for part in ("cipher", "mask"):
        masks.agree(masks.new_keys().private, keys[part], context)


def check_shares(roster: Roster, dealer: int, shares: Mapping[int, bytes]) -> None:
    """Raise `FederationError` if the output of `NodeRound.shares` has a wrong form."""
    if dealer not in roster.neighbours:
        raise FederationError(f"shares came from {dealer!r}, which is no member")
    if set(by_node(shares, "shares")) != set(roster.holders(dealer)):
        raise FederationError(f"node {dealer} sent shares to others than its neighbours")
    for holder, box in shares.items():
        if not is_bytes(box, _DIGESTS if holder == dealer else _SEALED):
            raise FederationError(f"node {dealer} sent shares of a wrong length")


def route(
    roster: Roster, sealed_by: Mapping[int, Mapping[int, bytes]]
) -> dict[int, dict[int, bytes]]:
    """Return for each node the encrypted shares from its neighbours: the input of `accept`.

    `sealed_by` has the output of `NodeRound.shares` of each node that has not dropped out.
    """
    for dealer, shares in sealed_by.items():
        check_shares(roster, dealer, shares)
    return {
        node: {
            dealer: sealed_by[dealer][node]
            for dealer in roster.neighbours[node]
            if dealer in sealed_by
        }
        for node in sealed_by
    }


def unmask(
    roster: Roster,
    total: Words,
    *,
    survivors: Sequence[int],
    sealed_by: Mapping[int, Mapping[int, bytes]],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """Return the sum modulo 2^64 of the survivors' vectors from `total`, the sum with masks.

    `sealed_by` is the input of `route`, and `revealed` has the output of `reveal` of each node. A
    share that does not match its digest is not used. If too few shares of a secret are left,
    `FederationError` names the node whose masks cannot be removed.
    """
    plain, listed = _vector(total).copy(), _survivors(roster, survivors)
    for dealer, shares in sealed_by.items():
        check_shares(roster, dealer, shares)
    if not set(listed) <= sealed_by.keys():
        raise FederationError("a survivor has not sent shares")
    for node in listed:
        seed = _recovered(roster, node, _SEED, sealed_by[node], revealed)
        masks.add_mask(plain, masks.derive(seed, roster.about(b"own", node)), sign=-1)
    for node in sorted(sealed_by.keys() - set(listed)):
        mates = [mate for mate in roster.neighbours[node] if mate in listed]
        if mates:
            private = _recovered(roster, node, _KEY, sealed_by[node], revealed)
            for mate in mates:
                pair = _pair_seed(roster, private, node, mate)
                masks.add_mask(plain, pair, sign=-1 if mate < node else 1)
    return plain


def _recovered(
    roster: Roster,
    node: int,
    kind: bytes,
    dealt: Mapping[int, bytes],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> bytes:
    first = 0 if kind == _SEED else 32
    shares = []
    for place, holder in enumerate(roster.holders(node), start=1):
        given = revealed.get(holder)
        item = given.get(node) if isinstance(given, Mapping) else None
        if not isinstance(item, bytes) or item[:1] != kind:
            continue
        hashed = digest(roster.about(b"share", node, holder), kind, item[1:])
        at_place = item[1:5] == place.to_bytes(4, "big") and len(item) == 1 + SHARE_BYTES
        if at_place and hashed == dealt[holder][first : first + 32]:
            shares.append(item[1:])
    needed = roster.needed(node)
    if len(shares) < needed:
        raise FederationError(
            f"the masks of node {node} remain: {len(shares)} shares are there, {needed} are needed"
        )
    # The digests show that `node` itself made these shares. If they do not give its secret, another
    # selection of them may.
    for start in range(min(_TRIES, len(shares))):
        turned = shares[start:] + shares[:start]
        secret = masks.combine(turned[:needed])
        if kind == _SEED and digest(b"seed", secret) == roster.keys[node]["seed"]:
            return secret
        if kind == _KEY and masks.public_of(secret) == roster.keys[node]["mask"]:
            return secret
    raise BadDealer(node, "do not fit together")


def _pair_seed(roster: Roster, private: bytes, owner: int, other: int) -> bytes:
    about = roster.about(b"pair", min(owner, other), max(owner, other))
    return masks.agree(private, roster.keys[other]["mask"], about)


def _keys_statement(context: bytes, node: int, keys: Mapping[str, bytes]) -> bytes:
    return digest(b"keys", context, number(node), *(keys[part] for part in ADVERTISED))


def _survivors_statement(roster: Roster, listed: Sequence[int]) -> bytes:
    return roster.about(b"survivors", *listed)


def _survivors(roster: Roster, survivors: Sequence[int]) -> tuple[int, ...]:
    """Return the survivors in order; raise unless they are different members and enough."""
    if not isinstance(survivors, Sequence):
        raise FederationError("the survivors are no list of nodes")
    for node in survivors:
        number(node)
    listed = tuple(sorted(survivors))
    if len(set(listed)) != len(listed) or not set(listed) <= roster.keys.keys():
        raise FederationError("a survivor is no member, or is named twice")
    if len(listed) < roster.threshold:
        raise FederationError(f"{len(listed)} nodes are left, and {roster.threshold} are needed")
    return listed


def _vector(value: object) -> Words:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint64 or value.ndim != 1:
        raise FederationError("a vector of a secure sum must be words of 64 bits in one row")
    return value
