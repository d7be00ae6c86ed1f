"""What rounds did and what tests found, as frames."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

FIGURES = ("hits", "ndcg", "list_ndcg", "recall")
"""The figures of an `evaluation.json` that have a value for each k."""


def history_frame(lines: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return a row for each round: round, stage, and what is known of it.

    The figures of validation people are columns of their own, `validation@5` and so on.
    """
    rows = []
    for line in lines:
        row = {name: value for name, value in line.items() if not isinstance(value, Mapping)}
        looks = line.get("validation")
        for k, value in looks.items() if isinstance(looks, Mapping) else ():
            row[f"validation@{k}"] = value
        rows.append(row)
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    return frame if rows else pl.DataFrame(schema={"round": pl.Int64, "stage": pl.String})


def evaluation_frame(found: Mapping[str, Any]) -> pl.DataFrame:
    """Return a row for the recipe and for each reference at each k, from an `evaluation.json`.

    Columns: name, k, hits, ndcg, list_ndcg, new_only (hits of items that the device lacks) and,
    where the protocol has it, recall; low and high are the interval of hits, where it is known.
    """
    rows = []
    for name, one in [(found["recipe"], found), *found["references"].items()]:
        intervals = one.get("interval") or {}
        for k in one["hits"]:
            row: dict[str, Any] = {"name": name, "k": int(k)}
            row |= {figure: one[figure].get(k) for figure in FIGURES if one.get(figure)}
            row["new_only"] = one.get("new_only", {}).get("hits", {}).get(k)
            if k in intervals:
                row |= {"low": intervals[k][0], "high": intervals[k][1]}
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)
