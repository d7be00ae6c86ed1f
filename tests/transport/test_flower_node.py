"""What a node and its owner do for a run over Flower; nothing here needs Flower."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Refused, done
from loopback import Loopback, noised
from privrec.core.phase import Cohort
from privrec.data.catalogue import to_json
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.privacy.statement import OVER_FLOWER
from privrec.protocol import wire
from privrec.protocol.certificates import verify
from privrec.protocol.enrolment import read_server
from privrec.protocol.server import Server, executor
from privrec.protocol.terms import Terms, phases_of, plan_of, promised, read_terms
from privrec.protocol.wire import Reply, Request
from privrec.runs import folder as records
from privrec.runs.api import open_run
from privrec.runs.loop import play_stages
from privrec.show.nodes import is_server
from privrec.transport.flower.app import STATE, accept, accepted_terms, write_app
from privrec.transport.flower.node import answer, greet, greeting
from privrec.transport.local import LocalFederation, make_local
from privrec.transport.run_node import serve_node
from privrec.transport.run_server import serve
from tiny import DATA

NODES = 2
LOST = "this node is not in that attempt of that round"
PLUS = {"noise": "secure", "noise_multiplier": 1.0, "force_delta": True, "rounds": 0}


def made(path: Path, **more: object) -> LocalFederation:
    settings = {**PLUS, "transport": "flower", "min_people": 1, **more}
    return make_local(path, "dp-privrec-plus", DATA, nodes=NODES, settings=settings)


@pytest.fixture
def local(tmp_path: Path) -> LocalFederation:
    """A federation for Flower whose nodes have accepted its terms."""
    found = made(tmp_path / "fed")
    for node in range(NODES):
        accept(found.node(node), found.server.terms)
    return found


class Served:
    """Nodes that answer as over Flower: each request goes to a node that is made anew."""

    def __init__(self, local: LocalFederation) -> None:
        self.local, self.states = local, dict.fromkeys(range(NODES), b"")
        self.asked: list[tuple[bytes, bytes]] = []
        keys = [member.public_key for member in local.terms.members]
        self.server = Server(
            terms=local.terms,
            ask=self.ask,
            online=lambda: set(range(NODES)),
            verify=lambda node, content, made: verify(keys[node], content, made),
        )

    def ask(
        self, requests: Mapping[int, bytes], deadline: float, most: int
    ) -> Iterator[tuple[int, bytes]]:
        for node, request in requests.items():
            if node == 0:
                self.asked.append((request, self.states[0]))
            reply, self.states[node] = answer(self.local.node(node), request, self.states[node])
            yield node, reply

    def play(self) -> None:
        """Play the first round with everybody."""
        plan = plan_of(self.local.terms, read_server(self.local.server.path)[2])
        phase = phases_of(plan)[0]
        state = phase.start(None)
        cohort = Cohort(np.arange(self.local.terms.people), plan.task.federation.take)
        total = executor(self.server)(phase, phase.tell(state), cohort, 0, state.clip_norm)
        assert all(np.isfinite(np.asarray(part)).all() for part in total.update.values())


def said(request: bytes, reply: bytes) -> Reply:
    return wire.unpack(wire.verified(reply, request, lambda content, made: True), Reply)[0]


def test_a_state_is_used_once(local: LocalFederation) -> None:
    """Also if the same request comes again with the state that it had, as after a crash."""
    served = Served(local)
    served.play()
    kinds = [wire.unpack(request, Request)[0].kind for request, _ in served.asked]
    assert kinds == ["keys", "shares", "mask", "reveal"]
    for request, state in served.asked[1:]:
        assert said(request, answer(local.node(0), request, state)[0]).why == LOST


def test_a_crash_in_the_middle_of_an_answer_ends_the_attempt(
    local: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(local)
    served.play()
    keys, shares = (request for request, _ in served.asked[:2])
    state = answer(local.node(0), keys, b"")[1]
    with monkeypatch.context() as patch:
        patch.setattr("privrec.protocol.node.Node.saved", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answer(local.node(0), shares, state)
    assert said(shares, answer(local.node(0), shares, state)[0]).why == LOST


def test_a_node_says_who_it_is_under_the_terms_of_its_owner(
    local: LocalFederation, tmp_path: Path
) -> None:
    told = greet(local.node(1), b"challenge")
    assert int.from_bytes(told[:8], "big") == 1
    key = local.terms.members[1].public_key
    assert verify(key, greeting(local.terms.fingerprint, b"challenge"), told[8:])
    assert not verify(key, greeting(local.terms.fingerprint, b"other"), told[8:])
    accepted_terms(local.node(1)).unlink()
    with pytest.raises(FederationError, match="no terms are accepted"):
        greet(local.node(1), b"challenge")
    with pytest.raises(FederationError, match="not enrolled"):
        accept(local.node(1), made(tmp_path / "other").server.terms)


def test_a_server_with_other_terms_is_refused(local: LocalFederation) -> None:
    served = Served(local)
    served.play()
    request, _ = wire.unpack(served.asked[0][0], Request)
    other = wire.pack(request.model_copy(update={"terms": "0" * 64}))
    assert "other terms" in said(other, answer(local.node(0), other, b"")[0]).why


def test_terms_are_for_one_transport(local: LocalFederation, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="for Flower"):
        serve(local.server.path, host="127.0.0.1", port=0)
    terms, ca = local.server.terms, local.server.ca
    with pytest.raises(FederationError, match="for Flower"):
        serve_node(local.node(0), terms=terms, ca=ca, server="127.0.0.1:1")
    https = make_local(tmp_path / "https", "dp-privrec-plus", DATA, nodes=NODES, settings=PLUS)
    with pytest.raises(FederationError, match="not for Flower"):
        accept(https.node(0), https.server.terms)
    with pytest.raises(FederationError, match="not for Flower"):
        write_app(tmp_path / "app", https.server.path, None)
    # Terms over HTTPS have the text, and so the hash, that they always had.
    assert "transport" not in json.loads(https.terms.json_text)


@pytest.mark.parametrize("noise_from", ["server", "nodes"])
def test_a_run_over_flower_promises_nothing_against_the_server(
    noise_from: str, data: Federation, tmp_path: Path
) -> None:
    prepared = noised("dp-privrec-plus", data, rounds=0)
    more: dict[str, Any] = {"noise_from": noise_from, "missing": 0.0, "transport": "flower"}
    net = Loopback(prepared, tmp_path / "net", **more)
    plan = net.run()
    assert promised(net.terms, phases_of(plan))[1] == np.inf
    fields = {name: getattr(net.terms, name) for name in Terms.model_fields.keys() - {"transport"}}
    https = promised(Terms.model_validate(fields), phases_of(plan))[1]
    assert (https < np.inf) == (noise_from == "nodes")
    public = to_json(data.catalogue)
    run = records.create_run(tmp_path / "run", plan.task.settings, public, None)
    play_stages(plan, run, network=net.server.network())
    report = open_run(run.path).privacy()
    assert OVER_FLOWER in report.statement
    assert OVER_FLOWER in report.short
    assert any(part.startswith("the server, ") for part in report.not_covered)
    assert "The server is covered" not in report.statement


def test_the_commands_prepare_a_run(scratch: Path, refused: Refused) -> None:
    fed = made(scratch / "fed")
    node = fed.node(0)
    done("federate", "flower-node", node, "--terms", fed.server.terms, "--dry-run")
    assert not accepted_terms(node).exists()
    told = done("federate", "flower-node", node, "--terms", fed.server.terms)
    assert f'privrec-node="{node}"' in told
    assert "over Flower" in told
    assert read_terms(accepted_terms(node)) == fed.terms
    folders = scratch / "fed" / "nodes"
    done("federate", "flower-app", fed.server.path, "--out", "app", "--nodes", folders)
    [file] = Path("app").iterdir()
    about = tomllib.loads(file.read_text())["tool"]["flwr"]["app"]
    assert about["config"]["privrec-server"] == str(fed.server.path)
    assert about["config"]["privrec-nodes"] == str(folders)
    assert "in the way" in refused("federate", "flower-app", fed.server.path, "--out", "app")
    few = refused("federate", "flower-app", fed.server.path, "--out", "b", "--nodes", scratch)
    assert "0 folders of nodes" in few


def test_accepting_terms_ends_an_attempt_under_older_ones(local: LocalFederation) -> None:
    node = local.node(0)
    (node / STATE).write_bytes(b"mark")
    accept(node, local.server.terms, dry_run=True)
    assert (node / STATE).exists()
    accept(node, local.server.terms)
    assert not (node / STATE).exists()


def test_a_nodes_folder_is_not_taken_for_a_servers(local: LocalFederation) -> None:
    assert is_server(local.server.path)
    assert not is_server(local.node(0))


def test_an_app_of_a_folder_without_a_name_in_text_is_not_begun(local: LocalFederation) -> None:
    server, out = local.path / "s\udcff", local.path / "app"
    local.server.path.rename(server)
    with pytest.raises(FederationError, match="UTF-8"):
        write_app(out, server, None)
    assert not out.exists()
