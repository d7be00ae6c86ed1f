"""A node that is a new process for each message: it goes on from its saved state, once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopback import Loopback, noised
from privrec.algorithms.recipes import configure, prepare
from privrec.data.federation import Federation
from privrec.protocol.node import Node
from privrec.testing import small


class Forgetful(Loopback):
    """A federation whose nodes are made anew for each request, from their saved states."""

    def node(self, node: int) -> Any:
        whole = super().node
        kept = [b""]

        class Anew:
            def handle(self, request: bytes) -> bytes:
                made: Node = whole(node)
                if kept[0]:
                    made.restore(kept[0])
                reply = made.handle(request)
                kept[0] = made.saved()
                return reply

        return Anew()


@pytest.mark.parametrize(
    ("recipe", "noise_from"),
    [("dp-privrec-plus", "server"), ("dp-privrec-plus", "nodes"), ("privrec-plus", "server")],
)
def test_nodes_made_anew_for_each_request_give_the_same_sum(
    recipe: str, noise_from: str, data: Federation, tmp_path: Path
) -> None:
    """Also of a recipe without a bound."""
    noise = {"noise": "secure", "noise_multiplier": 1e-6, "epsilon": None}
    settings = small(recipe, **(noise if recipe.startswith("dp") else {}))
    prepared = prepare(configure(recipe, data.name, settings), data)
    more: dict[str, Any] = {"noise_from": noise_from, "missing": 0.0}
    usual = Loopback(prepared, tmp_path / "usual", **more).play()
    anew = Forgetful(prepared, tmp_path / "anew", **more).play()
    for name, total in usual.update.items():
        np.testing.assert_allclose(np.asarray(anew.update[name]), total, atol=1e-3)
        assert np.abs(np.asarray(total)).max() > 0.1


def test_what_a_node_saved_has_every_step_of_its_attempt(data: Federation, tmp_path: Path) -> None:
    """After a state is restored, a step that was made cannot be made again."""
    seen: list[bytes] = []

    def look(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        if node == 0:
            seen.append(net.nodes[0].saved())
        return reply

    net = Loopback(noised("dp-privrec-plus", data), tmp_path, tap=look)
    net.play()
    keys, shares, mask, after = seen
    assert after == b""
    for state, step in ((keys, "keys"), (shares, "shares"), (mask, "mask")):
        node = net.node(0)
        node.restore(state)
        assert node.saved() == state
        assert f'"last":"{step}"'.encode() in state
