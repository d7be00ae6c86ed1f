"""What `privrec federate` shows: the terms, a live table of nodes, traffic and results."""

import contextlib
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
    from privrec.protocol.enrolment import Enrolment, ServerFolder
    from privrec.protocol.server import ServerStatus
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


def agreed(terms: "Terms", mine: str = "") -> None:
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


def renewed(place: "ServerFolder", hosts: list[str]) -> None:
    """Make a new certificate of a server, and print what nodes need."""
    from privrec.protocol.certificates import renew

    said = "nodes need no new file"
    if renew(place.path, hosts=hosts):
        said = f"give every node the new {place.ca}"
    print_line(f"made a new certificate: {said}")


def status(folder: Path, json_: bool) -> None:
    """Print what a server's federation is doing, or that it is dead, and who is missing."""
    from privrec.protocol.certificates import key_hash
    from privrec.protocol.enrolment import is_running, read_server
    from privrec.protocol.server import ServerStatus

    place, terms, _ = read_server(folder)
    if not place.status.is_file():
        raise FederationError(f"the server of {folder} has not been started yet")
    runs = is_running(place)
    seen = ServerStatus.read(place.status)
    missing = seen.missing(len(terms.members))
    if json_:
        members = [
            {"name": member.name, "people": member.people, "key": key_hash(member.public_key)}
            for member in terms.members
        ]
        about = {"terms": terms.fingerprint, "people": terms.people, "members": members}
        print_json({**about, "running": runs, "missing": missing, **seen.model_dump(mode="json")})
        return
    agreed(terms)
    ago, step = time_text(max(0.0, time.time() - seen.time)), f"round {seen.round_index}"
    if seen.step == "done":
        print_line(f"done, {ago} ago")
    elif runs:
        print_line(f"{step}, {seen.step}; {ago} ago")
    else:
        print_line(f"the server is not running; it got to {step}, {seen.step}, {ago} ago")
        again = shlex.join(["privrec", "federate", "server", str(place.path)])
        print_line(f"go on with: {again}")
    rows = [
        (str(k), member.name, seen.state.get(k, ""), "missing" if k in missing else "there")
        for k, member in enumerate(terms.members)
    ]
    print_table("Nodes", ("node", "name", "last", ""), rows)
    for k, since in missing.items():
        print_line(f"missing: {terms.members[k].name}, {_since(since)}")
    for why, count in seen.refused.items():
        print_line(f"refused {count}: {why}")


def _since(when: float | None) -> str:
    if when is None:
        return "not seen yet"
    ago = time_text(max(0.0, time.time() - when))
    return f"since {datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S} ({ago})"


@contextlib.contextmanager
def live_table(terms: "Terms", shown: bool) -> Iterator[Callable[["ServerStatus"], None]]:
    """Yield what draws a live table of the nodes, or prints a line a round without a terminal."""
    began = time.monotonic()
    if not shown:
        yield lambda status: None
    elif not sys.stderr.isatty():
        yield partial(_print_round, began, set())
    else:
        with Live(console=err, transient=True, refresh_per_second=4) as live:
            yield lambda status: live.update(_table(terms, status, began))


def _print_round(began: float, printed: set[int], status: "ServerStatus") -> None:
    if status.round_index not in printed and not status.step.startswith("waiting"):
        printed.add(status.round_index)
        print_line(f"round {status.round_index}, {time.monotonic() - began:.0f} s")


def _table(terms: "Terms", status: "ServerStatus", began: float) -> Table:
    title = f"round {status.round_index}: {status.step} ({time.monotonic() - began:.0f} s)"
    table = Table("node", "name", "people", "last", title=title, title_justify="left")
    for number, member in enumerate(terms.members[:40]):
        state = status.state.get(number, "")
        table.add_row(str(number), Text(member.name), f"{member.people:,}", state)
    return table


def enrolled(enrolment: "Enrolment", path: Path, held_out: int) -> None:
    """Print whom a node enrolled, and which of its files are for whom."""
    from privrec.protocol.enrolment import NodeFolder

    folder = NodeFolder(path=path)
    apart = f", held out {held_out:,}" if held_out else ""
    print_line(f"enrolled {len(enrolment.people):,} people{apart}: {path}")
    print_line(f"send to the server: {folder.enrolment} (public key, name and pseudonyms)")
    print_line(f"public, too:        {folder.catalogue} (the server needs one copy)")
    print_line("keep for yourself:  everything else in that folder")
    print_line(f"tell the others:    {enrolment.name} has the key {key_text(enrolment.public_key)}")


def agreed_by_node(path: Path, terms_path: Path) -> None:
    """Print what the owner of a node agrees to by starting it."""
    from privrec.data.catalogue import from_json
    from privrec.privacy.statement import epsilon_text
    from privrec.protocol.certificates import public_key_text
    from privrec.protocol.enrolment import NodeFolder
    from privrec.protocol.terms import phases_of, plan_of, promised, read_terms

    terms, folder = read_terms(terms_path), NodeFolder(path=path)
    text = folder.catalogue.read_text(encoding="utf-8")
    epsilon, hostile = promised(terms, phases_of(plan_of(terms, from_json(text, str(path)))))
    agreed(terms, public_key_text(folder.key))
    if epsilon == math.inf:
        print_line("against who sees the model: no guarantee; against the server: no guarantee")
    else:
        against = "no guarantee" if hostile == math.inf else f"epsilon {epsilon_text(hostile)}"
        print_line(
            f"against who sees the model: epsilon {epsilon_text(epsilon)} at delta"
            f" {terms.settings.budget.delta:g}; against the server: {against}"
        )
    others = [p for p in path.glob("reveals-*.json") if p != folder.reveals(terms.fingerprint)]
    if others:
        print_line(f"this node took part in {len(others)} other federation(s): their costs add up")


def traffic(folder: Path, json_: bool) -> None:
    """Print what a node gets and sends."""
    from privrec.protocol.enrolment import read_server
    from privrec.protocol.terms import traffic_of

    _, terms, catalogue = read_server(folder)
    phases = [asdict(phase) for phase in traffic_of(terms, catalogue)]
    if json_:
        print_json(phases)
        return
    print_line(terms_line(terms))
    rows = [
        [value if isinstance(value, str) else f"{value:,}" for value in phase.values()]
        for phase in phases
    ]
    columns = ("phase", "rounds", "exchanges", "numbers", "bytes down", "bytes up")
    print_table("A node's part of one round, at most", columns, rows)


def exported(place: Path, model: Path) -> None:
    """Write the model for devices, and say what was trained."""
    from privrec.runs.api import open_run
    from privrec.runs.run import export_run

    run = open_run(place)
    export_run(run, model)
    print_line(f"trained {run.config.recipe}: {place}")
    print_line(f"for devices: {model} (docs/federation.md)")
    print_privacy(run.privacy().as_json(), f"`statement.txt` in {model}")


def tested(report: "EvalReport", json_: bool) -> None:
    """Print what a model reaches for the people whom a node held out."""
    from privrec.runs.figures import figure_and_arm

    if json_:
        keys = ("hits", "interval")
        shown = {key: value for key, value in report.as_json().items() if key in keys}
        print_json({"people": {"test": report.tested, "skipped": report.skipped}, **shown})
        return
    cells = [figure_and_arm(report.hits[k], report.interval.get(k)) for k in report.hits]
    title = f"Hits@k on {report.tested:,} held-out people of this node, {report.skipped:,} skipped"
    print_table(title, ("", *(f"@{k}" for k in report.hits)), [("the model", *cells)])
    print_line("computed from their raw data: for this node alone (--epsilon prints sums to share)")


def sums(numbers: dict[str, float], epsilon: float, json_: bool) -> None:
    """Print sums over held-out people that may leave their node."""
    if json_:
        print_json({"sums": numbers, "epsilon": epsilon})
        return
    rows = [
        (name if name == "people" else f"Hits@{name}", f"{numbers[name]:.3f}") for name in numbers
    ]
    print_table("Sums over held-out people, with noise", ("", "sum"), rows)
    print_line(
        f"each time that such sums leave the node costs its held-out people epsilon {epsilon:g};"
        " add up the sums of all nodes, then divide by the sum of people"
    )


def result(place: Path, path: Path, json_: bool) -> None:
    """Evaluate a run and print its table and statement, each figure with its interval."""
    from privrec.runs.api import open_run
    from privrec.show.report import difference_words
    from privrec.show.write import write_report

    run = open_run(place)
    evaluation = run.evaluate(progress=False)
    write_report(run)
    if json_:
        print_json(evaluation.as_json())
        return
    print_hits(f"Hits@k on {evaluation.data} ({evaluation.users.test:,} test people)", evaluation)
    if by := evaluation.differences.get("popularity", {}).get(20):
        print_line(f"{evaluation.recipe} against popularity at 20: {difference_words(by)}")
    for line in evaluation.warnings:
        print_line(f"warning: {line}")
    print_privacy(evaluation.privacy.as_json(), str(run.folder.report_path))
    print_line(f"the run: {run.folder.path}; server and nodes: {path}")


def stopped(folder: Path, go_on: str) -> str:
    """Return what a stopped server says; `go_on` is what to do next."""
    from privrec.errors import PrivrecError
    from privrec.protocol.enrolment import ServerFolder
    from privrec.runs.folder import RunFolder, played_rounds

    try:
        saved = played_rounds(RunFolder(path=ServerFolder(path=folder).run))
    except PrivrecError:
        saved = 0
    return f"stopped at round {saved}; {go_on}"
