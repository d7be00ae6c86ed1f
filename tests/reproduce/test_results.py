"""One result in all its forms: they have the same numbers."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from commands import invoke, tree
from privrec.errors import RunFolderError
from privrec.reproduce.results import Number, Result
from privrec.show.reproduction import filled, put_into, render_reproduction

ROWS = {"PrivRec": (0.25, 0.217), "we_100%": (0.3, None)}
RESULT = Result(
    name="table-movielens",
    title="All & sundry",
    says="Above all.",
    command="privrec reproduce table-movielens",
    data=["movielens-1m"],
    seeds=[0, 1],
    quick=False,
    x_label="k",
    y_label="Hits@k",
    numbers=[
        Number(
            panel="MovieLens, Hits@k",
            row=row,
            column=k,
            value=ours * scale,
            low=ours * scale - 0.01,
            high=ours * scale + 0.02,
            printed=None if theirs is None else theirs * scale,
            by_seed=[ours * scale, ours * scale],
        )
        for row, (ours, theirs) in ROWS.items()
        for k, scale in (("10", 0.5), ("20", 1.0))
    ],
    sentences=["MovieLens, Hits@k. PrivRec is <above>."],
)


def test_csv_json_and_latex_have_the_same_numbers() -> None:
    document = json.loads(RESULT.text())
    lines = list(csv.DictReader(io.StringIO(RESULT.csv())))
    assert [(one["row"], one["column"], one["value"]) for one in document["numbers"]] == [
        (line["row"], line["column"], float(line["value"])) for line in lines
    ]
    rows = [line.removesuffix(r" \\").split(" & ") for line in RESULT.latex().splitlines()[1:]]
    assert rows[0] == ["", "10", "20"]
    by_row = {row[0]: row[1:] for row in rows[1:]}
    assert by_row["PrivRec"] == [r"0.125 $\pm$ 0.020", r"0.250 $\pm$ 0.020"]
    assert by_row["PrivRec (paper)"] == ["0.108", "0.217"]
    assert list(by_row) == ["PrivRec", "PrivRec (paper)", r"we\_100\%"]
    for row in ROWS:
        mine = by_row[row.replace("_", r"\_").replace("%", r"\%")]
        shown = [float(cell.split(" ")[0]) for cell in mine]
        exact = [float(line["value"]) for line in lines if line["row"] == row]
        assert shown == pytest.approx(exact, abs=5.01e-4)


def test_the_page_has_ours_the_printed_one_the_sentences_and_what_is_wrong() -> None:
    page = render_reproduction([RESULT])
    for part in ("All &amp; sundry", "PrivRec (paper)", "0.217", "0.250 ± 0.020", "seeds 0, 1"):
        assert part in page
    assert "PrivRec is &lt;above&gt;." in page
    assert "What the paper gets wrong" in page
    assert "<svg" in page
    assert "quick run" not in page
    assert "A quick run" in render_reproduction([RESULT.model_copy(update={"quick": True})])
    assert not re.search(r'(?:src|href)="https?://', page)


def test_a_page_gets_the_tables_of_its_blocks(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    block = (
        "<!-- table of results/table-movielens.json: MovieLens, Hits@k -->\n{}<!-- end of table -->"
    )
    page.write_text(f"before\n\n{block.format('old')}\n\nafter\n", encoding="utf-8")
    put_into(page, [RESULT], commit="abc", date="2026-01-02")
    text = page.read_text(encoding="utf-8")
    assert "| PrivRec | 0.125 ± 0.020 | 0.250 ± 0.020 |" in text
    assert "`privrec reproduce table-movielens`; seeds 0, 1; 2026-01-02; commit abc." in text
    assert text.startswith("before\n\n<!-- table of")
    assert text.endswith("-->\n\nafter\n")
    assert filled(text, tmp_path) == text
    assert filled(text.replace("0.250 ±", "0.251 ±"), tmp_path) == text
    with pytest.raises(RunFolderError, match="has no panel 'Frappe'"):
        filled(text.replace("MovieLens, Hits@k -->", "Frappe -->"), tmp_path)
    with pytest.raises(RunFolderError, match="there is no"):
        filled(text.replace("table-movielens.json:", "other.json:"), tmp_path)


BEGIN, END = "<!-- table of results/activity.json -->\n", "<!-- end of table -->\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"no block\n", "has no block that could be filled"),
        (f"{BEGIN}mine\n".encode(), "that does not end"),
        (f"{BEGIN}mine\n{BEGIN}{END}".encode(), "that does not end"),
        (f"{BEGIN}{END}<!-- table of x.txt -->\n{END}".encode(), "names no JSON file"),
        (f"{BEGIN}{END}".replace("activity", "other").encode(), "there is no"),
        (f"{BEGIN}{END}".replace(" -->\n", ": none -->\n", 1).encode(), "has no panel 'none'"),
    ],
)
def test_a_page_that_cannot_be_filled_is_one_line_and_nothing_is_written_beside_it(
    content: bytes | None, told: str, tmp_path: Path
) -> None:
    page = tmp_path / "docs" / "page.md"
    if content is not None:
        page.parent.mkdir()
        page.write_bytes(content)
    before = tree(tmp_path)
    words = ("activity", "--data", "synthetic:users=60,items=40", "--jobs", "1", "--into", page)
    result = invoke("reproduce", *words, "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert told in result.stderr
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert tree(tmp_path) == before
