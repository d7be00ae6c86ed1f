import bz2
import contextlib
import gzip
import lzma
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing import PACK, put, zipped
from privrec.data import unpack
from privrec.data.unpack import read_bytes
from privrec.errors import DataError

LINES = b"user,item\n" + b"".join(b"u%d,i%d\n" % (k, k * k % 37) for k in range(60))


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("name", ["lines.csv", "lines.csv{}", "some"])
def test_the_first_bytes_tell_and_not_the_name(tmp_path: Path, ending: str, name: str) -> None:
    inner, raw = read_bytes(put(tmp_path, name.format(ending), PACK[ending](LINES)))
    assert raw == LINES
    assert inner == "lines.csv" or name == "some"


def test_parts_of_a_gz_file_are_one_file(tmp_path: Path) -> None:
    both = gzip.compress(LINES[:100]) + gzip.compress(LINES[100:])
    assert read_bytes(put(tmp_path, "a.gz", both))[1] == LINES


@pytest.mark.parametrize("ending", PACK)
def test_what_is_cut_off_is_never_taken_for_whole(tmp_path: Path, ending: str) -> None:
    whole = PACK[ending](LINES)
    for length in range(12, len(whole), 7):
        with pytest.raises(DataError, match=r"some\.bin is damaged or cut off"):
            read_bytes(put(tmp_path, "some.bin", whole[:length]))


@given(ending=st.sampled_from(sorted(PACK)), data=st.data())
def test_a_damaged_byte_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, ending: str, data: st.DataObject
) -> None:
    raw = bytearray(PACK[ending](LINES))
    place = data.draw(st.integers(12, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    path = put(tmp_path_factory.mktemp("flip"), "some.bin", bytes(raw))
    with contextlib.suppress(DataError):
        assert read_bytes(path)[1] == LINES


def test_a_zip_with_any_wrong_byte_is_read_or_refused(tmp_path: Path) -> None:
    whole = PACK[".zip"](LINES)
    for place in range(12, len(whole)):
        raw = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with contextlib.suppress(DataError):
            assert read_bytes(put(tmp_path, "some.bin", raw))[1] == LINES


@pytest.mark.parametrize("ending", PACK)
def test_a_small_file_cannot_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(unpack, "_ROOM", 2**18)
    path = put(tmp_path, "bomb", PACK[ending](bytes(2**22)))
    with pytest.raises(DataError, match=r"unpacks to more than .*: no table is packed so tightly"):
        read_bytes(path)
    # A usual table may have any size.
    assert len(read_bytes(put(tmp_path, "fine", PACK[ending](os.urandom(2**19))))[1]) == 2**19


def test_a_zip_holds_one_file(tmp_path: Path) -> None:
    of_the_system = {"__MACOSX/ml/._ratings.csv": b"\0\1", "ml/.hidden.csv": b"x"}
    alone = zipped({"ml/ratings.csv": LINES, **of_the_system})
    assert read_bytes(put(tmp_path, "ml.zip", alone))[1] == LINES
    both = zipped({"ml/movies.csv": b"x", "ml/ratings.csv": LINES})
    with pytest.raises(DataError, match=r"one file; it holds 2: ml/movies\.csv, ml/ratings\.csv"):
        read_bytes(put(tmp_path, "ml.zip", both))


def test_files_that_are_no_table_are_named(tmp_path: Path) -> None:
    password = bytearray(zipped({"a.csv": LINES}))
    password[6] |= 1  # the flag of the file, and of its entry in the list of files
    password[password.index(b"PK\x01\x02") + 8] |= 1
    rare = tmp_path / "rare.zip"
    with zipfile.ZipFile(rare, "w", zipfile.ZIP_LZMA) as opened:
        opened.writestr("a.csv", LINES)
    office = zipped({"[Content_Types].xml": b"x", "word/document.xml": b"x"})
    other = "is packed in another way than gz or zip, or more than once, or an office"
    for raw, message in (
        (zipped({}), "must hold one file; it holds 0"),
        (bytes(password), "is damaged .* has a password, .* password required"),
        (rare.read_bytes(), "is packed in a rare way; unpack it first"),
        (office, "must hold one file; .* save the sheet of an office document as CSV"),
        (gzip.compress(bytes(257) + b"ustar" + bytes(250)), other),
        (gzip.compress(gzip.compress(LINES)), other),
        (zipped({"a.gz": gzip.compress(LINES)}), other),
        (lzma.compress(LINES), other),
        (bz2.compress(LINES), other),
        (b"7z\xbc\xaf\x27\x1c" + bytes(30), other),
        (b"\xd0\xcf\x11\xe0" + bytes(30), other),
        (gzip.compress(b" \n"), "is empty"),
    ):
        with pytest.raises(DataError, match=f"some.bin {message}"):
            read_bytes(put(tmp_path, "some.bin", raw))
