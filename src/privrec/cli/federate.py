"""`privrec federate`: training over a real network, with HTTPS."""

import json
import logging
import math
import shlex
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privrec.cli.console import (
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_privacy,
    print_table,
)
from privrec.cli.options import (
    ConfigOption,
    DataOption,
    EpsilonOption,
    JsonOption,
    SeedOption,
    SetOption,
    examples,
    offer_recipes,
    settings_from,
)
from privrec.cli.rank import show_evaluation
from privrec.errors import FederationError, PrivrecError
from privrec.toml import toml_value

if TYPE_CHECKING:
    from privrec.evaluation.ranking import EvalReport
    from privrec.protocol.server import ServerStatus
    from privrec.protocol.terms import Terms

RECIPE = "dp-privrec-plus"
RecipeOption = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE",
        help="'privrec recipes' lists them.",
        autocompletion=offer_recipes,
        show_default=RECIPE,
    ),
]
JsonLogOption = Annotated[bool, typer.Option("--json-log", help="Log as lines of JSON.")]
ServerArgument = Annotated[Path, typer.Argument(help="The server's folder.")]
NodeArgument = Annotated[Path, typer.Argument(help="The node's folder, from 'federate enrol'.")]

federate_app = typer.Typer(
    help="The same training over a real network.",
    no_args_is_help=True,
    epilog=examples("privrec federate up --nodes 4 --epsilon 8"),
)


@federate_app.command(epilog=examples("privrec federate up --nodes 4 --epsilon 8"))
def up(
    recipe: RecipeOption = None,
    data: DataOption = "synthetic",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 4,
    users: Annotated[
        int | None, typer.Option(help="How many people.", show_default="everybody who trains")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="in runs/")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    epsilon: EpsilonOption = None,
    json_: JsonOption = False,
) -> None:
    """Start a whole federation on this machine, train, evaluate, and shut it down.

    --set also takes the terms of a federation, such as missing=0.2 (docs/federation.md).
    """
    recipe = recipe or RECIPE
    path = out or Path("runs") / f"federation-{recipe}-{file_name(data)}"
    anew = f"to begin anew, remove {path} or choose another --out"
    with plain_errors(lambda: _stopped(path / "server", anew)):
        from privrec.transport.local import make_local, run_local
        from privrec.transport.run_server import serve

        settings = settings_from(config, set_, {"seed": seed, "epsilon": epsilon})
        for key in ("recipe", "data"):
            settings.pop(key, None)
        local = make_local(path, recipe, data, nodes=nodes, users=users, settings=settings)
        if json_:
            run = run_local(local, serve)
        else:
            print_line(_terms_line(local.terms))
            watch = partial(_print_progress, time.monotonic(), set())
            run = run_local(local, partial(serve, watch=watch))
        show_result(run, path, json_)


@federate_app.command(
    epilog=examples(
        "privrec federate enrol --data my-data --out node-1",
        "privrec federate enrol --renew --out node-1",
    )
)
def enrol(
    out: Annotated[Path, typer.Option(help="The node's folder, made anew.")],
    data: Annotated[
        str | None, typer.Option(help="This node's data: a data folder or a built-in name.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What the others call this node.", show_default="the folder's name"),
    ] = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of people who do not take part, to test the model on.")
    ] = 0.0,
    renew: Annotated[
        bool, typer.Option("--renew", help="Give a node another key; its people stay enrolled.")
    ] = False,
) -> None:
    """Make a node's keys and store its people; writes enrolment.json for the server."""
    with plain_errors():
        if renew:
            if data is not None or name is not None or hold_out:
                raise FederationError("--renew takes --out alone: the node's people stay")
            _renew_key(out)
            return
        if data is None:
            raise FederationError("give --data, or --renew for a node that is there already")
        from privrec.data.sources import load
        from privrec.protocol.enrolment import NodeFolder, drawn_apart
        from privrec.protocol.enrolment import enrol as make_node

        loaded = load(data)
        people, held_out = drawn_apart(loaded.n_clients, hold_out)
        enrolment, folder = make_node(loaded, people, out, name, held_out=held_out), NodeFolder(out)
        apart = f", held out {len(held_out):,}" if len(held_out) else ""
        print_line(f"enrolled {len(people):,} people{apart}: {out}")
        print_line(f"send to the server: {folder.enrolment} (public key, name and pseudonyms)")
        print_line(f"public, too:        {folder.catalogue} (the server needs one copy)")
        print_line("keep for yourself:  everything else in that folder")
        key = _key_text(enrolment.public_key)
        print_line(f"tell the others:    {enrolment.name} has the key {key}")


def _renew_key(folder: Path) -> None:
    from privrec.protocol.enrolment import NodeFolder, renew_key
    from privrec.transport.run_node import locked

    # Lock the folder: a node that runs with the old key would be refused at its next connection.
    with locked(folder):
        made = renew_key(folder)
    print_line(f"{folder} has a new key, and the old one is gone")
    print_line(f"send to the server: {NodeFolder(folder).enrolment} (both keys signed it)")
    print_line("until there are terms with the new key, this node cannot take part")
    print_line(f"tell the others:    {made.name} has the key {_key_text(made.public_key)}")


@federate_app.command(
    epilog=examples(
        "privrec federate server host --enrolment n1.json --catalogue catalogue.json",
        "privrec federate server host",
    )
)
def server(
    folder: ServerArgument,
    enrolment: Annotated[
        list[Path] | None, typer.Option(help="A node's enrolment.json; repeat. First start only.")
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="The public catalogue.json. First start only.")
    ] = None,
    recipe: RecipeOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    epsilon: EpsilonOption = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option(help="A name or address that nodes use; repeat.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8443,
    wait: Annotated[float, typer.Option(help="Seconds that nodes have to appear.")] = 300.0,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Write terms and certificates; do not start.")
    ] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make a new certificate, also for a --name.")
    ] = False,
    follows: Annotated[
        Path | None,
        typer.Option(
            "--follows", metavar="FOLDER", help="The server's folder of an older training."
        ),
    ] = None,
    retire: Annotated[
        list[str] | None, typer.Option(help="With --follows: a node that leaves; repeat.")
    ] = None,
    json_log: JsonLogOption = False,
) -> None:
    """Create a federation from enrolments at the first start; train; continue after a stop.

    --set also takes the terms of a federation, such as missing=0.2 (docs/federation.md).
    """
    with plain_errors(lambda: _stopped(folder, _go_on(folder))):
        from privrec.transport.run_server import serve

        settings = settings_from(config, set_, {"seed": seed, "epsilon": epsilon})
        hosts, enrolments = name or [], enrolment or []
        if follows is not None or retire:
            if catalogue or recipe or settings or hosts or renew:
                raise FederationError("--follows keeps catalogue, recipe, settings and names")
            _follow(folder, follows, enrolments, retire or [])
        else:
            founded = catalogue, enrolments, recipe, settings
            _found(folder, *founded, own_name=host, hosts=hosts, renew=renew)
        _show_server(folder)
        if prepare_only:
            return
        _log_to_terminal(json_=json_log)
        watch = partial(_print_progress, time.monotonic(), set())
        run = serve(folder, host=host, port=port, wait=wait, watch=watch)
        _export(run, folder / "model.privrec")


def _follow(folder: Path, follows: Path | None, enrolments: list[Path], retired: list[str]) -> None:
    """Write the server's folder of a training that follows the training in `follows`."""
    from privrec.protocol.enrolment import changed_federation

    if follows is None:
        raise FederationError("--retire needs --follows: nodes leave between two trainings")
    changed_federation(folder, follows, enrolments, retired)


def _found(
    folder: Path,
    catalogue: Path | None,
    enrolments: list[Path],
    recipe: str | None,
    settings: dict[str, object],
    *,
    own_name: str,
    hosts: list[str],
    renew: bool,
) -> None:
    """Write the folder of a new federation if there is none, or a new certificate for it."""
    from privrec.protocol.certificates import renew as renew_certificate
    from privrec.protocol.enrolment import ServerFolder, found_federation

    place = ServerFolder(folder)
    if not place.terms.is_file() and not renew:
        named = recipe or RECIPE, settings, [own_name, *hosts]
        found_federation(folder, catalogue, enrolments, *named)
    elif settings or enrolments or catalogue or recipe or (hosts and not renew):
        raise FederationError(_settled(folder, enrolments))
    if renew:
        new = renew_certificate(folder, hosts=hosts)
        need = f"give every node the new {place.ca}" if new else "nodes need no new file"
        print_line(f"made a new certificate: {need}")


def _show_server(folder: Path) -> None:
    """Print a server's terms, and which files to give to its nodes."""
    from privrec.protocol.enrolment import read_server

    place, terms, _ = read_server(folder)
    _show_terms(terms)
    _show_days_left(folder)
    certificate = f" and {place.ca}" if terms.transport is None else ""
    print_line(f"give every node: {place.terms}{certificate}")


@federate_app.command(
    epilog=examples(
        "privrec federate node node-1 --server host:8443 --terms terms.json --ca ca.crt"
    )
)
def node(
    folder: NodeArgument,
    server: Annotated[str, typer.Option(help="The server's address, host:port.")],
    terms: Annotated[Path, typer.Option(help="The server's terms.json.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what you would agree to, and with whom.")
    ] = False,
    json_log: JsonLogOption = False,
) -> None:
    """Take part with the people of this node until it is stopped (Ctrl-C)."""
    with plain_errors():
        from privrec.transport.run_node import check_node, serve_node

        check_node(folder, terms=terms, ca=ca)
        _show_agreement(folder, terms)
        if dry_run:
            return
        _log_to_terminal(json_=json_log)
        serve_node(
            folder,
            terms=terms,
            ca=ca,
            server=server,
            on_state=_print_state,
        )


@federate_app.command(
    name="flower-app", epilog=examples("privrec federate flower-app my-server --out app")
)
def flower_app(
    folder: ServerArgument,
    out: Annotated[Path, typer.Option(help="The app's folder, made anew.")],
    nodes: Annotated[
        Path | None,
        typer.Option(help="The folder of all nodes' folders, for Flower's simulation engine."),
    ] = None,
) -> None:
    """Write the app that 'flwr run' takes, for a server whose terms have transport=flower."""
    with plain_errors():
        from privrec.transport.flower.app import write_app

        write_app(out, folder, nodes)
        print_line(f"start the training, or go on with it, with: flwr run {shlex.quote(str(out))}")


@federate_app.command(
    name="flower-node",
    epilog=examples("privrec federate flower-node my-node --terms terms.json"),
)
def flower_node(
    folder: NodeArgument,
    terms: Annotated[Path, typer.Option(help="The server's terms.json.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what you would agree to, and with whom.")
    ] = False,
) -> None:
    """Accept terms for a node whose SuperNode runs Flower; prints what you agree to."""
    with plain_errors():
        from privrec.transport.flower.app import NODE, accept

        accept(folder, terms, dry_run=dry_run)
        _show_agreement(folder, terms)
        print_line(
            "over Flower, your SuperNode runs the code of whoever starts a run there: these terms"
            " do not protect you from them"
        )
        if dry_run:
            return
        config = shlex.quote(f"{NODE}={toml_value(str(folder.resolve()))}")
        print_line(f"start your SuperNode with: flower-supernode … --node-config {config}")


@federate_app.command(
    name="test", epilog=examples("privrec federate test node-1 --model model.privrec")
)
def on_held_out(
    folder: NodeArgument,
    model: Annotated[Path, typer.Option(help="The released model.", dir_okay=False)],
    epsilon: Annotated[
        float | None, typer.Option(help="Print sums with noise instead, which may leave the node.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Test a model on the people whom this node held out; nothing is sent."""
    with plain_errors():
        from privrec.privacy.ledger import check_epsilon
        from privrec.protocol.node import noised_sums, tested_on_held_out

        if epsilon is not None:
            check_epsilon(epsilon)
        report = tested_on_held_out(folder, model)
        if epsilon is None:
            _show_test(report, json_)
        else:
            _show_sums(noised_sums(report, epsilon), epsilon, json_)


@federate_app.command(epilog=examples("privrec federate status host"))
def status(folder: ServerArgument, json_: JsonOption = False) -> None:
    """Show the state of a federation, which nodes are missing, and if its server runs."""
    with plain_errors():
        from privrec.protocol.certificates import days_left, key_hash
        from privrec.protocol.enrolment import is_running, read_server
        from privrec.protocol.server import ServerStatus
        from privrec.runs.figures import duration
        from privrec.show.nodes import node_table

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
            days = days_left(folder / "server.pem")
            about |= {"running": runs, "missing": missing, "certificate_days": round(days, 1)}
            print_json({**about, **seen.model_dump(mode="json")})
            return
        _show_terms(terms)
        _show_days_left(folder)
        ago, step = duration(max(0.0, time.time() - seen.time)), f"round {seen.round_index}"
        if seen.step == "done":
            print_line(f"done, {ago} ago")
        elif runs:
            print_line(f"{step}, {seen.step}; {ago} ago")
        else:
            print_line(f"the server is not running; it got to {step}, {seen.step}, {ago} ago")
            print_line(_go_on(folder))
        table = node_table(terms, seen)
        print_table(table.name, table.head, table.rows)
        for why, count in seen.refused.items():
            print_line(f"refused {count}: {why}")


def _log_to_terminal(*, json_: bool) -> None:
    """Log privrec's messages to stderr, without those of other libraries."""
    log = logging.getLogger("privrec")
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonLines() if json_ else plain)
    log.addHandler(handler)


class _JsonLines(logging.Formatter):
    """A log line as JSON: time in seconds since 1970, level, party (server or node) and text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        parts = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "party": record.name.removeprefix("privrec."),
            "message": record.getMessage(),
        }
        return json.dumps(parts, ensure_ascii=False)


def _print_state(state: str) -> None:
    print_line(f"node: {state}")


_SOON = 30
"""A reminder is printed if the certificate ends in fewer days than this."""


def _show_days_left(folder: Path) -> None:
    from privrec.protocol.certificates import RENEW, days_left

    days = days_left(folder / "server.pem")
    if days < _SOON:
        how = RENEW.format(folder=shlex.quote(str(folder)))
        print_line(
            f"the server's certificate ends in {max(days, 0):.0f} days; renew it with: {how}"
        )


def _settled(folder: Path, enrolments: list[Path]) -> str:
    """Return why a federation accepts no other settings, and how to add a node."""
    if not enrolments:
        return f"{folder} has its terms already; start it without settings"
    words = ["privrec", "federate", "server", f"{folder}-2", "--follows", str(folder)]
    for path in enrolments:
        words += ["--enrolment", str(path)]
    return (
        f"{folder} has its terms already, and its nodes agreed to them; to add a node, begin"
        f" another training: {shlex.join(words)}; then give every node the new terms.json; nodes"
        " keep their folders, and what their people spent still counts"
    )


def _go_on(folder: Path) -> str:
    return f"go on with: {shlex.join(['privrec', 'federate', 'server', str(folder)])}"


def _terms_line(terms: "Terms") -> str:
    sums = "secure sums" if terms.secure_sum else "plain sums"
    noise = ""
    if terms.settings.budget.mechanism != "none":
        noise = f", noise from {'the nodes' if terms.noise_from == 'nodes' else 'the server'}"
    network = "TLS, authenticated nodes" if terms.transport is None else "over Flower"
    return (
        f"federation of {len(terms.members)} nodes, {terms.people:,} people:"
        f" {terms.settings.recipe}, {sums}{noise}, {network}"
    )


def _key_text(public_key: str) -> str:
    """Return the hash of a node's key in the form that people compare."""
    from privrec.protocol.certificates import key_hash
    from privrec.protocol.terms import shown_hash

    return shown_hash(key_hash(public_key))


def _show_terms(terms: "Terms", mine: str = "") -> None:
    """Print the terms and the hashes that the nodes' owners compare: of the terms and of all keys.

    `mine` is the public key of the node that prints this.
    """
    from privrec.protocol.terms import shown_hash

    print_line(_terms_line(terms))
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
            _key_text(member.public_key),
        )
        for number, member in enumerate(terms.members)
    ]
    print_table("Who takes part", ("node", "name", "people", "key"), rows)
    print_line(f"terms: {shown_hash(terms.fingerprint)}")
    print_line(
        "compare the terms and each key with the owners of the other nodes, by phone: the server"
        " wrote this list"
    )


def _print_progress(began: float, printed: set[str], status: "ServerStatus") -> None:
    """Print a line for each round, and a line when the server waits for a node."""
    waits = status.step.startswith("waiting")
    text = status.step if waits else f"round {status.round_index}"
    if text not in printed:
        printed.add(text)
        print_line(f"{text}, {time.monotonic() - began:.0f} s")


def _show_agreement(path: Path, terms_path: Path) -> None:
    """Print the terms that a node's owner accepts by starting the node."""
    from privrec.data.catalogue import from_json
    from privrec.privacy.statement import epsilon_text
    from privrec.protocol.certificates import public_key_text
    from privrec.protocol.enrolment import NodeFolder
    from privrec.protocol.terms import phases_of, plan_of, promised, read_terms

    terms, folder = read_terms(terms_path), NodeFolder(path)
    text = folder.catalogue.read_text(encoding="utf-8")
    epsilon, hostile = promised(terms, phases_of(plan_of(terms, from_json(text, str(path)))))
    _show_terms(terms, public_key_text(folder.key))
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


def _export(place: Path, model: Path) -> None:
    from privrec.runs.api import open_run
    from privrec.runs.run import export_run

    run = open_run(place)
    export_run(run, model)
    print_line(f"trained {run.config.recipe}: {place}")
    print_line(f"for devices: {model} (docs/federation.md)")
    print_privacy(run.privacy(), f"`statement.txt` in {model}")


def _show_test(report: "EvalReport", json_: bool) -> None:
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


def _show_sums(numbers: dict[str, float], epsilon: float, json_: bool) -> None:
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


def show_result(place: Path, path: Path, json_: bool) -> None:
    """Evaluate a run and print its table and privacy statement."""
    from privrec.runs.api import open_run
    from privrec.show.write import write_report

    run = open_run(place)
    evaluation = run.evaluate(progress=False)
    write_report(run)
    if json_:
        print_json(evaluation.as_json())
        return
    show_evaluation(evaluation)
    print_line(f"the run: {run.folder.path}; server and nodes: {path}")


def _stopped(folder: Path, go_on: str) -> str:
    """Return the message of a stopped server; `go_on` says how to continue."""
    from privrec.protocol.enrolment import ServerFolder
    from privrec.runs.folder import RunFolder, played_rounds

    try:
        saved = played_rounds(RunFolder(path=ServerFolder(folder).run))
    except PrivrecError:
        saved = 0
    return f"stopped at round {saved}; {go_on}"
