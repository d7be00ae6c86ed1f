"""`privrec evaluate`, `privrec recommend` and `privrec export`: commands for a trained run."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privrec.cli.console import (
    plain_errors,
    print_json,
    print_line,
    print_privacy,
    print_table,
    progress,
)
from privrec.cli.data import (
    DecimalOption,
    EncodingOption,
    FlagsOption,
    IgnoreOption,
    MapOption,
    pairs,
)
from privrec.cli.options import JsonOption, ProtocolOption, RunArgument, names_between_commas

if TYPE_CHECKING:
    from privrec.runs.documents import Evaluation
    from privrec.runs.run import Exported


def evaluate(
    run: RunArgument,
    protocol: ProtocolOption = None,
    candidates: Annotated[
        str | None,
        typer.Option(help="What a tested item is ranked among: unseen or not-kept items."),
    ] = None,
    references: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="References to test too, with commas between them: popularity, own-items,"
            " item-knn, ease; none; or all that fit into --memory.",
        ),
    ] = "all",
    memory: Annotated[
        float | None, typer.Option(help="GB that references may take.", show_default="4")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Rank all items for every test person, after adapting on the device."""
    with plain_errors(f"stopped; {run} can be evaluated again with the same command"):
        from privrec.evaluation.references import MEMORY_GB
        from privrec.runs.api import open_run
        from privrec.show.write import write_report

        opened = open_run(run)
        asked = {"all": None, "none": []}.get(references, names_between_commas(references))
        with progress() as on_progress:
            evaluation = opened.evaluate(
                protocol=protocol,
                candidates=candidates,
                references=asked,
                memory_gb=MEMORY_GB if memory is None else memory,
                on_progress=on_progress,
            )
        page = write_report(opened, protocol=protocol, candidates=candidates)
        if json_:
            print_json(evaluation.as_json())
            return
        show_evaluation(evaluation)
        print_line(f"report: {page}")


def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder or an export.")],
    like: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="An item liked, by id or title; repeat."),
    ] = None,
    dislike: Annotated[
        list[str] | None, typer.Option(metavar="ITEM", help="An item disliked; repeat.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A feature of the person or moment; repeat."),
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--everybody", help="Recommend to everybody in the run's data.")
    ] = False,
    newcomers: Annotated[
        Path | None,
        typer.Option(help="Recommend to the people of a file with columns user, item[, value]."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many items.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="The file for many people's lists: .parquet or .csv.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Adapt the model to one person or many, and rank; no data on them is stored or sent."""
    with plain_errors():
        about_one = {"--like": like, "--dislike": dislike, "--feature": feature}
        about_many = {"--everybody": everybody, "--newcomers": newcomers}
        if any(about_many.values()) or out is not None:
            options = [name for name, value in {**about_one, **about_many}.items() if value]
            _recommend_many(run, options, newcomers, top, out, json_)
            return
        from privrec.data.text import short
        from privrec.runs.api import open_released

        device = open_released(run).device(
            likes=like or [], dislikes=dislike or [], features=_features(feature or [])
        )
        items = device.recommend(top)
        if json_:
            print_json([asdict(item) for item in items])
            return
        shares = shares_text([item.better_than for item in items], device.catalogue.n_items)
        rows = [
            (str(place), short(item.title, _LONGEST), short(item.item, _LONGEST), share)
            for place, (item, share) in enumerate(zip(items, shares, strict=True), start=1)
        ]
        name = short(device.catalogue.name, _LONGEST)
        print_table(f"For you, from {name}", ("", "title", "item", "better than"), rows)
        print_line("better than: this share of the other items that you do not have yet")


def export(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
    web: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder for a web page with the model, which ranks on its reader's device.",
        ),
    ] = None,
    compact: Annotated[
        bool | None,
        typer.Option(
            "--compact/--full",
            help="8-bit rows of fewer dimensions, or all in 32 bits.",
            show_default="compact with --web",
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="With --web: the title of the page.", show_default="the data's name"),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --web: pictures, named after the ids of items."),
    ] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            metavar="ITEMS",
            help="An items file as for the import: items that the run lacks are added from their"
            " public features.",
        ),
    ] = None,
    map_: MapOption = None,
    flags: FlagsOption = None,
    ignore: IgnoreOption = None,
    decimal: DecimalOption = ".",
    encoding: EncodingOption = "utf-8",
) -> None:
    """Write what may be released of a run, as one file or as a web page."""
    with plain_errors():
        from privrec.errors import SettingsError
        from privrec.runs.api import open_run
        from privrec.runs.run import exported

        if out is None and web is None:
            raise SettingsError("give --out, the file to write, or --web, the folder of a page")
        if web is None and (pictures is not None or title is not None):
            raise SettingsError("--title and --pictures are about --web; give it too")
        if catalogue is None and (map_ or flags or ignore):
            raise SettingsError("--map, --flags and --ignore are about --catalogue; give it too")
        opened = open_run(run)
        how = {"decimal": decimal, "encoding": encoding, "ignore": ignore or []}
        items = None if catalogue is None else _items(catalogue, map_ or [], flags or [], **how)
        small = web is not None if compact is None else compact
        found = exported(opened, str(out or web), items=items, where=str(catalogue), compact=small)
        _write_export(found, out, web, title=title, pictures=pictures)


def _write_export(
    found: "Exported",
    out: Path | None,
    web: Path | None,
    *,
    title: str | None,
    pictures: Path | None,
) -> None:
    """Write an exported model to a file, a web page or both, and print what was written."""
    from privrec.privacy.statement import headline
    from privrec.runs.run import write_export
    from privrec.show.site import write_site

    if out is not None:
        write_export(found, out)
        recipe = found.model.settings["recipe"]
        print_line(f"exported {recipe}: {out}, {len(found.content):,} bytes")
    if web is not None:
        site = write_site(found, web, title=title, pictures=pictures)
        more = f", {site.pictures:,} of pictures" if site.pictures else ""
        print_line(
            f"a page for {found.model.catalogue.n_items:,} items: {web},"
            f" {site.model:,} bytes of the model, {site.page:,} of the page{more}"
        )
    if found.added is not None:
        what = "1 new item was" if found.added == 1 else f"{found.added:,} new items were"
        print_line(f"{what} added from public features, which costs no epsilon")
    place = "on the page" if out is None else "in the file, as statement.txt"
    print_line(f"privacy: {headline(found.model.privacy)}; the statement is {place}")
    if web is not None:
        print_line(f"open: python3 -m http.server --directory {shlex.quote(str(web))} 8000")
        print_line("then: http://localhost:8000")


def _items(path: Path, mapping: list[str], flags: list[str], **how: Any) -> Any:
    """Return the table of an items file."""
    from privrec.data.added import read_items

    return read_items(
        path,
        mapping=pairs("--map", "ours=theirs", mapping),
        flags=pairs("--flags", "NAME=FIRST..LAST", flags),
        **how,
    )


_LONGEST = 500
"""Titles, ids and names are cut to this many characters. Chosen by hand."""


def _recommend_many(
    run: Path, options: list[str], newcomers: Path | None, top: int, out: Path | None, json_: bool
) -> None:
    """Write many people's lists to a file; `options` are the names of the options given."""
    from privrec.errors import SettingsError
    from privrec.runs.api import open_run
    from privrec.runs.recommend import check_out, read_source, write_lists

    if len(options) != 1 or options[0] in ("--like", "--dislike", "--feature"):
        raise SettingsError(
            "--out takes the lists of many people: give --everybody or --newcomers;"
            f" got {' and '.join(options) or 'none of them'}"
        )
    if out is None:
        raise SettingsError(f"{options[0]} needs --out, the file for the lists")
    if run.is_file():
        raise SettingsError(f"{options[0]} needs a run folder; {run} is a file")
    check_out(out)
    new = None if newcomers is None else read_source(newcomers)
    with progress() as on_progress:
        lists = open_run(run).lists(new=new, top=top, on_progress=on_progress)
        people, rows = write_lists(out, lists)
    if json_:
        print_json({"people": people, "rows": rows, "out": str(out)})
    else:
        print_line(f"recommended {rows:,} items to {people:,} people: {out}")


def show_evaluation(evaluation: "Evaluation") -> None:
    """Print the figures of an evaluation."""
    from privrec.evaluation.metrics import KS
    from privrec.runs.figures import figure_and_arm, protocol_words
    from privrec.show.report import (
        data_words,
        few_items_line,
        intervals_of,
        left_out_lines,
        table_rows,
    )

    users, known = evaluation.users, intervals_of(evaluation)
    protocol = protocol_words(evaluation.protocol, evaluation.candidates)
    title = (
        f"Hits@k on {data_words(evaluation)}, seed {evaluation.seed}{protocol}"
        f" ({users.test} test people, {users.skipped} skipped)"
    )
    cells = [
        (name, *(figure_and_arm(hits[k], known.get(name, {}).get(k)) for k in KS))
        for name, hits, _ in table_rows(evaluation)
    ]
    print_table(title, ("", *(f"@{k}" for k in KS)), cells)
    _print_beyond(evaluation)
    for line in filter(None, (few_items_line(evaluation), *left_out_lines(evaluation))):
        print_line(line)
    for line in evaluation.warnings:
        print_line(f"warning: {line}")
    where = "the report, and `statement` in evaluation.json"
    print_privacy(evaluation.privacy, where)


def _print_beyond(evaluation: "Evaluation") -> None:
    from privrec.show.report import beyond_table

    if (table := beyond_table(evaluation)) is None:
        return
    print_table(table.name, table.head, table.rows)
    print_line(
        "coverage: share of the catalogue that is in somebody's list; novelty: one more means items"
        " that half as many people like; popular hits: share of the hits that popularity has too;"
        " ±: the longer arm of the 95 % interval over people (coverage is a count and has none)"
    )


def shares_text(shares: Sequence[float], n_items: int) -> list[str]:
    """Return shares in per cent, with enough decimals to distinguish two of `n_items` items.

    >>> shares_text([1.0, 0.9997], 3706), shares_text([0.5], 40)
    (['100.00 %', '99.97 %'], ['50 %'])
    """
    decimals = max(0, len(str(n_items)) - 2)
    # Round down, so that only the best item shows 100 %.
    step = 10**decimals
    return [f"{floor(round(share * 100 * step, 6)) / step:.{decimals}f} %" for share in shares]


def _features(pairs: Sequence[str]) -> dict[str, str | list[str]]:
    """Return the values by name: a list of values if a feature is given more than once."""
    from privrec.errors import SettingsError

    values: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--feature takes key=value; got {pair!r}")
        values.setdefault(name, []).append(value)
    return {name: many if len(many) > 1 else many[0] for name, many in values.items()}
