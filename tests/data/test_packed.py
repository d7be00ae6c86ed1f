import contextlib
import gzip
import os
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from packing import PACK, zipped
from privrec.data import rawfiles as packed
from privrec.data.importing import import_files
from privrec.data.rawfiles import read_contents
from privrec.errors import DataError

LINES = b"user,item\n" + b"".join(b"u%d,i%d\n" % (k, k * k % 37) for k in range(60))


def put(folder: Path, name: str, raw: bytes) -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("name", ["lines.csv", "lines.csv{}", "some"])
def test_the_first_bytes_tell_and_not_the_name(tmp_path: Path, ending: str, name: str) -> None:
    found = read_contents(put(tmp_path, name.format(ending), PACK[ending](LINES)))
    assert found.raw == LINES
    if name != "some":
        assert found.name == "lines.csv"


def test_a_file_that_is_packed_twice(tmp_path: Path) -> None:
    inner = zipped({"a/lines.jsonl.gz": gzip.compress(LINES)})
    found = read_contents(put(tmp_path, "a.zip", inner))
    assert (found.raw, found.name) == (LINES, "lines.jsonl")
    assert found.label.endswith("a.zip/a/lines.jsonl.gz")
    for _ in range(3):
        inner = gzip.compress(inner)
    with pytest.raises(DataError, match=r"deep\.gz is packed more than 3 times"):
        read_contents(put(tmp_path, "deep.gz", inner))


def test_parts_after_each_other_are_one_file(tmp_path: Path) -> None:
    empty_frame = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"
    for ending in (".gz", ".xz", ".bz2", ".zst"):
        both = PACK[ending](LINES[:100]) + PACK[ending](LINES[100:])
        both = empty_frame + both if ending == ".zst" else both
        assert read_contents(put(tmp_path, f"a{ending}", both)).raw == LINES


@pytest.mark.parametrize("ending", PACK)
def test_what_is_cut_off_is_never_taken_for_whole(tmp_path: Path, ending: str) -> None:
    whole = PACK[ending](LINES)
    for length in range(12, len(whole), 7):
        with pytest.raises(DataError, match=r"some\.bin is damaged or cut off"):
            read_contents(put(tmp_path, "some.bin", whole[:length]))


@given(ending=st.sampled_from(sorted(PACK)), data=st.data())
def test_a_damaged_byte_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, ending: str, data: st.DataObject
) -> None:
    raw = bytearray(PACK[ending](LINES))
    place = data.draw(st.integers(12, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    path = put(tmp_path_factory.mktemp("flip"), "some.bin", bytes(raw))
    with contextlib.suppress(DataError):
        assert read_contents(path).raw == LINES


def test_a_zip_with_any_wrong_byte_is_read_or_refused(tmp_path: Path) -> None:
    whole = PACK[".zip"](LINES)
    for place in range(12, len(whole)):
        raw = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with contextlib.suppress(DataError):
            assert read_contents(put(tmp_path, "some.bin", raw)).raw == LINES


@pytest.mark.parametrize("ending", PACK)
def test_a_small_file_cannot_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(packed, "_ROOM", 2**18)
    path = put(tmp_path, "bomb", PACK[ending](bytes(2**22)))
    with pytest.raises(DataError, match=r"unpacks to more than .*: no table is packed so tightly"):
        read_contents(path)
    # A usual table may have any size.
    assert len(read_contents(put(tmp_path, "fine", PACK[ending](os.urandom(2**19)))).raw) == 2**19


def test_a_zstd_frame_is_read_a_little_at_a_time() -> None:
    """A few bytes of zstd can hold megabytes, so that a large step would fill the memory."""
    raw = zstandard.compress(bytes(2**26))
    assert max(map(len, packed._zstd_chunks(raw))) <= 2**25
    assert b"".join(packed._zstd_chunks(raw)) == bytes(2**26)


MANY = {
    "ml/movies.csv": b"movieId,title\n1,It\n",
    "ml/ratings.csv": LINES,
    "ml/README.txt": b"read me",
    "__MACOSX/ml/._ratings.csv": b"\0\1",
    "ml/.hidden.csv": b"x",
}


def test_the_file_that_can_be_meant_is_taken(tmp_path: Path) -> None:
    alone = {name: raw for name, raw in MANY.items() if "movies" not in name}
    assert read_contents(put(tmp_path, "ml.zip", zipped(alone))).raw == LINES
    # The file with the archive's own name.
    assert read_contents(put(tmp_path, "ratings.zip", zipped(MANY))).raw == LINES


def test_several_files_are_listed_and_one_can_be_named(tmp_path: Path) -> None:
    path = put(tmp_path, "ml.zip", zipped(MANY))
    with pytest.raises(DataError) as caught:
        read_contents(path)
    assert str(caught.value) == (
        f"{path} holds 3 files: ml/movies.csv, ml/ratings.csv, ml/README.txt; name one, such as"
        f" {path}/ratings.csv"
    )
    for name in ("ratings.csv", "ml/ratings.csv"):
        assert read_contents(path / name).raw == LINES
    with pytest.raises(DataError, match=r"holds no file called 'r\.csv'; it holds ml/movies\.csv"):
        read_contents(path / "r.csv")
    twice = put(tmp_path, "twice.zip", zipped({"a/x.csv": b"1", "b/x.csv": b"2"}))
    with pytest.raises(DataError, match=r"holds several files called 'x\.csv'"):
        read_contents(twice / "x.csv")


def test_atomic_files_of_an_archive_belong_together(tmp_path: Path) -> None:
    files = {
        "d/d.inter": b"user_id:token\titem_id:token\nann\t7\nbob\t7\n",
        "d/d.user": b"user_id:token\tage:token\nann\t30\nbob\t40\n",
        "d/d.item": b"item_id:token\tkind:token\n7\tfilm\n8\tfilm\n",
    }
    tables = import_files(put(tmp_path, "d.zip", zipped(files)), mapping={}).tables
    assert tables.users.rows() == [("ann", "30"), ("bob", "40")]
    assert tables.items["id"].to_list() == ["7", "8"]
    assert tables.manifest.name == "d"


def test_archives_that_hold_no_table(tmp_path: Path) -> None:
    def said(name: str, raw: bytes) -> str:
        with pytest.raises(DataError) as caught:
            read_contents(put(tmp_path, name, raw))
        return str(caught.value)

    assert said("a.zip", zipped({})).endswith("a.zip holds no file")
    assert "save the sheet as CSV" in said("a.xlsx", zipped({"[Content_Types].xml": b"x"}))
    assert "is a tar archive" in said("a.tar.gz", gzip.compress(bytes(257) + b"ustar" + bytes(250)))
    assert "is a 7z archive" in said("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(30))
    assert said("a.csv.gz", gzip.compress(b" \n")).endswith("a.csv.gz is empty")


def test_a_zip_with_a_password(tmp_path: Path) -> None:
    raw = bytearray(zipped({"a.csv": LINES}))
    listed = raw.index(b"PK\x01\x02")
    raw[6] |= 1  # the flag of the file, and of its entry in the list of files
    raw[listed + 8] |= 1
    with pytest.raises(DataError, match=r"a\.zip needs a password; unpack it first"):
        read_contents(put(tmp_path, "a.zip", bytes(raw)))
    assert zipfile.is_zipfile(tmp_path / "a.zip")
