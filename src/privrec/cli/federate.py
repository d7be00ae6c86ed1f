"""`privrec federate`: the same training over a real network, on Flower.

The options of `privrec federate`. What few need is shown by --help-all.
"""

import contextlib
import logging
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli.console import file_name, plain_errors, print_line, print_privacy
from privrec.cli.federation import (
    federation_stopped,
    key_text,
    live_table,
    say_agreed,
    say_renewed,
    say_result,
    say_status,
    say_sums,
    say_terms,
    say_tested,
    say_traffic,
    terms_line,
)
from privrec.cli.options import (
    HelpAllOption,
    SetOption,
    examples,
    offer_data,
    offer_recipes,
    settings_from,
)
from privrec.errors import FederationError, check_extra

RECIPE = "dp-privrec-plus"
RecipeOption = Annotated[
    str,
    typer.Option(
        metavar="RECIPE",
        help="'privrec recipes' lists them.",
        autocompletion=offer_recipes,
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        metavar="DATA", help="A built-in name or a data folder.", autocompletion=offer_data
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
UsersOption = Annotated[
    int | None, typer.Option(help="How many people.", show_default="everybody who trains")
]
SeedOption = Annotated[int | None, typer.Option(help="The seed.", show_default="0")]
RoundsOption = Annotated[
    int | None, typer.Option(help="Rounds to play.", show_default="the recipe's")
]
EpsilonOption = Annotated[float | None, typer.Option(help="The privacy budget.")]
DeltaOption = Annotated[float | None, typer.Option(help="The delta of the guarantee.")]
SecureSumOption = Annotated[
    bool | None,
    typer.Option(
        "--secure-sum/--no-secure-sum",
        help="Whether nodes mask their sums. If not, the server sees each node's own sum.",
        show_default="on",
        hidden=True,
    ),
]
NoiseFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="server|nodes",
        help="Who adds the noise (docs/privacy.md).",
        show_default="server",
        hidden=True,
    ),
]
MissingOption = Annotated[
    float | None,
    typer.Option(
        help="The share of a round's nodes that may drop out.", show_default="0.3", hidden=True
    ),
]
ColludingOption = Annotated[
    float | None,
    typer.Option(
        help="The share of nodes that may help a hostile server.", show_default="0", hidden=True
    ),
]
MinPeopleOption = Annotated[
    int | None,
    typer.Option(
        help="A round with fewer people is abandoned.",
        show_default="half of those drawn",
        hidden=True,
    ),
]
DeadlineOption = Annotated[
    float | None,
    typer.Option(help="Seconds that nodes have for one exchange.", show_default="60", hidden=True),
]
HostsOption = Annotated[
    list[str] | None, typer.Option("--name", help="A name or address that nodes use; repeat.")
]
PrepareOnlyOption = Annotated[
    bool, typer.Option("--prepare-only", help="Write terms and certificates; do not start.")
]
RenewOption = Annotated[
    bool, typer.Option("--renew", help="Make a new certificate, also for a --name.", hidden=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


federate_app = typer.Typer(
    help="The same training over a real network, on Flower.",
    no_args_is_help=True,
    epilog=examples("privrec federate up --nodes 4 --epsilon 8"),
)


@federate_app.command(
    epilog=examples(
        "privrec federate up --nodes 4 --epsilon 8",
        "privrec federate up --recipe privrec-plus --dry-run",
    )
)
def up(
    recipe: RecipeOption = RECIPE,
    data: DataOption = "synthetic",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 4,
    users: UsersOption = None,
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="in runs/")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    rounds: RoundsOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    secure_sum: SecureSumOption = None,
    noise_from: NoiseFromOption = None,
    missing: MissingOption = None,
    colluding: ColludingOption = None,
    min_people: MinPeopleOption = None,
    deadline: DeadlineOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be sent.")
    ] = False,
    json_: JsonOption = False,
    help_all: HelpAllOption = False,
) -> None:
    """Start a whole federation on this machine, train, evaluate, and shut it down."""
    path = out or Path("runs") / f"federation-{recipe}-{file_name(data)}"
    anew = f"to begin anew, remove {path} or choose another --out"
    with plain_errors(lambda: federation_stopped(path / "server", anew)):
        _needs_flower()
        from privrec.transport.local import settle
        from privrec.transport.local import up as run_federation
        from privrec.transport.run_server import check_terms, serve

        options = {"seed": seed, "rounds": rounds, "epsilon": epsilon, "delta": delta}
        settings = settings_from(config, set_ or [], options)
        for key in ("recipe", "data"):
            settings.pop(key, None)
        agreed = _agreed(secure_sum, noise_from, missing, colluding, min_people, deadline)
        with _scratch(path, dry_run) as place:
            local = settle(
                place,
                recipe,
                data,
                nodes=nodes,
                users=users,
                settings=settings,
                options=agreed,
                check=check_terms,
            )
            if dry_run:
                _say_what_is_sent(local.server.path, json_)
                return
            if not json_:
                print_line(terms_line(local.terms))
            with live_table(local.terms, not json_) as watch:
                run = run_federation(local, partial(serve, watch=watch))
        say_result(run, path, json_)


@federate_app.command(epilog=examples("privrec federate enrol --data my-data --out node-1"))
def enrol(
    data: Annotated[str, typer.Option(help="This node's data: a data folder or a built-in name.")],
    out: Annotated[Path, typer.Option(help="The node's folder, made anew.")],
    name: Annotated[
        str | None,
        typer.Option(help="What the others call this node.", show_default="the folder's name"),
    ] = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of people who do not take part, to test the model on.")
    ] = 0.0,
) -> None:
    """Make a node's keys and keep its people; writes enrolment.json for the server."""
    with plain_errors():
        _needs_flower()
        from privrec.data.sources import load
        from privrec.protocol.enrolment import NodeFolder
        from privrec.protocol.enrolment import enrol as make_node
        from privrec.protocol.held_out import drawn_apart

        loaded = load(data)
        people, held_out = drawn_apart(loaded.n_clients, hold_out)
        made = make_node(loaded, people, out, name, held_out=held_out)
        folder = NodeFolder(path=out)
        apart = f", held out {len(held_out):,}" if len(held_out) else ""
        print_line(f"enrolled {len(made.people):,} people{apart}: {out}")
        print_line(f"send to the server: {folder.enrolment} (public key, name and pseudonyms)")
        print_line(f"public, too:        {folder.catalogue} (the server needs one copy)")
        print_line("keep for yourself:  everything else in that folder")
        print_line(f"tell the others:    {made.name} has the key {key_text(made.public_key)}")


@federate_app.command(
    epilog=examples(
        "privrec federate server host --enrolment n1.json --catalogue catalogue.json",
        "privrec federate server host",
    )
)
def server(
    folder: Annotated[Path, typer.Argument(help="The server's folder.")],
    enrolment: Annotated[
        list[Path] | None, typer.Option(help="A node's enrolment.json; repeat. First start only.")
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="The public catalogue.json. First start only.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe. First start only.", show_default=RECIPE)
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    rounds: RoundsOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    secure_sum: SecureSumOption = None,
    noise_from: NoiseFromOption = None,
    missing: MissingOption = None,
    colluding: ColludingOption = None,
    min_people: MinPeopleOption = None,
    deadline: DeadlineOption = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    name: HostsOption = None,
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8443,
    wait: Annotated[float, typer.Option(help="Seconds that nodes have to appear.")] = 300.0,
    prepare_only: PrepareOnlyOption = False,
    renew: RenewOption = False,
    help_all: HelpAllOption = False,
) -> None:
    """Found a federation from enrolments at the first start; train; go on after a stop."""
    again = shlex.join(["privrec", "federate", "server", str(folder)])
    with plain_errors(lambda: federation_stopped(folder, f"go on with: {again}")):
        _needs_flower()
        from privrec.algorithms.recipes import settings_of
        from privrec.protocol.enrolment import ServerFolder, read_server
        from privrec.transport.run_server import serve

        options = {"seed": seed, "rounds": rounds, "epsilon": epsilon, "delta": delta}
        agreed = _agreed(secure_sum, noise_from, missing, colluding, min_people, deadline)
        given = [enrolment, catalogue, recipe, config, set_, agreed, name and not renew]
        if not ServerFolder(path=folder).terms.is_file() and not renew:
            settings = settings_from(config, set_ or [], options)
            hosts = [host, *(name or [])]
            _found(folder, enrolment or [], catalogue, recipe or RECIPE, settings, agreed, hosts)
            given, options = [], {}
        place, terms, _ = read_server(folder, settings_of)
        if any(given) or options != dict.fromkeys(options):
            raise FederationError(_settled(folder, terms.settings.recipe, enrolment or []))
        if renew:
            say_renewed(place, name or [])
        say_agreed(terms)
        print_line(f"give every node: {place.terms} and {place.ca}")
        if prepare_only:
            return
        with live_table(terms, True) as watch:
            run = serve(folder, host=host, port=port, wait=wait, watch=watch)
        _export(run, folder / "model.privrec")


@federate_app.command(
    epilog=examples(
        "privrec federate node node-1 --server host:8443 --terms terms.json --ca ca.crt"
    )
)
def node(
    folder: Annotated[Path, typer.Argument(help="The node's folder, from 'federate enrol'.")],
    server: Annotated[str, typer.Option(help="The server's address, host:port.")],
    terms: Annotated[Path, typer.Option(help="The server's terms.json.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt.")],
    port: Annotated[int, typer.Option(help="A free local port of this machine.")] = 9094,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what you would agree to, and with whom.")
    ] = False,
) -> None:
    """Take part with the people of this node until it is stopped (Ctrl-C)."""
    with plain_errors():
        _needs_flower()
        if dry_run:
            from privrec.transport.run_node import check_node

            check_node(folder, terms=terms, ca=ca)
            say_terms(folder, terms)
            return
        _log_to_terminal()
        said = False
        from privrec.transport.run_node import serve_node

        def on_state(state: str) -> None:
            nonlocal said
            if not said:  # Everything that can be refused was checked.
                say_terms(folder, terms)
                said = True
            print_line(f"node: {state}")

        serve_node(
            folder,
            terms=terms,
            ca=ca,
            server=server,
            port=port,
            on_state=on_state,
        )


@federate_app.command(
    name="test", epilog=examples("privrec federate test node-1 --model model.privrec")
)
def on_held_out(
    folder: Annotated[Path, typer.Argument(help="The node's folder, from 'federate enrol'.")],
    model: Annotated[Path, typer.Option(help="The released model.", dir_okay=False)],
    epsilon: Annotated[
        float | None, typer.Option(help="Print sums with noise instead, which may leave the node.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Test a model on the people whom this node held out; nothing is sent."""
    with plain_errors():
        _needs_flower()
        from privrec.privacy.ledger import check_epsilon
        from privrec.protocol.held_out import noised_sums, tested_on_held_out

        if epsilon is not None:
            check_epsilon(epsilon)
        found = tested_on_held_out(folder, model)
        if epsilon is None:
            say_tested(found, json_)
        else:
            say_sums(noised_sums(found, epsilon), epsilon, json_)


@federate_app.command(epilog=examples("privrec federate status host"))
def status(
    folder: Annotated[Path, typer.Argument(help="The server's folder.")], json_: JsonOption = False
) -> None:
    """Show what a server's federation is doing, who is missing, and whether it runs."""
    with plain_errors():
        _needs_flower()
        from privrec.algorithms.recipes import settings_of
        from privrec.protocol.enrolment import read_server

        place, terms, _ = read_server(folder, settings_of)
        say_status(place, terms, json_)


def _export(place: Path, model: Path) -> None:
    """Write the model for devices, and say what was trained."""
    from privrec.runs.api import open_run
    from privrec.runs.run import export_run

    run = open_run(place)
    export_run(run, model)
    print_line(f"trained {run.config.recipe}: {place}")
    print_line(f"for devices: {model} (docs/federation.md)")
    print_privacy(run.privacy().as_json(), f"`statement.txt` in {model}")


def _log_to_terminal() -> None:
    """Show what a node does, and nothing of the libraries below it."""
    log = logging.getLogger("privrec")
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)


def _say_what_is_sent(folder: Path, json_: bool) -> None:
    from dataclasses import asdict

    from privrec.algorithms.recipes import settings_of
    from privrec.protocol.enrolment import read_server
    from privrec.protocol.terms import traffic_of

    _, terms, catalogue = read_server(folder, settings_of)
    say_traffic(terms, [asdict(entry) for entry in traffic_of(terms, catalogue)], json_)


def _needs_flower() -> None:
    check_extra("flwr", "a federation")


def _agreed(
    secure_sum: bool | None,
    noise_from: str | None,
    missing: float | None,
    colluding: float | None,
    min_people: int | None,
    deadline: float | None,
) -> dict[str, Any]:
    """Return the terms that were given as options."""
    from privrec.errors import SettingsError

    if noise_from not in (None, "server", "nodes"):
        raise SettingsError(f"`noise_from` must be server or nodes; got {noise_from!r}")
    found = {
        "secure_sum": secure_sum,
        "noise_from": noise_from,
        "missing": missing,
        "colluding": colluding,
        "min_people": min_people,
        "deadline": deadline,
    }
    return {name: value for name, value in found.items() if value is not None}


def _found(
    folder: Path,
    enrolments: list[Path],
    catalogue: Path | None,
    recipe: str,
    settings: dict[str, Any],
    agreed: dict[str, Any],
    hosts: list[str],
) -> None:
    """Write the folder of a new federation."""
    from privrec.algorithms.recipes import configure
    from privrec.data.catalogue import from_json
    from privrec.protocol.enrolment import found, read_enrolments
    from privrec.transport.run_server import check_terms

    if catalogue is None or not enrolments:
        raise FederationError(
            f"{folder} has no federation yet: give --catalogue and an --enrolment for each node"
        )
    try:
        text = catalogue.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FederationError(f"{catalogue} is not a catalogue: it is no text") from error
    name = from_json(text, str(catalogue)).name
    read = [entry for path in enrolments for entry in read_enrolments(path)]
    config = configure(recipe, str(settings.pop("data", name)), settings)
    options = {**agreed, "name": name, "settings": config}
    found(folder, catalogue=text, enrolments=read, options=options, hosts=hosts, check=check_terms)


def _settled(folder: Path, recipe: str, enrolments: list[Path]) -> str:
    """Return why a federation takes no other settings, and how a node is added."""
    if not enrolments:
        return f"{folder} has its terms already; start it without settings"
    words = ["privrec", "federate", "server", f"{folder}-2"]
    words += ["--catalogue", str(folder / "catalogue.json")]
    for path in (folder / "roster.json", *enrolments):
        words += ["--enrolment", str(path)]
    return (
        f"{folder} has its terms already, and its nodes agreed to them; to add a node, found a new"
        f" federation: {shlex.join([*words, '--recipe', recipe])}; then give every node the new"
        " terms.json and ca.crt; nodes keep their folders, and what their people spent still counts"
    )


@contextlib.contextmanager
def _scratch(path: Path, temporary: bool) -> Iterator[Path]:
    """Yield the folder, or a temporary one for a dry run."""
    if not temporary:
        yield path
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="privrec-") as made:
        yield Path(made)
