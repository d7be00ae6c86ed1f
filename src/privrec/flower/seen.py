"""What a federation's server saw: for people who watch, and for whom to leave out."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from privrec.data.text import safe_text

_LONGEST, _KINDS = 120, 100
"""How much of a reason is kept, and how many reasons: a node chooses its words."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the server saw, for people who watch: no content of any message.

    `refused` counts replies by why they were refused. `state` is the state of each node in the
    present round. `blames` has who accused whom in the present attempt, and `gone` who stopped in
    the middle of it. `excluded` nodes are left out of further attempts of the round. `online` are
    the nodes that were there at the last look, `silent` did not answer their last request, and
    `last` has when each gave its last sign of life, in seconds since 1970.
    """

    round_index: int = 0
    attempt: int = 0
    step: str = "waiting for nodes"
    state: dict[int, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    blames: set[tuple[int, int]] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    excluded: set[int] = field(default_factory=set)
    abandoned: int = 0
    online: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    last: dict[int, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what `status` shows."""
        found = {name: getattr(self, name) for name in self.__slots__}
        names = ("blames", "gone", "excluded", "online", "silent")
        sets = {name: sorted(found[name]) for name in names}
        return {**found, **sets, "refused": dict(self.refused)}

    def heard(self, node: int, kind: str) -> None:
        """Note that a node answered a request of this kind."""
        self.state[node], self.last[node] = kind, time.time()
        self.silent.discard(node)

    def unheard(self, node: int, kind: str) -> None:
        """Note that a node did not answer a request of this kind in time, or not soundly."""
        self.state[node] = f"no {kind}"
        self.silent.add(node)

    def looking(self, online: Callable[[], set[int]]) -> Callable[[], set[int]]:
        """Return `online`, of which every look is noted."""

        def look() -> set[int]:
            self.online = online()
            self.last |= dict.fromkeys(self.online - self.silent, time.time())
            return self.online

        return look

    def refuse(self, why: str) -> str:
        """Count a reply that was refused; return the reason as it was counted."""
        short = safe_text(why[:_LONGEST])
        known = short in self.refused or len(self.refused) < _KINDS
        self.refused[short if known else "other reasons"] += 1
        return short


def missing_in(found: Mapping[str, Any], members: int) -> dict[int, float | None]:
    """Return who is missing by a status from `Seen.as_json`, and when they were last there.

    A node is missing that was not there at the last look, or did not answer its last request.
    """
    there = set(found["online"]) - set(found["silent"])
    return {k: found["last"].get(str(k)) for k in range(members) if k not in there}


def liars(blames: set[tuple[int, int]]) -> set[int]:
    """Return whom to leave out, so that no accusation (accuser, accused) is left.

    In each one, the accuser or the accused lies. Whoever is in most of them goes first; if two
    nodes only accuse each other, both go. So an honest node goes only together with a liar.
    """
    left, found = set(blames), set[int]()
    while left:
        counts = Counter(node for pair in left for node in set(pair))
        most = max(counts.values())
        chosen = {node for node, count in counts.items() if count == most}
        found |= chosen
        left = {pair for pair in left if not chosen & set(pair)}
    return found
