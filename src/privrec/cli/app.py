"""The `privrec` command. Commands import only what they need: `--help` does not import JAX."""

from collections.abc import Callable
from typing import Annotated

import typer

from privrec import __version__
from privrec.cli.attack import attack, audit
from privrec.cli.compare import compare, frontier
from privrec.cli.console import print_line
from privrec.cli.data import data_app
from privrec.cli.federate import federate_app
from privrec.cli.options import PlainUsage, examples
from privrec.cli.privacy import privacy_app
from privrec.cli.rank import evaluate, export, recommend
from privrec.cli.recipes import recipes
from privrec.cli.reproduce import reproduce
from privrec.cli.train import train
from privrec.cli.watch import report, watch

FIRST_STEPS = """First steps:

privrec train privrec-plus --out runs/first

privrec evaluate runs/first

privrec recommend runs/first --like "The Silent Harbour"

privrec recipes dp-privrec-plus

Every command has --help. Ctrl-C stops; a training goes on with --resume."""

app = typer.Typer(
    cls=PlainUsage,
    help="A federated recommender with user-level differential privacy.",
    epilog=FIRST_STEPS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    train: (
        "privrec train privrec-plus --data synthetic --out runs/first",
        "privrec train dp-privrec-plus --epsilon 4 --dry-run",
        "privrec train privrec-plus --out runs/first --resume",
    ),
    evaluate: ("privrec evaluate runs/first", "privrec evaluate runs/first --json"),
    recommend: (
        'privrec recommend runs/first --like "The Silent Harbour" --like i3',
        "privrec recommend runs/first --everybody --out lists.csv",
    ),
    compare: (
        "privrec compare runs/first runs/second --html both.html",
        "privrec compare --data synthetic --recipes privrec-plus,ease --seeds 0,1",
    ),
    report: ("privrec report runs/first",),
    watch: ("privrec watch runs/first",),
    export: (
        "privrec export runs/first --out model.privrec",
        "privrec export runs/first --web page",
    ),
    recipes: ("privrec recipes", "privrec recipes dp-privrec-plus"),
    frontier: ("privrec frontier --data synthetic --epsilons 1,4,inf",),
    reproduce: (
        "privrec reproduce epsilon-tables",
        "privrec reproduce all --quick",
        "privrec reproduce table-movielens --seeds 0,1,2 --dry-run",
    ),
    attack: (
        "privrec attack runs/first",
        "privrec attack --data synthetic --recipes privrec --kinds loss",
    ),
    audit: ("privrec audit dp-privrec-plus --epsilon 4", "privrec audit runs/first"),
}
"""The commands in the order of `--help`, with their examples."""
for _command, _lines in _COMMANDS.items():
    app.command(epilog=examples(*_lines))(_command)
for _group, _name in ((data_app, "data"), (privacy_app, "privacy"), (federate_app, "federate")):
    app.add_typer(_group, name=_name)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print_line(f"privrec {__version__}")
        raise typer.Exit
