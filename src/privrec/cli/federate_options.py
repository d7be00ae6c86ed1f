"""The options of `privrec federate`. What few need is shown by --help-all."""

from pathlib import Path
from typing import Annotated

import typer

from privrec.cli.completion import offer_data, offer_recipes

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
