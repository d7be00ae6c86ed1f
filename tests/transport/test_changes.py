"""Nodes that come, leave, or get another key between two trainings, by the commands of the docs."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privrec.cli.app import app
from privrec.errors import FederationError
from privrec.protocol.certificates import public_key_text
from privrec.protocol.enrolment import changed, read_enrolments, renew_key
from privrec.protocol.terms import Terms, read_terms
from privrec.runs.folder import RunFolder
from privrec.runs.ledger import settled_ledger
from privrec.transport.local import LocalFederation, free_port, start_node
from privrec.transport.run_node import check_node, locked
from privrec.transport.run_server import serve

SETTINGS = ("--set", "stage1_cohort=1000", "--set", "deadline=60", "--set", "min_people=1")


def command(*words: object) -> str:
    result = CliRunner().invoke(app, ["federate", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, ["federate", *map(str, words)])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four nodes with people of one population, and a server of the first three."""
    for k, name in enumerate("abcd"):
        size = 30 + 5 * k
        data = f"synthetic:users={size},items=30,longest=12"
        command("enrol", "--data", data, "--out", tmp_path / "nodes" / f"{k:02d}", "--name", name)
    words = ["--catalogue", tmp_path / "nodes" / "00" / "catalogue.json"]
    for k in range(3):
        words += ["--enrolment", tmp_path / "nodes" / f"{k:02d}" / "enrolment.json"]
    command("server", tmp_path / "first", "--prepare-only", *words, "--epsilon", "8", *SETTINGS)
    return tmp_path


def members(folder: Path) -> list[str]:
    return [member.name for member in read_terms(folder / "terms.json").members]


def test_the_next_training_has_other_nodes_and_the_same_settings(place: Path) -> None:
    old = read_enrolments(place / "nodes" / "01")[0]
    said = command("enrol", "--renew", "--out", place / "nodes" / "01")
    assert "both keys signed it" in said
    command(
        *("server", place / "second", "--follows", place / "first", "--prepare-only"),
        *("--enrolment", place / "nodes" / "03" / "enrolment.json"),
        *("--enrolment", place / "nodes" / "01" / "enrolment.json", "--retire", "a"),
    )
    assert members(place / "first") == ["a", "b", "c"]
    assert members(place / "second") == ["b", "c", "d"]
    first, second = (read_terms(place / name / "terms.json") for name in ("first", "second"))
    kept = {"members": (), "catalogue": ""}
    assert first.model_copy(update=kept) == second.model_copy(update=kept)
    assert first.catalogue == second.catalogue
    for name in ("ca.crt", "server.pem", "server.key"):
        assert (place / "first" / name).read_bytes() == (place / "second" / name).read_bytes()
    new = read_enrolments(place / "nodes" / "01")[0]
    assert new.people == old.people
    assert new.public_key != old.public_key
    ca = place / "first" / "ca.crt"
    # The renewed node and the new one take part in the second training alone, a in the first.
    for number, terms in ((1, "second"), (3, "second"), (0, "first"), (2, "first"), (2, "second")):
        check_node(place / "nodes" / f"{number:02d}", terms=place / terms / "terms.json", ca=ca)
    for number, terms in ((1, "first"), (3, "first"), (0, "second")):
        with pytest.raises(FederationError, match="is not enrolled in these terms"):
            check_node(place / "nodes" / f"{number:02d}", terms=place / terms / "terms.json", ca=ca)


def test_what_cannot_follow_is_refused(place: Path) -> None:
    second = ("server", place / "second", "--follows", place / "first", "--prepare-only")
    assert "'x' is not the name of one node" in refused(*second, "--retire", "x")
    mine = place / "nodes" / "01" / "enrolment.json"
    assert "same key" in refused(*second, "--enrolment", mine)
    assert "keeps catalogue, recipe, settings" in refused(*second, "--epsilon", "2")
    assert "--retire needs --follows" in refused("server", place / "third", "--retire", "a")
    assert "takes --out alone" in refused("enrol", "--renew", "--out", mine.parent, "--name", "z")
    assert "no federation" in refused("server", place / "x", "--follows", place / "nodes")
    assert not (place / "second").exists()
    # Who renews twice before the server hears of it replaces a key that nobody knows.
    renew_key(mine.parent)
    renew_key(mine.parent)
    assert "retire 'b' as well" in refused(*second, "--enrolment", mine)
    assert not (place / "second").exists()
    command(*second, "--enrolment", mine, "--retire", "b")
    assert members(place / "second") == ["a", "c", "b"]


def test_the_key_of_a_node_that_takes_part_stays(place: Path) -> None:
    folder = place / "nodes" / "01"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with locked(folder):
        assert "another program serves" in refused("enrol", "--renew", "--out", folder)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("write", range(5))
def test_a_renewal_that_was_killed_can_be_done_again(
    write: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its writes and moves."""
    folder, count = place / "nodes" / "01", iter(range(100))

    def moved(self: Path, target: Path) -> None:
        if next(count) == write:
            raise KeyboardInterrupt
        os.replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", moved)
        with pytest.raises(KeyboardInterrupt):
            renew_key(folder)
    renew_key(folder)
    known = read_enrolments(place / "first" / "roster.json")
    left = changed(known, read_enrolments(folder), [])
    assert [one.name for one in left] == ["a", "b", "c"]
    assert left[1].public_key == public_key_text(folder / "key")


def test_a_renewal_that_the_old_key_did_not_sign_is_refused(place: Path) -> None:
    """Otherwise whoever has an enrolment could take a node's place."""
    path = place / "nodes" / "01" / "enrolment.json"
    stranger = read_enrolments(place / "nodes" / "03")[0]
    renew_key(path.parent)
    good = json.loads(path.read_text())
    victim = read_terms(place / "first" / "terms.json").members[2].public_key
    for change in ({"replaces": victim}, {"consent": good["signature"]}, {"consent": "x"}):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(FederationError, match="not signed by the key"):
            read_enrolments(path)
    known = read_enrolments(place / "first" / "roster.json")
    assert [one.name for one in changed(known, [stranger], ["a"])] == ["b", "c", "d"]


@pytest.mark.slow
def test_two_trainings_with_other_nodes(place: Path) -> None:
    """Each training has its own ledger, and people of both are in both."""
    train(place, "first", [0, 1, 2])
    command("enrol", "--renew", "--out", place / "nodes" / "01")
    command(
        *("server", place / "second", "--follows", place / "first", "--prepare-only"),
        *("--enrolment", place / "nodes" / "03" / "enrolment.json"),
        *("--enrolment", place / "nodes" / "01" / "enrolment.json", "--retire", "a"),
    )
    train(place, "second", [1, 2, 3])
    ledgers = [settled_ledger(RunFolder(path=place / n / "run")) for n in ("first", "second")]
    assert [len(lines) for lines in ledgers] == [len(ledgers[0])] * 2
    assert {line.sums for lines in ledgers for line in lines} == {"masked"}


def train(place: Path, name: str, nodes: list[int]) -> None:
    """Train with these nodes as processes."""
    terms: Terms = read_terms(place / name / "terms.json")
    local = Place(path=place, terms=terms, name=name)
    port = free_port()
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.enter_context(start_node(local, node, port))
        run = serve(local.server.path, host="127.0.0.1", port=port)
    assert (run / "params.safetensors").is_file()


class Place(LocalFederation):
    """The folders of one of two federations with the same nodes."""

    name: str

    def __init__(self, *, name: str, **parts: Any) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "name", name)

    @property
    def server(self) -> Any:
        """The server's folder."""
        from privrec.protocol.enrolment import ServerFolder

        return ServerFolder(self.path / self.name)
