"""The same table in any kind of file gives the same data folder, bit for bit."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import tree
from packing import PACK, zipped
from privrec.data.importing import import_files, write_import
from privrec.data.tables import read_folder, to_federation

Rows = Sequence[Mapping[str, Any]]

# Text that is not a number, that needs no quotes to keep its spaces, and is not a list.
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="|"), min_size=1
).filter(lambda word: not word[0].isnumeric() and word[0] not in "+-.")
PEOPLE = st.dictionaries(
    WORDS,
    st.fixed_dictionaries(
        {
            "age": st.none() | st.integers(0, 99),
            "height": st.none() | st.floats(1, 2).map(lambda h: round(h, 2)),
            "tags": st.lists(WORDS, min_size=1, max_size=3),
        }
    ),
    min_size=1,
    max_size=4,
)
LINE = st.fixed_dictionaries(
    {
        "item": st.integers(0, 9),
        "rating": st.sampled_from([1, 2.5, 5]),
        "created_at": st.integers(1_500_000_000_000, 1_600_000_000_000),
        "mood": st.none() | WORDS,
    }
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """Return lines and people. The first of each have all values, so that types are known."""
    people = draw(PEOPLE)
    users = [{"id": name, **features} for name, features in people.items()]
    users[0] |= {"age": 30, "height": 1.5, "tags": ["a", "b"]}
    names = st.sampled_from(sorted(people))
    lines = [{"user": draw(names), **line} for line in draw(st.lists(LINE, min_size=1, max_size=6))]
    lines[0] |= {"rating": 5, "mood": "glad"}
    return lines, users


def as_csv(rows: Rows) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "|".join(v) if isinstance(v, list) else v for k, v in row.items()})
    return out.getvalue().encode()


def as_parquet(rows: Rows) -> bytes:
    out = io.BytesIO()
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(out)
    return out.getvalue()


FORMS: dict[str, Callable[[Rows], bytes]] = {".csv": as_csv, ".parquet": as_parquet}


def files(folder: Path, lines: Rows, users: Rows) -> Iterator[tuple[Path, Path]]:
    """Yield the table in each form, plain and packed."""
    for ending, form in FORMS.items():
        for packed, pack in {"": bytes, **PACK}.items():
            paths = folder / f"lines{ending}{packed}", folder / f"users{ending}{packed}"
            for path, rows in zip(paths, (lines, users), strict=True):
                name = path.name.removesuffix(".zip")
                raw = form(rows)
                path.write_bytes(zipped({name: raw}) if packed == ".zip" else pack(raw))
            yield paths


@pytest.mark.slow
@settings(max_examples=6)
@given(tables=tables())
def test_any_kind_of_file(
    tmp_path_factory: pytest.TempPathFactory, tables: tuple[Rows, Rows]
) -> None:
    folder = tmp_path_factory.mktemp("same")
    found: dict[str, dict[str, bytes | None]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda _: "people")
        for place, (source, users) in enumerate(files(folder, *tables)):
            result = import_files(
                source, mapping={}, users=users, context=["mood"], name="same", positive_above=3
            )
            write_import(result, folder / f"out{place}")
            found[f"{source} {users}"] = tree(folder / f"out{place}")
    first, *others = found.values()
    assert len(found) == 6
    assert all(other == first for other in others)
    federation = to_federation(read_folder(folder / "out0"))
    assert federation.n_clients == len(tables[1])
    assert federation.has_times
