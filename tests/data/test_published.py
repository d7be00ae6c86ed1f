import hashlib
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from privrec.data import published
from privrec.data.published import PUBLISHED, cache_folder, load_published
from privrec.data.tables import to_federation
from privrec.errors import DataError

# Titles in the publisher's encoding, a film without ratings, a zip code that must be left out.
MOVIELENS = {
    "ratings.dat": b"1::10::5::200\n2::10::3::100\n1::30::4::100\n",
    "users.dat": b"1::F::25::7::02460\n2::M::56::16::70072\n",
    "movies.dat": (
        b"10::Am\xe9lie \x85 (2001)::Comedy|Romance\n20::Unseen (1999)::War\n30::Heat::War\n"
    ),
}
FRAPPE = {
    "frappe.csv": (
        b"user\titem\tcnt\tdaytime\tweekday\tisweekend\thomework\tcost\tweather\tcountry\tcity\n"
        b"0\t5\t1\tmorning\tsunday\tweekend\thome\tfree\tsunny\tSpain\t0\n"
        b"1\t4\t7\tnight\tmonday\tworkday\tunknown\tpaid\tunknown\tSpain\t12\n"
        b"0\t4\t2\tnight\tmonday\tworkday\tunknown\tpaid\tunknown\tAtlantis\t1200\n"
    ),
    # App 6 is one that nobody used, of unknown price.
    "meta.csv": (b'item\tname\tprice\n4\tThe "App\t$1.99\n5\tunknown\tFree\n6\tIdle\tunknown\n'),
}
# Person 2 has no line and place 40,980 nobody; person 1 has nothing to be trained on.
GOWALLA = {"train.txt": b"0 5 40979\n1\n3 7\n", "test.txt": b"1 6\n3 5 8\n"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVREC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


Publish = Callable[[str, dict[str, bytes]], None]


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Let these files be the published ones."""

    def declare(name: str, files: dict[str, bytes]) -> None:
        sums = {file: hashlib.sha256(contents).hexdigest() for file, contents in files.items()}
        monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], sums=sums))

    return declare


def pack(archive: Path, files: dict[str, bytes], within: str = "") -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, contents in files.items():
            opened.writestr(within + name, contents)
    return archive


def test_movielens_is_read_from_its_archive(folder: Path, publish: Publish) -> None:
    publish("movielens-1m", MOVIELENS)
    pack(folder / "ml-1m.zip", MOVIELENS, "ml-1m/")
    tables = load_published("movielens-1m")
    assert tables.interactions.rows() == [(1, 10, 5, 200), (2, 10, 3, 100), (1, 30, 4, 100)]
    assert tables.interactions.columns == ["user", "item", "value", "time"]
    assert tables.users.rows() == [("1", "F", "25", "7"), ("2", "M", "56", "16")]
    assert tables.items.select("id", "genres").rows() == [
        ("10", ["Comedy", "Romance"]),
        ("20", ["War"]),  # it has no ratings and is still in the list
        ("30", ["War"]),
    ]
    assert tables.items["title"][0].startswith("Amélie ")
    federation = to_federation(tables)
    assert (federation.n_clients, federation.n_items, federation.people) == (2, 3, 6040)
    clients = federation.take(np.arange(2))
    assert clients.item.tolist() == [2, 0, 0]
    assert clients.liked.tolist() == [True, True, False]
    assert federation.catalogue.undeclared == ()
    # The shape of the model follows the publisher's description, not these two people's data.
    rows = {feature.name: feature.rows for feature in federation.schema.of("user")}
    assert rows == {"gender": 2, "age": 7, "occupation": 21}


def test_frappe_is_read_from_its_archive(folder: Path, publish: Publish) -> None:
    publish("frappe", FRAPPE)
    pack(folder / "frappe.zip", FRAPPE, "Mobile_Frappe/frappe/")
    tables = load_published("frappe")
    assert tables.interactions.columns[:3] == ["user", "item", "daytime"]
    assert "cnt" not in tables.interactions.columns
    assert tables.items.rows() == [
        ("4", "paid", 'The "App'),
        ("5", "free", None),
        ("6", None, "Idle"),
    ]
    federation = to_federation(tables)
    assert list(federation.catalogue.titles) == ['The "App', "5", "Idle"]
    assert (federation.people, federation.catalogue.undeclared) == (957, ())
    clients = federation.take(np.array([0]))
    assert clients.item.tolist() == [1, 0]
    values = {feature.name: feature.values for feature in federation.schema.of("context")}
    assert len(values["weekday"]) == 7
    assert {"Spain", "Peru", "unknown"} < set(values["country"])
    # A place that is not in the vocabulary counts as missing and is not added to it.
    assert "Atlantis" not in values["country"]
    for name, code in (("country", values["country"].index("Spain")), ("city", 0)):
        bag = clients.context[f"embed/context.{name}"]
        assert (bag.weights.tolist(), int(bag.codes[0, 0])) == ([[1], [0]], code)


def test_gowalla_is_read_from_its_archive(folder: Path, publish: Publish) -> None:
    publish("gowalla", GOWALLA)
    pack(folder / "gowalla.zip", GOWALLA, "gowalla/")
    federation = to_federation(load_published("gowalla"))
    # What is public does not depend on these lines.
    assert (federation.n_clients, federation.people, federation.n_items) == (29858, 29858, 40981)
    assert federation.catalogue.undeclared == ()
    assert (federation.schema.features, federation.has_times) == ((), False)
    people = np.array([3, 0, 1, 2, 29857])
    kept = federation.take(people)
    assert kept.item.tolist() == [7, 5, 40979]
    assert kept.sizes.tolist() == [1, 2, 0, 0, 0]
    assert kept.liked.all()
    assert federation.take_test is not None
    asked = federation.take_test(people)
    assert asked.item.tolist() == [5, 8, 6]
    assert asked.sizes.tolist() == [2, 0, 1, 0, 0]


def test_a_folder_of_other_data_with_the_same_names_is_passed_over(
    folder: Path, publish: Publish
) -> None:
    publish("gowalla", GOWALLA)
    other = {"train.txt": b"0 1 2\n", "test.txt": b"0 3\n"}
    for below, files in (("amazon-book", other), ("gowalla", GOWALLA)):
        (folder / below).mkdir()
        for name, contents in files.items():
            (folder / below / name).write_bytes(contents)
    assert load_published("gowalla").interactions.height == 3
    (folder / "gowalla" / "train.txt").write_bytes(b"0 1 2\n")
    with pytest.raises(DataError, match=r"amazon-book: train\.txt must have the SHA-256 sum"):
        load_published("gowalla")


@pytest.mark.parametrize("within", [".", "ml-1m", "a/b"])
def test_an_unpacked_folder_will_do(folder: Path, publish: Publish, within: str) -> None:
    publish("movielens-1m", MOVIELENS)
    (folder / within).mkdir(parents=True, exist_ok=True)
    for name, contents in MOVIELENS.items():
        (folder / within / name).write_bytes(contents)
    assert load_published("movielens-1m").interactions.height == 3


def test_the_cache_is_looked_at_last(folder: Path, publish: Publish) -> None:
    publish("movielens-1m", MOVIELENS)
    pack(cache_folder() / "ml-1m.zip", MOVIELENS)
    assert load_published("movielens-1m").interactions.height == 3
    one = {**MOVIELENS, "ratings.dat": b"1::10::5::200\n"}
    publish("movielens-1m", one)
    with pytest.raises(DataError, match=str(cache_folder())):
        load_published("movielens-1m")
    pack(folder / "ml-1m.zip", one)
    assert load_published("movielens-1m").interactions.height == 1


def test_line_ends_of_windows_are_the_same(folder: Path, publish: Publish) -> None:
    files = {name: contents.replace(b"\n", b"\r\n") for name, contents in MOVIELENS.items()}
    publish("movielens-1m", files)
    pack(folder / "ml-1m.zip", files)
    tables = load_published("movielens-1m")
    assert tables.interactions.rows() == [(1, 10, 5, 200), (2, 10, 3, 100), (1, 30, 4, 100)]
    assert tables.items["genres"].to_list() == [["Comedy", "Romance"], ["War"], ["War"]]


def test_what_is_missing_and_where_it_goes_is_said(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_published("movielens-1m")
    message = str(caught.value)
    for part in ("ml-1m.zip", "grouplens.org", str(folder), str(cache_folder()), "data fetch"):
        assert part in message
    with pytest.raises(DataError, match=r"put frappe\.zip, or .* meta\.csv .*baltrunas") as caught:
        load_published("frappe")
    assert "fetch" not in str(caught.value)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_named(folder: Path, publish: Publish, keep: float) -> None:
    publish("movielens-1m", MOVIELENS)
    archive = pack(folder / "ml-1m.zip", MOVIELENS)
    raw = archive.read_bytes()
    archive.write_bytes(raw[: int(keep * len(raw))])
    with pytest.raises(DataError, match=r"ml-1m\.zip is not a whole zip file"):
        load_published("movielens-1m")


def test_any_damaged_byte_of_an_archive_is_a_data_error_or_harmless(
    folder: Path, publish: Publish
) -> None:
    publish("movielens-1m", MOVIELENS)
    archive = pack(folder / "ml-1m.zip", MOVIELENS)
    raw = archive.read_bytes()
    whole = load_published("movielens-1m")
    refused = 0
    for place in range(0, len(raw), 3):
        archive.write_bytes(raw[:place] + bytes([raw[place] ^ 0xFF]) + raw[place + 1 :])
        try:
            assert load_published("movielens-1m").interactions.equals(whole.interactions)
        except DataError:
            refused += 1
    assert refused > len(raw) // 10


def test_an_archive_without_a_file_is_named(folder: Path) -> None:
    pack(folder / "ml-1m.zip", {"ratings.dat": b"1::2::3::4\n"})
    with pytest.raises(DataError, match=r"ml-1m\.zip does not hold users\.dat"):
        load_published("movielens-1m")


FORGED = {**MOVIELENS, "users.dat": MOVIELENS["users.dat"].replace(b"F", b"M")}


@pytest.mark.parametrize("packed", [True, False])
def test_a_forged_file_is_refused(folder: Path, publish: Publish, packed: bool) -> None:
    # The file can be read like the published one; only its SHA-256 sum differs.
    publish("movielens-1m", FORGED)
    pack(folder / "ml-1m.zip", FORGED)
    assert load_published("movielens-1m").users.height == 2
    publish("movielens-1m", MOVIELENS)
    if not packed:
        (folder / "ml-1m.zip").unlink()
        for name, contents in FORGED.items():
            (folder / name).write_bytes(contents)
    with pytest.raises(DataError, match=r"users\.dat must have the SHA-256 sum") as caught:
        load_published("movielens-1m")
    message = str(caught.value)
    for part in (str(folder), "it is not the published file"):
        assert part in message
    for files in (MOVIELENS, FORGED):
        assert hashlib.sha256(files["users.dat"]).hexdigest() in message
    assert "\n" not in message


def test_the_files_of_someone_else_are_no_published_ones(folder: Path) -> None:
    for name, archive in (("movielens-1m", "ml-1m.zip"), ("frappe", "frappe.zip")):
        pack(folder / archive, {**MOVIELENS, **FRAPPE})
        with pytest.raises(DataError, match="it is not the published file"):
            load_published(name)


LIMIT = 2**16


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA],
)
def test_a_small_archive_that_would_unpack_to_much_is_refused(
    folder: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch, how: int
) -> None:
    publish("movielens-1m", MOVIELENS)
    with zipfile.ZipFile(folder / "ml-1m.zip", "w", how) as opened:
        for name in MOVIELENS:
            with opened.open(name, "w") as member:
                for _ in range(300):
                    member.write(bytes(LIMIT))
    assert (folder / "ml-1m.zip").stat().st_size < LIMIT
    read: list[int] = []
    whole = zipfile.ZipExtFile.read

    def counted(file: zipfile.ZipExtFile, n: int | None = -1) -> bytes:
        contents = whole(file, n)
        read.append(len(contents))
        return contents

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    monkeypatch.setattr(published, "_LARGEST_FILE", LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"not the published file|another way than published"):
            load_published("movielens-1m")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(read, default=0) <= LIMIT + 1
    # Three files of that size, one of them twice during assembly, and some margin.
    assert peak < 16 * LIMIT


def test_a_large_unpacked_file_is_not_read_to_its_end(
    folder: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("movielens-1m", MOVIELENS)
    for name in MOVIELENS:
        with (folder / name).open("wb") as file:
            file.truncate(2**40)  # a sparse file: it takes no space on the disk
    monkeypatch.setattr(published, "_LARGEST_FILE", LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="it is not the published file"):
            load_published("movielens-1m")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * LIMIT


def need(archive: str) -> None:
    folder = os.environ.get("PRIVREC_DATA")
    if not folder or not (Path(folder) / archive).is_file():
        pytest.skip(f"{archive} is not in $PRIVREC_DATA")


@pytest.mark.realdata
def test_movielens_has_the_published_counts() -> None:
    need(PUBLISHED["movielens-1m"].archive)
    tables = load_published("movielens-1m")
    federation = to_federation(tables)
    assert (federation.n_clients, federation.n_items) == (6040, 3883)
    assert tables.interactions.height == 1_000_209
    clients = federation.take(np.arange(federation.n_clients))
    assert int(clients.liked.sum()) == 575_281
    assert not federation.repeats
    found = {feature.name: feature.rows for feature in federation.schema.features}
    assert found == {"gender": 2, "age": 7, "occupation": 21, "genres": 18}
    assert federation.catalogue.undeclared == ()
    # All people have a gender, an age and an occupation in the declared vocabularies.
    assert all((bag.weights == 1).all() for bag in clients.features.values())
    assert len(np.unique(clients.item)) == 3706


@pytest.mark.realdata
def test_frappe_has_the_published_counts() -> None:
    need(PUBLISHED["frappe"].archive)
    tables = load_published("frappe")
    federation = to_federation(tables)
    assert (federation.n_clients, federation.n_items) == (957, 4082)
    assert tables.interactions.height == 96_203
    assert federation.repeats
    assert federation.catalogue.undeclared == ()
    # All contexts are in the declared vocabularies.
    clients = federation.take(np.arange(957))
    assert len(clients.context) == 7
    assert all((bag.weights == 1).all() for bag in clients.context.values())
    # The cost of an app is the same in the public list and in the log.
    with zipfile.ZipFile(Path(os.environ["PRIVREC_DATA"]) / "frappe.zip") as opened:
        [log] = [name for name in opened.namelist() if Path(name).name == "frappe.csv"]
        said = pl.read_csv(opened.read(log), separator="\t", infer_schema=False)
    both = said.join(tables.items, left_on="item", right_on="id", suffix=" listed")
    assert both.height == 96_203
    known = both.filter(pl.col("cost listed").is_not_null())
    assert known["cost"].equals(known["cost listed"], check_names=False)
    assert known.height > 0.9 * both.height


@pytest.mark.realdata
def test_gowalla_has_the_published_counts() -> None:
    need(PUBLISHED["gowalla"].archive)
    federation = to_federation(load_published("gowalla"))
    everybody = np.arange(federation.n_clients)
    kept = federation.take(everybody)
    assert federation.take_test is not None
    asked = federation.take_test(everybody)
    assert (federation.n_clients, federation.n_items) == (29_858, 40_981)
    assert (len(kept.item), len(asked.item)) == (810_128, 217_242)
    assert not federation.repeats
    # Nobody is tested on what she is trained on.
    n_items = federation.n_items
    assert not np.intersect1d(
        kept.owner * n_items + kept.item, asked.owner * n_items + asked.item
    ).size
    # Everybody has at least eight places to train on and one to be tested (10-core, 80 : 20).
    assert (kept.sizes.min(), asked.sizes.min()) == (8, 1)
