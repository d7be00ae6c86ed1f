"""`privrec data`: list, describe and fetch data sets, and import your own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privrec.cli.completion import offer_data
from privrec.cli.console import plain_errors, print_json, print_line, print_table
from privrec.cli.options import examples

if TYPE_CHECKING:
    from privrec.data.importing import ImportResult

data_app = typer.Typer(
    help="List, describe, fetch and import data sets.",
    no_args_is_help=True,
    epilog=examples("privrec data list", "privrec data describe synthetic"),
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@data_app.command("list", epilog=examples("privrec data list"))
def list_data(json_: JsonOption = False) -> None:
    """List the built-in data sets and whether their files are here."""
    with plain_errors():
        from privrec.data.sources import BUILT_IN, is_here

        rows = [(name, "yes" if is_here(name) else "no", about) for name, about in BUILT_IN.items()]
        if json_:
            print_json(
                [{"name": n, "here": here == "yes", "about": about} for n, here, about in rows]
            )
            return
        print_table("Built-in data sets", ("name", "here", "about"), rows)


@data_app.command(epilog=examples("privrec data describe synthetic"))
def describe(
    data: Annotated[
        str, typer.Argument(help="A built-in name or a data folder.", autocompletion=offer_data)
    ],
    json_: JsonOption = False,
) -> None:
    """Say what is in a data set: people, items, likes, features."""
    with plain_errors():
        from privrec.data.describe import describe_data

        found = describe_data(data)
        if json_:
            print_json(found)
            return
        features, undeclared = found.pop("features"), found.pop("not declared public")
        print_table(data, ("", "figure"), [(key, _figure(value)) for key, value in found.items()])
        rows = [(f["name"], f["side"], f["kind"], _figure(f["values"])) for f in features]
        print_table("Features", ("name", "of", "kind", "values"), rows)
        if undeclared:
            print_line(
                f"computed from people's data, not declared public: {', '.join(undeclared)};"
                " no guarantee covers it (docs/data.md says how to declare it)"
            )


@data_app.command(epilog=examples("privrec data fetch movielens-1m"))
def fetch(name: Annotated[str, typer.Argument(help="A published data set.")]) -> None:
    """Download a published data set and check its sums."""
    with plain_errors():
        from privrec.data.fetch import fetch as fetch_data

        print_line(f"{name}: {fetch_data(name)}")


@data_app.command(
    "import",
    epilog=examples(
        "privrec data import ratings.csv --map user=person --map item=film --out films"
    ),
)
def import_data(
    source: Annotated[
        Path, typer.Argument(help="CSV, TSV, ::-separated, Parquet or RecBole files, or lists.")
    ],
    out: Annotated[Path, typer.Option(help="The data folder to write.")],
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OURS=THEIRS", help="Name a column; repeat."),
    ] = None,
    users: Annotated[Path | None, typer.Option(help="A file of people and their features.")] = None,
    items: Annotated[
        Path | None, typer.Option(help="The public catalogue: a file of items and features.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="A file of lines to test, which nobody trains on.")
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column of the moment; repeat.")
    ] = None,
    positive_above: Annotated[
        float | None, typer.Option(help="A value greater than this counts as a like.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The data set's name.")] = None,
    encoding: Annotated[str, typer.Option(help="The files' encoding.")] = "utf-8",
    format_: Annotated[
        str,
        typer.Option("--format", help="table, lists (a line is a person and her items), or auto."),
    ] = "auto",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip, count and list bad rows.")
    ] = False,
) -> None:
    """Turn your own files into a data folder."""
    with plain_errors():
        from privrec.data.importing import import_files, write_import
        from privrec.errors import SettingsError

        pairs = dict.fromkeys(map_ or [])
        for pair in pairs:
            if "=" not in pair:
                raise SettingsError(f"--map takes ours=theirs; got {pair!r}")
        result = import_files(
            source,
            mapping=dict(pair.split("=", 1) for pair in pairs),
            users=users,
            items=items,
            test=test,
            positive_above=positive_above,
            name=name,
            skip_bad=skip_bad,
            context=context or [],
            encoding=encoding,
            form=format_,
        )
        write_import(result, out)
        _say_imported(result, out)


def _say_imported(result: "ImportResult", out: Path) -> None:
    lines = result.tables.interactions.height
    held_out = result.tables.test
    more = "" if held_out is None else f" and {held_out.height:,} to be tested"
    print_line(f"imported {lines:,} interactions{more}: {out}")
    manifest = result.tables.manifest
    if manifest.value is not None:
        found = "as given" if manifest.public.threshold else "found from most people's values"
        print_line(f"a like is a value above {manifest.positive_above:g} ({found})")
    for warning in result.warnings:
        print_line(f"warning: {warning}")
    if result.skipped:
        print_line(f"skipped {len(result.skipped):,} bad rows, listed in {out / 'skipped.csv'}")
    print_line(f"next: privrec data describe {out}")


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
