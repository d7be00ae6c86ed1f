import csv
import io
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privrec.data import rawfiles
from privrec.data.rawfiles import _split, _split_even, _split_quoted, read_raw
from privrec.data.rawvalues import RawTable
from privrec.errors import DataError


def read(
    folder: Path, text: str | bytes, name: str = "some.csv", encoding: str = "utf-8"
) -> RawTable:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_raw(path, encoding=encoding)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|", "::"])
def test_separator_header_and_line_end_are_found(tmp_path: Path, separator: str, end: str) -> None:
    lines = [["who", "what"], ["ann", "a film (1995)"], ["bob", ""]]
    table = read(tmp_path, end.join(separator.join(line) for line in lines) + end)
    assert table.frame.to_dict(as_series=False) == {
        "who": ["ann", "bob"],
        "what": ["a film (1995)", ""],
    }
    assert table.has_header
    assert table.lines.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("text", "separator_count"),
    [
        ("1::a, b::x|y\n2::c, d::z|w\n", 3),
        ("1;2;3,5\n1;3;4,0\n", 3),
        ("1,2,a;b\n1,3,c;d\n", 3),
        ("1\ta,b,c\n2\td,e,f\n", 2),
        ("1,x|y|z\n2,x|y|w\n", 2),
        ("1\n2\n", 1),
    ],
)
def test_the_likelier_separator_wins(tmp_path: Path, text: str, separator_count: int) -> None:
    assert read(tmp_path, text).frame.width == separator_count


def test_a_few_wrong_lines_do_not_hide_the_separator(tmp_path: Path) -> None:
    table = read(tmp_path, "user,item\n1,2\n3\n4,5\n6,7,8\n")
    assert table.frame.rows() == [("1", "2"), ("4", "5")]
    assert [(row.line, row.value, row.reason) for row in table.bad] == [
        (3, "3", "must have 2 columns"),
        (5, "6,7,8", "must have 2 columns"),
    ]


def test_a_first_line_with_a_number_is_no_header(tmp_path: Path) -> None:
    table = read(tmp_path, "ann,x1,3.5\nbob,x2,4\n")
    assert not table.has_header
    assert table.frame.to_dict(as_series=False) == {
        "1": ["ann", "bob"],
        "2": ["x1", "x2"],
        "3": ["3.5", "4"],
    }
    assert table.lines.tolist() == [1, 2]


def test_blank_lines_count_but_hold_nothing(tmp_path: Path) -> None:
    for quote in ("", '"'):
        table = read(tmp_path, f"\nuser,item\n{quote}1{quote},2\n\n   \n3,4\n\n")
        assert table.frame.rows() == [("1", "2"), ("3", "4")]
        assert table.lines.tolist() == [3, 6]
        assert not table.bad


def test_spaces_around_fields_and_a_byte_order_mark_are_dropped(tmp_path: Path) -> None:
    for quote in ("", '"'):
        table = read(tmp_path, f"\ufeff{quote}user{quote}, {quote}item{quote}\n 1 ,a b\n")
        assert table.frame.to_dict(as_series=False) == {"user": ["1"], "item": ["a b"]}


def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    assert read(tmp_path, ",user,item\n0,1,2\n").frame.columns == ["1", "user", "item"]


def test_quoted_fields_hold_anything(tmp_path: Path) -> None:
    table = read(tmp_path, 'user,title\n1,"a, b"\n2,"say ""hi"""\n3,"two\nlines"\n4,5" nail\n')
    assert table.frame["title"].to_list() == ["a, b", 'say "hi"', "two\nlines", '5" nail']
    assert table.lines.tolist() == [2, 3, 4, 6]


def test_a_quote_may_follow_a_space(tmp_path: Path) -> None:
    table = read(tmp_path, 'user, title\n1, "a, b"\n')
    assert table.frame.rows() == [("1", "a, b")]


def test_quotes_of_a_tab_separated_file_may_be_literal(tmp_path: Path) -> None:
    table = read(tmp_path, 'id\ttitle\n1\t"Live" and more\n2\t"open\n3\t"shut"\n')
    assert table.frame["title"].to_list() == ['"Live" and more', '"open', '"shut"']
    table = read(tmp_path, 'id\ttitle\n1\t"Live"\n2\t"a\tb"\n')
    assert table.frame["title"].to_list() == ["Live", "a\tb"]


def test_a_quote_that_never_closes_is_named_where_it_opens(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"some\.csv line 3 must close a quote"):
        read(tmp_path, 'user,title\n1,a\n2,"b\n3,c\n4,d\n')


def test_text_behind_a_closed_quote_is_a_bad_row(tmp_path: Path) -> None:
    table = read(tmp_path, 'user,title\n1,"a"b\n2,c\n3,d,e\n')
    assert table.frame.rows() == [("2", "c")]
    assert [(row.line, row.value) for row in table.bad] == [(2, '1,"a"b'), (4, "3,d,e")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        (b"user,item\n", "has a header but no rows"),
        (b"user,user\n1,2\n", "has the column 'user' more than once"),
        ("user,item\n1,2\n".encode("utf-16"), r"line 1 is not utf-8; .*--encoding cp1252"),
        ("user,item\n1,2\n".encode("utf-16-le"), r"line 1 is not utf-8 .*--encoding cp1252"),
        ("usér,item\n1,2\n".encode("latin-1"), r"line 1 is not utf-8; got 'us�r,item'"),
        ("user\n1\nJörg,2\n".encode("latin-1"), r"line 3 is not utf-8; got 'J�rg,2'"),
        (b'{"user": 1, "item": 2}\n', "is JSON, which is not read: use CSV or Parquet, or a"),
        (b' [{"user": 1, "item": 2}]', "is JSON, which is not read"),
    ],
)
def test_hopeless_files_are_named(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(DataError, match=rf"some\.csv {message}"):
        read(tmp_path, text)


def test_a_file_that_is_not_there_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv does not exist"):
        read_raw(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_raw(tmp_path)


def test_json_is_recognised_by_its_name_too_and_braces_are_no_json(tmp_path: Path) -> None:
    for name in ("some.json", "some.jsonl", "some.NDJSON"):
        with pytest.raises(DataError, match="is JSON, which is not read"):
            read(tmp_path, "7\n", name)
    assert read(tmp_path, "{a},b\nx,y\n").frame.columns == ["{a}", "b"]


def test_the_encoding_may_be_named(tmp_path: Path) -> None:
    raw = "user,title\n1,Amélie\n2,Heat\n".encode("latin-1")
    assert read(tmp_path, raw, encoding="latin-1").frame["title"].to_list() == ["Amélie", "Heat"]


@pytest.mark.parametrize("encoding", ["klingon", "base64"])
def test_an_unknown_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(DataError, match=f"`encoding` must be .*; got '{encoding}'"):
        read(tmp_path, "user,item\n1,2\n", encoding=encoding)


def test_atomic_headers_state_types(tmp_path: Path) -> None:
    table = read(tmp_path, 'item_id:token\tname:token_seq\n1\t"Big" day\n', "x.item")
    assert table.types == {"item_id": "token", "name": "token_seq"}
    assert table.frame.rows() == [("1", '"Big" day')]


@pytest.mark.parametrize("header", ["item_id\tname:token", "item_id:tokn", ":token", "a:float b"])
def test_a_wrong_atomic_header_is_named(tmp_path: Path, header: str) -> None:
    with pytest.raises(DataError, match=r"x\.item line 1: a column must be name:type .*; got"):
        read(tmp_path, f"{header}\n1\t2\n", "x.item")


def test_parquet_keeps_its_types_and_counts_rows(tmp_path: Path) -> None:
    pl.DataFrame({"user": [1, 2], "ok": [True, None]}).write_parquet(tmp_path / "x.parquet")
    table = read_raw(tmp_path / "x.parquet")
    assert table.frame.dtypes == [pl.Int64, pl.Boolean]
    (bad,) = table.bad_rows(table.lines[:1] * 0 + 1, "ok", "must be there")
    assert str(bad) == f"{tmp_path}/x.parquet row 2: 'ok' must be there; got ''"


@pytest.mark.parametrize("keep", [0.01, 0.3, 0.6, 0.99])
def test_a_truncated_parquet_file_is_not_read(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "x.parquet"
    pl.DataFrame({"user": range(1000), "item": range(1000)}).write_parquet(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(keep * len(raw))])
    with pytest.raises(DataError, match=r"x\.parquet: it is not a whole Parquet file$"):
        read_raw(path)


plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=6)
bare = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0\n:"), max_size=6)
line_ends = st.sampled_from(["\n", "\r\n"])


@given(
    rows=st.lists(st.tuples(plain, plain, plain), min_size=1, max_size=6),
    separator=st.sampled_from([",", ";", "|", "\t"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=line_ends,
    mark=st.sampled_from(["", "\ufeff"]),
)
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, str]],
    separator: str,
    quoting: int,
    end: str,
    mark: str,
) -> None:
    if separator == "\t":  # here a quoted field cannot contain a line break
        rows = [(a.replace("\n", ""), b.replace("\n", ""), c.replace("\n", "")) for a, b, c in rows]
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writerows([("user", "item", "some title"), *rows])
    table = read(tmp_path_factory.mktemp("csv"), mark + out.getvalue())
    assert table.frame.columns == ["user", "item", "some title"]
    assert table.frame.rows() == [tuple(field.strip(" ") for field in row) for row in rows]
    assert not table.bad


@given(rows=st.lists(st.tuples(bare, bare), min_size=1, max_size=6), end=line_ends)
def test_double_colons_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], end: str
) -> None:
    lines = ["user::item", *(f"{first}::{second}" for first, second in rows)]
    table = read(tmp_path_factory.mktemp("dat"), end.join(lines) + end, "some.dat")
    assert table.frame.rows() == [tuple(field.strip(" ") for field in row) for row in rows]


@given(st.text(st.sampled_from('ab,"\n'), min_size=1, max_size=12))
def test_the_quick_way_through_quotes_agrees_with_the_careful_one(text: str) -> None:
    text = f"x,y\n{text}"
    quick = _split_even(text, ",", quoted=True)
    if quick is None:
        return
    careful = _split_quoted(text, ",", "some.csv")
    assert quick.frame.rows() == careful.frame.rows()
    assert quick.lines.tolist() == careful.lines.tolist()
    assert not careful.bad


@pytest.mark.parametrize("quote", ["", '"'])
@given(rows=st.lists(st.sampled_from(["a,b", "c", "", " d , e", "f,g,h"]), max_size=12))
def test_uneven_lines_are_bad_rows(quote: str, rows: list[str]) -> None:
    lines = [f"{quote}x{quote},y", *rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rawfiles, "_ROWS_AT_A_TIME", 2)
        fields = _split("\n".join(lines), ",", "some.csv", quoted=True)
    good = [(k, row.split(",")) for k, row in enumerate(["x,y", *rows], 1) if row.count(",") == 1]
    assert fields.lines.tolist() == [line for line, _ in good]
    assert fields.frame.rows() == [tuple(field.strip() for field in row) for _, row in good]
    wrong = [(k, row) for k, row in enumerate(rows, 2) if row and row.count(",") != 1]
    assert [(bad.line, bad.value) for bad in fields.bad] == wrong


uneven = st.text(st.sampled_from('ab,: \n\r"#é\x1f'), min_size=1, max_size=14)
even = st.lists(st.lists(st.sampled_from(["", "a", " b", '"', "#", "é "]), min_size=2, max_size=2))


@given(
    text=uneven | even.map(lambda rows: "\n".join(map(",".join, rows))),
    end=st.sampled_from(["", "\n", "\r\n"]),
)
@example(text="a,b\x1f", end="")
@pytest.mark.parametrize("separator", [",", "::"])
def test_even_files_are_split_as_a_plain_loop_does(separator: str, text: str, end: str) -> None:
    text = f"x{separator}y\n{text.replace(',', separator)}{end}"
    found = _split_even(text, separator, quoted=False)
    rows = [line.split(separator) for line in text.rstrip("\n").split("\n")]
    # It may leave a strange file to the careful way, but not an ordinary one.
    ordinary = not {"\r", "\x1f"} & set(text) and all(len(row) == 2 for row in rows)
    assert found is not None or not ordinary
    if found is not None:
        assert found.frame.rows() == [tuple(field.strip(" ") for field in row) for row in rows]
        assert found.lines.tolist() == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("lines", ["1\n2,3,4", "1,2\n\n3,4", "1,2\n  \n3,4"])
def test_one_field_too_few_and_one_too_many_are_not_even(lines: str) -> None:
    assert _split_even(f"x,y\n{lines}\n", ",", quoted=False) is None
