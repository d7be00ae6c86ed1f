"""`privrec data`: list, describe and fetch data sets, and import your own."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line, print_table
from privrec.cli.options import JsonOption, examples, offer_data, offer_published
from privrec.data.text import data_title

if TYPE_CHECKING:
    from privrec.data.importing import ImportResult

data_app = typer.Typer(
    help="List, describe, fetch and import data sets.",
    no_args_is_help=True,
    epilog=examples("privrec data list", "privrec data describe synthetic"),
)

SourceArgument = Annotated[
    Path,
    typer.Argument(
        help="Text with , ; | :: tabs or spaces between columns, Parquet, RecBole, or lists; also"
        " as gz or zip."
    ),
]
ItemsOption = Annotated[
    Path | None, typer.Option(help="The public catalogue: a file of items and features.")
]
PublicFeaturesOption = Annotated[
    bool,
    typer.Option("--public-item-features", help="No column of --items comes from people's data."),
]
FlagsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=A..B", help="Columns A to B of 0 and 1 as one feature."),
]
MapOption = Annotated[
    list[str] | None, typer.Option("--map", metavar="OURS=THEIRS", help="Name a column; repeat.")
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; repeat.")
]
DecimalOption = Annotated[
    str, typer.Option(help="What stands before decimals: . or ,", show_default=False)
]
DatesOption = Annotated[
    str, typer.Option(help="iso (2023-12-31), day-first or month-first.", show_default=False)
]
EncodingOption = Annotated[
    str, typer.Option(help="utf-8, or cp1252 for Excel on Windows.", show_default=False)
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        help="auto, table, or lists (a line is a person and her items).",
        show_default=False,
    ),
]


@data_app.command("list", epilog=examples("privrec data list"))
def list_data(json_: JsonOption = False) -> None:
    """List the built-in data sets and whether their files are on this machine."""
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
    """Describe a data set: people, items, likes, features."""
    with plain_errors():
        from privrec.data.sources import describe_data

        found = describe_data(data)
        if json_:
            print_json(found)
            return
        features, undeclared = found.pop("features"), found.pop("not declared public")
        title = data_title(found.pop("name"), data)
        print_table(title, ("", "figure"), [(key, _figure(value)) for key, value in found.items()])
        rows = [(f["name"], f["side"], f["kind"], _figure(f["values"])) for f in features]
        print_table("Features", ("name", "of", "kind", "values"), rows)
        if undeclared:
            print_line(
                f"not declared public: {', '.join(undeclared)}; no guarantee covers what of it was"
                " computed from people's data (docs/data.md says how to declare it)"
            )


@data_app.command(epilog=examples("privrec data fetch movielens-1m"))
def fetch(
    name: Annotated[
        str, typer.Argument(help="A published data set.", autocompletion=offer_published)
    ],
    json_: JsonOption = False,
) -> None:
    """Download a published data set and verify its checksums, if files are missing."""
    with plain_errors():
        from privrec.data.published import fetch as fetch_data
        from privrec.data.published import files_here

        here = files_here(name)
        path = here or fetch_data(name)
        if json_:
            print_json({"name": name, "path": str(path), "downloaded": here is None})
        elif here is None:
            print_line(f"downloaded {name}: {path}")
        else:
            print_line(f"{name} is here already, nothing was downloaded: {path}")


@data_app.command(
    "import",
    epilog=examples(
        "privrec data import ratings.csv --map user=person --map item=film --out films"
    ),
)
def import_data(
    source: SourceArgument,
    out: Annotated[Path, typer.Option(help="The data folder to write.")],
    map_: MapOption = None,
    users: Annotated[Path | None, typer.Option(help="A file of people and features.")] = None,
    items: ItemsOption = None,
    public_item_features: PublicFeaturesOption = False,
    test: Annotated[Path | None, typer.Option(help="A file of lines to test.")] = None,
    context: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column of the moment; repeat.")
    ] = None,
    flags: FlagsOption = None,
    ignore: IgnoreOption = None,
    positive_above: Annotated[float | None, typer.Option(help="Values above are likes.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The name to show.", show_default="that of --out")
    ] = None,
    decimal: DecimalOption = ".",
    dates: DatesOption = "iso",
    encoding: EncodingOption = "utf-8",
    format_: FormatOption = "auto",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip, count and list bad rows.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Turn your own files into a data folder, and report how each column is used."""
    with plain_errors():
        from privrec.data.importing import import_files, write_import
        from privrec.data.sources import own_name

        result = import_files(
            source,
            mapping=pairs("--map", "ours=theirs", map_ or []),
            users=users,
            items=items,
            public_item_features=public_item_features,
            test=test,
            positive_above=positive_above,
            name=own_name(name or out.resolve().name),
            skip_bad=skip_bad,
            context=context or [],
            encoding=encoding,
            form=format_,
            decimal=decimal,
            dates=dates,
            flags=pairs("--flags", "NAME=FIRST..LAST", flags or []),
            ignore=ignore or [],
        )
        write_import(result, out)
        _say_imported(result, out, json_)


def pairs(option: str, form: str, given: list[str]) -> dict[str, str]:
    """Return the options of the form key=value."""
    from privrec.errors import SettingsError

    for pair in given:
        if "=" not in pair:
            raise SettingsError(f"{option} takes {form}; got {pair!r}")
    return dict(pair.split("=", 1) for pair in given)


def _say_imported(result: "ImportResult", out: Path, json_: bool) -> None:
    skipped_in = str(out / "skipped.csv") if result.skipped else None
    found = {"data": str(out), **result.as_json(), "skipped_in": skipped_in}
    if json_:
        print_json(found)
        return
    one_file = len({use.file for use in result.uses}) == 1
    rows = [(use.file, use.column, use.became, use.note) for use in result.uses]
    columns = ("file", "column", "became", "")
    print_table(
        f"Columns of {rows[0][0]}" if one_file else "Columns",
        columns[one_file:],
        [row[one_file:] for row in rows],
    )
    tested = found["interactions_to_test"]
    more = "" if tested is None else f", and {tested:,} to be tested"
    print_line(
        f"imported {found['interactions']:,} interactions ({found['likes']:,} likes) of"
        f" {found['people']:,} people with {found['items']:,} items{more}: {found['data']}"
    )
    if idle := found["people_without_lines"]:
        print_line(f"{idle:,} of the people have no line")
    print_line(_like_line(found))
    if not found["has_times"]:
        print_line("there is no time: each person's lines stay in the order of the file")
    for warning in found["warnings"]:
        print_line(f"warning: {warning}")
    if found["skipped"]:
        print_line(f"skipped {found['skipped']:,} bad rows, listed in {found['skipped_in']}")
    print_line(f"next: privrec data describe {shlex.quote(found['data'])}")


def _like_line(found: dict[str, object]) -> str:
    if found["positive_above"] is None:
        return "there is no value: every line is a like"
    how = "as given" if found["positive_above_is"] == "given" else "found from most people's values"
    every = found["likes"] == found["interactions"]
    more = "; every line is one, and --positive-above sets another limit" if every else ""
    return f"a like is a value above {found['positive_above']:g} ({how}){more}"


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
