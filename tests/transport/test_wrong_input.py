"""Wrong input to the commands of a federation: one line, and nothing is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from commands import Refused, invoke
from privrec.errors import FederationError
from privrec.protocol.certificates import read_private_key, sign
from privrec.protocol.enrolment import (
    Enrolment,
    NodeFolder,
    check_roster,
    enrol,
    read_enrolments,
)
from tiny import DATA


@pytest.fixture
def nodes(scratch: Path) -> Path:
    """The folders of three nodes, and of one whose data is of another catalogue."""
    data = privrec.load(DATA)
    for k in range(3):
        enrol(data, np.arange(16 * k, 16 * k + 16), scratch / f"n{k}")
    other = privrec.load(DATA.replace("items=40", "items=41"))
    enrol(other, np.arange(16), scratch / "other")
    return scratch


def enrolments(*names: str) -> list[str]:
    return [word for name in names for word in ("--enrolment", f"{name}/enrolment.json")]


ALL = enrolments("n0", "n1", "n2")


CATALOGUE = ["--catalogue", "n0/catalogue.json"]
NODES_NOISE = ["--set", "noise_from=nodes"]


PREPARE = ["federate", "server", "server", "--prepare-only"]


def rewrite(place: Path, signer: Path | None, **changes: Any) -> Path:
    """Change an enrolment; sign it again with the key in a node's folder, if one is given."""
    path = place / "enrolment.json"
    found = json.loads(path.read_text()) | changes
    if signer is not None:
        statement = Enrolment.model_construct(**found).statement
        found["signature"] = sign(read_private_key(signer / "key"), statement).hex()
    path.write_text(json.dumps(found))
    return path


Change = Callable[[Path], Path]


WRONG: dict[str, tuple[Change, str]] = {
    "changed": (lambda p: rewrite(p / "n0", None, people=["somebody"]), "not signed by the key"),
    "no pseudonym": (lambda p: rewrite(p / "n0", p / "n0", people=[]), "names nobody, or"),
    "doubled": (lambda p: rewrite(p / "n0", p / "n0", people=["a", "b", "a"]), "somebody twice"),
    "signed by another": (lambda p: rewrite(p / "n0", p / "n1"), "not signed by the key"),
    "another's key": (
        lambda p: rewrite(p / "n0", None, public_key=read_enrolments(p / "n1")[0].public_key),
        "not signed by the key",
    ),
    "no name": (lambda p: rewrite(p / "n0", p / "n0", name=""), "no enrolment of a node"),
    "another name": (lambda p: rewrite(p / "n0", None, name="n1"), "not signed by the key"),
    "no hex": (lambda p: rewrite(p / "n0", None, signature="signature"), "no enrolment of a node"),
    "a number": (lambda p: rewrite(p / "n0", None, people=3), "no enrolment of a node"),
    "no key": (lambda p: rewrite(p / "n0", None, public_key="ü"), "not signed by the key"),
    "empty": (lambda p: text(p / "n0" / "enrolment.json", ""), "no enrolment of a node"),
    "a list": (lambda p: text(p / "n0" / "enrolment.json", "[]"), "no enrolment of a node"),
    "missing": (lambda p: p / "nowhere", "no enrolment of a node"),
}


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_enrolment_is_refused(name: str, nodes: Path, refused: Refused) -> None:
    change, words = WRONG[name]
    path = change(nodes)
    with pytest.raises(FederationError, match=words):
        read_enrolments(path)
    line = refused(*PREPARE, *CATALOGUE, "--enrolment", path, *enrolments("n1", "n2"))
    assert words in line


def test_enrolments_that_do_not_go_together_are_refused(nodes: Path) -> None:
    one, two = (read_enrolments(nodes / name)[0] for name in ("n0", "n1"))
    check_roster([one, two], one.catalogue)
    with pytest.raises(FederationError, match="the same key"):
        check_roster([one, two, one], one.catalogue)
    shared = Enrolment(
        name="shared",
        public_key=two.public_key,
        people=(*two.people, one.people[0]),
        catalogue=one.catalogue,
        undeclared=(),
        signature="",
    )
    with pytest.raises(FederationError, match="the same person"):
        check_roster([one, shared], one.catalogue)
    with pytest.raises(FederationError, match="enrolment 2 was made with another catalogue"):
        check_roster([one, *read_enrolments(nodes / "other")], one.catalogue)


SERVER: list[tuple[list[str], str]] = [
    ([], "give --catalogue and an --enrolment"),
    (CATALOGUE, "give --catalogue and an --enrolment"),
    (["--catalogue", "nowhere", *ALL], "nowhere: No such file"),
    (["--catalogue", "n0/enrolment.json", *ALL], "is not a whole catalogue"),
    ([*CATALOGUE, *ALL, *enrolments("n1")], "two enrolments present the same key"),
    ([*CATALOGUE, *ALL, *enrolments("other")], "enrolment 4 was made with another catalogue"),
    ([*CATALOGUE, *enrolments("n0")], "secure sums need at least 2 nodes"),
    ([*CATALOGUE, *ALL, "--recipe", "nothing"], "unknown recipe 'nothing'"),
    ([*CATALOGUE, *ALL, "--set", "roundz=1"], "did you mean 'rounds'?"),
    ([*CATALOGUE, *ALL, "--recipe", "ease"], "needs all data in one place"),
    (
        [*CATALOGUE, *ALL, "--set", "noise_from=me"],
        "`noise_from` must be 'server' or 'nodes'",
    ),
    ([*CATALOGUE, *ALL, *NODES_NOISE, "--set", "secure_sum=false"], "needs secure sums"),
    ([*CATALOGUE, *ALL, "--set", "missing=1"], "`missing` must be < 1; got 1"),
    (
        [*CATALOGUE, *ALL, "--set", "missing=0.34", "--set", "colluding=0.34"],
        "too few to hide one node",
    ),
    ([*CATALOGUE, *ALL, "--set", "deadline=nan"], "`deadline` must be"),
    ([*CATALOGUE, *ALL, "--set", "deadline=inf"], "`deadline` must be <= 86400"),
    ([*CATALOGUE, *ALL, "--set", "min_people=-1"], "`min_people` must be >= 0"),
    ([*CATALOGUE, *ALL, "--set", "min_people=1000"], "`min_people` must be <= 48"),
    ([*CATALOGUE, *ALL, "--name", "b\u00e4nk"], "is no host name or address"),
    ([*CATALOGUE, *ALL, "--name", ""], "is no host name or address"),
    ([*CATALOGUE, *ALL, "--host", "a b"], "is no host name or address"),
    (["--catalogue", "n0/people.safetensors", *ALL], "is not a"),
    (
        [*CATALOGUE, *ALL, *NODES_NOISE, "--set", "noise_multiplier=0"],
        "noise from nodes needs noise in every phase",
    ),
    ([*CATALOGUE, *ALL, "--set", "delta=0.5"], "`delta` must be < 1/48"),
]


@pytest.mark.parametrize(("words", "said"), SERVER)
def test_a_server_that_cannot_be_is_not_made(
    words: list[str], said: str, nodes: Path, refused: Refused
) -> None:
    assert said in refused(*PREPARE, *words)


def test_other_commands_with_wrong_input(nodes: Path, refused: Refused) -> None:
    enrolling = ("federate", "enrol", "--data")
    assert "no built-in name" in refused(*enrolling, "nowhere", "--out", "new")
    assert "n0 is in the way" in refused(*enrolling, DATA, "--out", "n0")
    assert "Not a directory" in refused(*enrolling, DATA, "--out", "n0/key/below")
    assert "has no federation" in refused("federate", "status", "nowhere")
    made = invoke(*PREPARE, *CATALOGUE, *ALL)
    assert made.exit_code == 0, made.output
    assert "has not been started yet" in refused("federate", "status", "server")
    again = "has its terms already; start it without settings"
    for words in (
        ["--seed", "3"],
        ["--recipe", "privrec"],
        ["--set", "missing=0.1"],
        ["--set", "secure_sum=true"],
    ):
        assert again in refused(*PREPARE, *words)
    assert "has its terms already" in refused(*PREPARE, *CATALOGUE, *ALL)
    assert "no certificates to renew" in refused("federate", "server", "new", "--renew")

    def joins(name: str, terms: str = "server/terms.json", ca: str = "server/ca.crt") -> str:
        given = ("--server", "127.0.0.1:1", "--terms", terms, "--ca", ca)
        return refused("federate", "node", name, *given)

    assert "nowhere is no folder of a node" in joins("nowhere")
    assert "the node in other is not enrolled in these terms" in joins("other")
    assert "cannot read nowhere" in joins("n0", terms="nowhere")
    assert "has no terms of a federation" in joins("n0", terms="server/ca.crt")
    assert "cannot read the certificate nowhere" in joins("n0", ca="nowhere")
    assert "is no certificate in PEM format" in joins("n0", ca="server/terms.json")


def test_a_node_refuses_terms_that_are_not_about_its_people(nodes: Path, refused: Refused) -> None:
    assert invoke(*PREPARE, *CATALOGUE, *ALL).exit_code == 0
    path = nodes / "server" / "terms.json"
    terms = json.loads(path.read_text())
    terms["members"][0]["people"] += 1
    path.write_text(json.dumps(terms))
    given = ("--server", "127.0.0.1:1", "--terms", path, "--ca", "server/ca.crt")
    assert "have 17 people of the node in n0" in refused("federate", "node", "n0", *given)
    NodeFolder(nodes / "n1").people.write_bytes(b"nothing")
    assert "n1 is no folder of a node" in refused("federate", "node", "n1", *given)
