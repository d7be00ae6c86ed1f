"""What `privrec federate` shows: the terms, a live table of nodes, traffic and results."""

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from privrec.cli.console import (
    err,
    print_hits,
    print_json,
    print_line,
    print_privacy,
    print_table,
    time_text,
)
from privrec.errors import FederationError

if TYPE_CHECKING:
    from privrec.evaluation.ranking import EvalReport
    from privrec.protocol.enrolment import ServerFolder
    from privrec.protocol.server import Seen
    from privrec.protocol.terms import Terms


def terms_line(terms: "Terms") -> str:
    """Return the terms in one line."""
    sums = "secure sums" if terms.secure_sum else "plain sums"
    noise = ""
    if terms.settings.budget.mechanism != "none":
        noise = f", noise from {'the nodes' if terms.noise_from == 'nodes' else 'the server'}"
    return (
        f"federation of {len(terms.members)} nodes, {terms.people:,} people:"
        f" {terms.settings.recipe}, {sums}{noise}, TLS, authenticated nodes"
    )


def key_text(public_key: str) -> str:
    """Return the hash of a node's key as people compare it."""
    from privrec.protocol.certificates import key_hash
    from privrec.protocol.terms import shown_hash

    return shown_hash(key_hash(public_key))


def say_agreed(terms: "Terms", mine: str = "") -> None:
    """Print the terms, and what owners compare: their hash, and the key of every node.

    `mine` is the public key of the node on which this is shown.
    """
    from privrec.protocol.terms import shown_hash

    print_line(terms_line(terms))
    if not terms.secure_sum:
        print_line(
            "plain sums: the server sees each node's own sum, exact and without noise; if a node"
            " serves one person, it is what this person sends"
        )
    rows = [
        (
            str(number),
            f"{member.name} (this node)" if member.public_key == mine else member.name,
            f"{member.people:,}",
            key_text(member.public_key),
        )
        for number, member in enumerate(terms.members)
    ]
    print_table("Who takes part", ("node", "name", "people", "key"), rows)
    print_line(f"terms: {shown_hash(terms.fingerprint)}")
    print_line(
        "compare the terms and each key with the owners of the other nodes, by phone: the server"
        " wrote this list"
    )


def say_renewed(place: "ServerFolder", hosts: list[str]) -> None:
    """Make a new certificate of a server, and print what nodes need."""
    from privrec.protocol.certificates import renew

    said = "nodes need no new file"
    if renew(place.path, hosts=hosts):
        said = f"give every node the new {place.ca}"
    print_line(f"made a new certificate: {said}")


def say_status(place: "ServerFolder", terms: "Terms", json_: bool) -> None:
    """Print what a server's federation is doing, or that it is dead, and who is missing."""
    from privrec.protocol.certificates import key_hash
    from privrec.protocol.enrolment import is_running
    from privrec.protocol.server import missing_in

    if not place.status.is_file():
        raise FederationError(f"the server of {place.path} has not been started yet")
    runs = is_running(place)
    try:
        seen = json.loads(place.status.read_bytes())
        age, step = max(0.0, time.time() - seen["time"]), f"round {seen['round_index']}"
        step += f", {seen['step']}"
        state, refused = dict(seen["state"]), dict(seen["refused"])
        missing = missing_in(seen, len(terms.members))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederationError(f"{place.status} is damaged") from error
    if json_:
        about = [
            {"name": member.name, "people": member.people, "key": key_hash(member.public_key)}
            for member in terms.members
        ]
        found = {"terms": terms.fingerprint, "people": terms.people, "members": about}
        print_json({**found, "running": runs, "missing": missing, **seen})
        return
    say_agreed(terms)
    again = shlex.join(["privrec", "federate", "server", str(place.path)])
    if seen["step"] == "done":
        print_line(f"done, {time_text(age)} ago")
    elif runs:
        print_line(f"{step}; {time_text(age)} ago")
    else:
        print_line(f"the server is not running; it got to {step}, {time_text(age)} ago")
        print_line(f"go on with: {again}")
    rows = [
        (str(k), member.name, str(state.get(str(k), "")), "missing" if k in missing else "there")
        for k, member in enumerate(terms.members)
    ]
    print_table("Nodes", ("node", "name", "last", ""), rows)
    for k, since in missing.items():
        print_line(f"missing: {terms.members[k].name}, {_since(since)}")
    for why, count in refused.items():
        print_line(f"refused {count}: {why}")


def _since(when: float | None) -> str:
    if when is None:
        return "not seen yet"
    ago = time_text(max(0.0, time.time() - when))
    return f"since {datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S} ({ago})"


@contextlib.contextmanager
def live_table(terms: "Terms", shown: bool) -> Iterator[Callable[["Seen"], None]]:
    """Yield what draws a live table of the nodes, or prints a line a round without a terminal."""
    began, last = time.monotonic(), [-1]
    if not shown or not sys.stderr.isatty():

        def say(seen: "Seen") -> None:
            if shown and seen.round_index != last[0] and not seen.step.startswith("waiting"):
                last[0] = seen.round_index
                print_line(f"round {seen.round_index}, {time.monotonic() - began:.0f} s")

        yield say
        return
    with Live(console=err, transient=True, refresh_per_second=4) as live:

        def draw(seen: "Seen") -> None:
            title = f"round {seen.round_index}: {seen.step} ({time.monotonic() - began:.0f} s)"
            table = Table("node", "name", "people", "last", title=title, title_justify="left")
            for number, member in enumerate(terms.members[:40]):
                state = seen.state.get(number, "")
                table.add_row(str(number), Text(member.name), f"{member.people:,}", state)
            live.update(table)

        yield draw


def say_terms(folder: Path, terms: Path) -> None:
    """Print what the owner of a node agrees to by starting it."""
    from privrec.algorithms.recipes import settings_of
    from privrec.data.catalogue import from_json
    from privrec.privacy.statement import epsilon_text
    from privrec.protocol import terms as agreed
    from privrec.protocol.certificates import public_key_text
    from privrec.protocol.enrolment import NodeFolder
    from privrec.protocol.terms import bind, promised

    if not terms.is_file() or not NodeFolder(path=folder).catalogue.is_file():
        return  # The next step says what is missing.
    known = agreed.from_json(terms.read_bytes(), str(terms), settings_of)
    place = NodeFolder(path=folder)
    text = place.catalogue.read_text(encoding="utf-8")
    epsilon, hostile = promised(known, bind(known, from_json(text, str(folder))).phases())
    say_agreed(known, public_key_text(place.key))
    delta = known.settings.budget.delta
    against = "no guarantee" if hostile == float("inf") else f"epsilon {epsilon_text(hostile)}"
    if epsilon == float("inf"):
        print_line("against who sees the model: no guarantee; against the server: no guarantee")
    else:
        print_line(
            f"against who sees the model: epsilon {epsilon_text(epsilon)} at delta {delta:g};"
            f" against the server: {against}"
        )
    others = [p for p in folder.glob("reveals-*.json") if p != place.reveals(known.fingerprint)]
    if others:
        print_line(f"this node took part in {len(others)} other federation(s): their costs add up")


def say_traffic(terms: "Terms", found: list[dict[str, Any]], json_: bool) -> None:
    """Print what a node gets and sends."""
    if json_:
        print_json(found)
        return
    print_line(terms_line(terms))
    rows = [
        [value if isinstance(value, str) else f"{value:,}" for value in entry.values()]
        for entry in found
    ]
    columns = ("phase", "rounds", "exchanges", "numbers", "bytes down", "bytes up")
    print_table("A node's part of one round, at most", columns, rows)


def say_tested(found: "EvalReport", json_: bool) -> None:
    """Print what a model reaches for the people whom a node held out."""
    from privrec.runs.figures import figure_and_arm

    if json_:
        keys = ("hits", "interval")
        shown = {key: value for key, value in found.as_json().items() if key in keys}
        print_json({"people": {"test": found.tested, "skipped": found.skipped}, **shown})
        return
    cells = [figure_and_arm(found.hits[k], found.interval.get(k)) for k in found.hits]
    title = f"Hits@k on {found.tested:,} held-out people of this node, {found.skipped:,} skipped"
    print_table(title, ("", *(f"@{k}" for k in found.hits)), [("the model", *cells)])
    print_line("computed from their raw data: for this node alone (--epsilon prints sums to share)")


def say_sums(sums: dict[str, float], epsilon: float, json_: bool) -> None:
    """Print sums over held-out people that may leave their node."""
    if json_:
        print_json({"sums": sums, "epsilon": epsilon})
        return
    rows = [(name if name == "people" else f"Hits@{name}", f"{sums[name]:.3f}") for name in sums]
    print_table("Sums over held-out people, with noise", ("", "sum"), rows)
    print_line(
        f"each time that such sums leave the node costs its held-out people epsilon {epsilon:g};"
        " add up the sums of all nodes, then divide by the sum of people"
    )


def say_result(place: Path, path: Path, json_: bool) -> None:
    """Evaluate a run and print its table and statement, each figure with its interval."""
    from privrec.runs.api import open_run
    from privrec.show.report import difference_words
    from privrec.show.write import write_report

    run = open_run(place)
    found = run.evaluate(progress=False)
    write_report(run)
    if json_:
        print_json(found.as_json())
        return
    print_hits(f"Hits@k on {found.data} ({found.users.test:,} test people)", found)
    if by := found.differences.get("popularity", {}).get(20):
        print_line(f"{found.recipe} against popularity at 20: {difference_words(by)}")
    for line in found.warnings:
        print_line(f"warning: {line}")
    print_privacy(found.privacy.as_json(), str(run.folder.report_path))
    print_line(f"the run: {run.folder.path}; server and nodes: {path}")


def federation_stopped(folder: Path, go_on: str) -> str:
    """Return what a stopped server says; `go_on` is what to do next."""
    from privrec.errors import PrivrecError
    from privrec.protocol.enrolment import ServerFolder
    from privrec.runs.folder import RunFolder, played_rounds

    try:
        saved = played_rounds(RunFolder(path=ServerFolder(path=folder).run))
    except PrivrecError:
        saved = 0
    return f"stopped at round {saved}; {go_on}"
