"""The terms of a federation: how many sums they allow, what they promise, and how they are read."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from loopback import Loopback, noised
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.protocol.terms import Member, Terms, phases_of, plan_of, promised, read_terms


def members(count: int) -> tuple[Member, ...]:
    return tuple(Member(public_key=str(k), people=5) for k in range(count))


@pytest.mark.parametrize(
    ("nodes", "missing", "colluding", "sums"),
    [(4, 0.3, 0.0, 3), (10, 0.3, 0.1, 3), (10, 0.0, 0.0, 2), (20, 0.4, 0.05, 3)],
)
def test_the_number_of_sums_is_by_hand(
    nodes: int, missing: float, colluding: float, sums: int, data: Federation
) -> None:
    terms = Terms(
        name="people",
        settings=noised("dp-privrec-plus", data).task.settings,
        catalogue="",
        members=members(nodes),
        noise_from="nodes",
        missing=missing,
        colluding=colluding,
    )
    # floor(2 (n - c) / (t - c)) with c = 1 and t = n - floor(missing n).
    assert terms.sums == sums
    assert terms.honest == nodes - 1


def test_epsilon_against_the_server_counts_rounds_that_the_budget_does_not_play(
    data: Federation, tmp_path: Path
) -> None:
    more = {"rounds": 40, "epsilon": 5.0, "sampling": "poisson"}
    net = Loopback(noised("dp-privrec-one", data, **more), tmp_path, noise_from="nodes")
    bound = plan_of(net.terms, data.catalogue)
    epsilon, hostile = promised(net.terms, phases_of(bound))
    assert phases_of(bound)[0].rounds == 40
    assert hostile > epsilon > 5.0  # The budget ends the run before its 40 rounds.


@pytest.fixture
def written(data: Federation, tmp_path: Path) -> Path:
    """The terms of a federation in a file."""
    named = tuple(Member(public_key=str(k), people=5, name=f"n{k}") for k in range(3))
    settings = noised("dp-privrec-plus", data).task.settings
    terms = Terms(name="people", settings=settings, catalogue="", members=named)
    path = tmp_path / "terms.json"
    path.write_text(terms.json_text)
    return path


def test_terms_are_read_as_they_were_written(written: Path) -> None:
    terms = read_terms(written)
    assert terms.json_text == written.read_text()
    assert terms.fingerprint == hashlib.sha256(written.read_bytes()).hexdigest()
    # The order of keys and the spaces in a file are not part of what was agreed on.
    written.write_text(json.dumps(dict(reversed(json.loads(written.read_text()).items()))))
    assert read_terms(written).fingerprint == terms.fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "terms of version 2"),
        ({"version": True}, "terms of version True"),
        ({"more": 1}, "`more`"),
        ({"secure_sum": "yes"}, "`secure_sum` must be"),
        ({"noise_from": "me"}, "`noise_from` must be 'server' or 'nodes'"),
        ({"deadline": 0}, "`deadline` must be > 0"),
        ({"attempts": 1.5}, "`attempts` must be"),
        ({"reveals": True}, "`reveals` must be"),
        ({"missing": 1}, "`missing` must be < 1"),
        ({"min_people": 16}, "`min_people` must be <= 15"),
        ({"members": []}, "at least one enrolled node"),
        ({"members": [{"public_key": "", "people": -1, "name": "n"}]}, "`members.0.people`"),
        ({"members": [{"public_key": "", "people": 1, "name": "\x1b[2J"}]}, "`name` must be 1 to"),
        ({"members": 3}, "`members` must be"),
        ({"settings": {"recipe": "nothing", "data": ""}}, "unknown recipe"),
        ({"settings": 3}, "`settings`"),
    ],
)
def test_wrong_terms_are_refused(change: dict[str, Any], said: str, written: Path) -> None:
    written.write_text(json.dumps(json.loads(written.read_text()) | change))
    with pytest.raises(FederationError, match=re.escape(said)):
        read_terms(written)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", "[" * 100_000, "\xff", '{"version": 3}'])
def test_what_is_no_terms_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "terms.json"
    path.write_text(text)
    with pytest.raises(FederationError):
        read_terms(path)
