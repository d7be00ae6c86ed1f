"""`privrec federate`: the same training over a real network, on Flower."""

import contextlib
import logging
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli import federation as show
from privrec.cli.console import file_name, plain_errors, print_line
from privrec.cli.options import (
    ConfigOption,
    DataOption,
    HelpAllOption,
    JsonOption,
    SetOption,
    examples,
    offer_recipes,
    settings_from,
)
from privrec.errors import FederationError, check_extra

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
SeedOption = Annotated[int | None, typer.Option(help="The seed.", show_default="0")]
EpsilonOption = Annotated[float | None, typer.Option(help="The privacy budget.")]
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
ServerArgument = Annotated[Path, typer.Argument(help="The server's folder.")]
NodeArgument = Annotated[Path, typer.Argument(help="The node's folder, from 'federate enrol'.")]

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
    secure_sum: SecureSumOption = None,
    noise_from: NoiseFromOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be sent.")
    ] = False,
    json_: JsonOption = False,
    help_all: HelpAllOption = False,
) -> None:
    """Start a whole federation on this machine, train, evaluate, and shut it down.

    --set also takes the terms of a federation, such as missing=0.2 (docs/federation.md).
    """
    recipe = recipe or RECIPE
    path = out or Path("runs") / f"federation-{recipe}-{file_name(data)}"
    anew = f"to begin anew, remove {path} or choose another --out"
    with plain_errors(lambda: show.stopped(path / "server", anew)):
        _needs_flower()
        from privrec.transport.local import make_local, run_local
        from privrec.transport.run_server import serve

        options = {"seed": seed, "epsilon": epsilon}
        terms = {"secure_sum": secure_sum, "noise_from": noise_from}
        settings = settings_from(config, set_, {**options, **terms})
        for key in ("recipe", "data"):
            settings.pop(key, None)
        with _scratch(path, dry_run) as folder:
            local = make_local(folder, recipe, data, nodes=nodes, users=users, settings=settings)
            if dry_run:
                show.traffic(local.server.path, json_)
                return
            if not json_:
                print_line(show.terms_line(local.terms))
            with show.live_table(local.terms, not json_) as watch:
                run = run_local(local, partial(serve, watch=watch))
        show.result(run, path, json_)


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
        from privrec.protocol.enrolment import enrol as make_node
        from privrec.protocol.held_out import drawn_apart

        loaded = load(data)
        people, held_out = drawn_apart(loaded.n_clients, hold_out)
        enrolment = make_node(loaded, people, out, name, held_out=held_out)
        show.enrolled(enrolment, out, len(held_out))


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
    secure_sum: SecureSumOption = None,
    noise_from: NoiseFromOption = None,
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
        bool,
        typer.Option("--renew", help="Make a new certificate, also for a --name.", hidden=True),
    ] = False,
    help_all: HelpAllOption = False,
) -> None:
    """Found a federation from enrolments at the first start; train; go on after a stop.

    --set also takes the terms of a federation, such as missing=0.2 (docs/federation.md).
    """
    again = shlex.join(["privrec", "federate", "server", str(folder)])
    with plain_errors(lambda: show.stopped(folder, f"go on with: {again}")):
        _needs_flower()
        from privrec.protocol.enrolment import ServerFolder, read_server
        from privrec.transport.run_server import serve

        options = {"seed": seed, "epsilon": epsilon}
        terms = {"secure_sum": secure_sum, "noise_from": noise_from}
        settings = settings_from(config, set_, {**options, **terms})
        if not ServerFolder(path=folder).terms.is_file() and not renew:
            hosts = [host, *(name or [])]
            _create(folder, enrolment or [], catalogue, recipe or RECIPE, settings, hosts)
        elif settings or enrolment or catalogue or recipe or (name and not renew):
            raise FederationError(_settled(folder, enrolment or []))
        place, agreed, _ = read_server(folder)
        if renew:
            show.renewed(place, name or [])
        show.agreed(agreed)
        print_line(f"give every node: {place.terms} and {place.ca}")
        if prepare_only:
            return
        with show.live_table(agreed, True) as watch:
            run = serve(folder, host=host, port=port, wait=wait, watch=watch)
        show.exported(run, folder / "model.privrec")


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
    port: Annotated[int, typer.Option(help="A free local port of this machine.")] = 9094,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what you would agree to, and with whom.")
    ] = False,
) -> None:
    """Take part with the people of this node until it is stopped (Ctrl-C)."""
    with plain_errors():
        _needs_flower()
        from privrec.transport.run_node import check_node, serve_node

        check_node(folder, terms=terms, ca=ca)
        show.agreed_by_node(folder, terms)
        if dry_run:
            return
        _log_to_terminal()
        serve_node(
            folder,
            terms=terms,
            ca=ca,
            server=server,
            port=port,
            on_state=lambda state: print_line(f"node: {state}"),
        )


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
        _needs_flower()
        from privrec.privacy.ledger import check_epsilon
        from privrec.protocol.held_out import noised_sums, tested_on_held_out

        if epsilon is not None:
            check_epsilon(epsilon)
        report = tested_on_held_out(folder, model)
        if epsilon is None:
            show.tested(report, json_)
        else:
            show.sums(noised_sums(report, epsilon), epsilon, json_)


@federate_app.command(epilog=examples("privrec federate status host"))
def status(folder: ServerArgument, json_: JsonOption = False) -> None:
    """Show what a server's federation is doing, who is missing, and whether it runs."""
    with plain_errors():
        _needs_flower()
        show.status(folder, json_)


def _needs_flower() -> None:
    check_extra("flwr", "a federation")


def _log_to_terminal() -> None:
    """Show what a node does, and nothing of the libraries below it."""
    log = logging.getLogger("privrec")
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)


def _create(
    folder: Path,
    enrolments: list[Path],
    catalogue: Path | None,
    recipe: str,
    settings: dict[str, Any],
    hosts: list[str],
) -> None:
    """Write the folder of a new federation."""
    from privrec.algorithms.recipes import configure
    from privrec.data.catalogue import from_json
    from privrec.protocol.enrolment import create_federation, read_enrolments
    from privrec.protocol.terms import take_terms

    if catalogue is None or not enrolments:
        raise FederationError(
            f"{folder} has no federation yet: give --catalogue and an --enrolment for each node"
        )
    try:
        text = catalogue.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FederationError(f"{catalogue} is not a catalogue: it is no text") from error
    name = from_json(text, str(catalogue)).name
    nodes = [enrolment for path in enrolments for enrolment in read_enrolments(path)]
    terms = take_terms(settings)
    terms |= {
        "name": name,
        "settings": configure(recipe, str(settings.pop("data", name)), settings),
    }
    create_federation(folder, catalogue=text, enrolments=nodes, options=terms, hosts=hosts)


def _settled(folder: Path, enrolments: list[Path]) -> str:
    """Return why a federation takes no other settings, and how a node is added."""
    from privrec.protocol.enrolment import read_server

    recipe = read_server(folder)[1].settings.recipe
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
