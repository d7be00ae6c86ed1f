"""`privrec evaluate` and `privrec recommend`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli.console import plain_errors, print_json, print_line, print_table, progress
from privrec.cli.options import CandidatesOption, JsonOption, ProtocolOption, RunArgument


def evaluate(
    run: RunArgument,
    protocol: ProtocolOption = None,
    candidates: CandidatesOption = None,
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
    people: Annotated[
        int | None,
        typer.Option(help="Test a sample of so many people, and give 95 % intervals."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Rank all items for every test person, after adapting on the device."""
    with plain_errors():
        from privrec.evaluation.references import MEMORY_GB
        from privrec.runs.api import open_run

        opened = open_run(run)
        with progress() as on_progress:
            found = opened.evaluate(
                protocol=protocol,
                candidates=candidates,
                references=_names(references),
                people=people,
                memory_gb=MEMORY_GB if memory is None else memory,
                on_progress=on_progress,
            ).as_json()
        if json_:
            print_json(found)
            return
        _say_evaluation(found, opened.figures)
        print_line(f"report: {opened.report_path(protocol, candidates, people)}")


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
    top: Annotated[int, typer.Option(help="How many items.")] = 10,
    json_: JsonOption = False,
) -> None:
    """Adapt the model to one person and rank; nothing about her is stored or sent."""
    with plain_errors():
        from privrec.runs.api import open_released

        device = open_released(run).device(
            likes=like or [], dislikes=dislike or [], features=_features(feature or [])
        )
        found = device.recommend(top)
        if json_:
            items = [{"item": r.item, "title": r.title, "score": r.score} for r in found]
            print_json(items)
            return
        rows = [(r.title, r.item, f"{r.score:.3f}") for r in found]
        print_table("For you", ("title", "item", "score"), rows)


def _names(text: str) -> list[str] | None:
    """Return the names between commas; None for all, and no names for none."""
    if text == "all":
        return None
    return [] if text == "none" else [name.strip() for name in text.split(",")]


def _say_evaluation(found: Mapping[str, Any], figures: Sequence[Mapping[str, Any]]) -> None:
    from privrec.show.report import (
        few_items_line,
        left_out_lines,
        mark_line,
        protocol_words,
        sample_line,
    )

    users = found["users"]
    tested = f"{users['test']} test people, {users['skipped']} skipped"
    title = f"Hits@k on {found['data']}, seed {found['seed']}{protocol_words(found)}"
    _print_hits(f"{title} ({tested})", found)
    lines = (sample_line(found), few_items_line(found), mark_line(found, figures))
    for line in (*lines, *left_out_lines(found)):
        if line:
            print_line(line)
    print_line(found["privacy"]["statement"])


def _print_hits(title: str, found: Mapping[str, Any]) -> None:
    from privrec.show.report import KS, figure_between, intervals_of, table_rows

    known = intervals_of(found)
    cells = [
        (name, *(figure_between(hits[k], known.get(name, {}).get(k)) for k in KS))
        for name, hits, _ in table_rows(found)
    ]
    print_table(title, ("", *(f"@{k}" for k in KS)), cells)


def _features(pairs: Sequence[str]) -> dict[str, str | list[str]]:
    """Return the values by name; a feature that is given more than once has a list of values."""
    from privrec.errors import SettingsError

    values: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"--feature takes key=value; got {pair!r}")
        values.setdefault(name, []).append(value)
    return {name: many if len(many) > 1 else many[0] for name, many in values.items()}
