"""MovieLens-1M, Frappe and Gowalla: finding, downloading and reading the publishers' files."""

import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from privrec.data.manifest import Manifest, Public
from privrec.data.rawfiles import split_lists
from privrec.data.tables import Tables
from privrec.errors import DataError, nearest

_LARGEST_FILE = 64 * 2**20
"""More bytes than the largest published file has. A malicious archive cannot unpack to more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published data set: its source, its files, and a function that reads the files.

    `address` is its web page. `download` is the address of the archive, or None if the publisher
    offers none. `sums` has the SHA-256 sum of each file that is read.
    """

    archive: str
    address: str
    download: str | None
    sums: Mapping[str, str]
    cite: str
    read: Callable[[dict[str, bytes]], Tables]


def cache_folder() -> Path:
    """Return the folder for downloaded files (in `$XDG_CACHE_HOME` or ~/.cache)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privrec" / "data"


def search_folders() -> list[Path]:
    """Return the folders that may have a published data set's files, in the order of the search."""
    given = os.environ.get("PRIVREC_DATA")
    return [*([Path(given)] if given else []), cache_folder()]


def load_published(name: str) -> Tables:
    """Return the tables of a published data set from files on this machine."""
    published = PUBLISHED[name]
    files = find_files(published)
    if files is None:
        looked = " or ".join(str(folder) for folder in search_folders())
        raise DataError(
            f"{name} is not on this machine: put {published.archive}, or its files"
            f" {' and '.join(published.sums)} (from {published.address}), into"
            f" {looked}" + (f", or run 'privrec data fetch {name}'" if published.download else "")
        )
    return published.read(files[1])


def places(folder: Path, published: Published) -> list[Path]:
    """Return the archive of a data set in a folder, or else the folders that have its files."""
    archive = folder / published.archive
    if archive.is_file():
        return [archive]
    # Unpacking Frappe's archive makes nested folders.
    below = [path for pattern in ("*", "*/*") for path in sorted(folder.glob(pattern))]
    return [
        place
        for place in [folder, *filter(Path.is_dir, below)]
        if all((place / file).is_file() for file in published.sums)
    ]


def find_files(published: Published) -> tuple[Path, dict[str, bytes]] | None:
    """Return the archive or folder of a data set and the contents of its files, or None.

    Other data sets' files with the same names, such as train.txt, are passed over.

    Raises:
        DataError: There are files with these names, but none are the published files.
    """
    for folder in search_folders():
        faults: list[DataError] = []
        for place in places(folder, published):
            try:
                return place, _read(place, published)
            except DataError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
    return None


def _read(place: Path, published: Published) -> dict[str, bytes]:
    """Return the contents of the published files in a folder, or anywhere in a zip archive."""
    try:
        if place.is_dir():
            contents = {file: _read_start(place / file) for file in published.sums}
        else:
            with zipfile.ZipFile(place) as opened:
                contents = {file: _unpacked(opened, file, place) for file in published.sums}
    # A damaged byte can look like an encrypted file or an unknown compression method.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        what = f"cannot read {place}" if place.is_dir() else f"{place} is not a whole zip file"
        raise DataError(f"{what} ({error})") from error
    for file, content in contents.items():
        digest = hashlib.sha256(content).hexdigest()
        if digest != published.sums[file]:
            raise DataError(
                f"{place}: {file} must have the SHA-256 sum {published.sums[file]}; got {digest}:"
                " it is not the published file"
            )
    return contents


def _read_start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST_FILE + 1)


def _unpacked(opened: zipfile.ZipFile, file: str, archive: Path) -> bytes:
    members = {Path(member).name: member for member in opened.namelist()}
    if file not in members:
        raise DataError(f"{archive} does not hold {file}")
    # With other methods, a block of unlimited size is unpacked at once.
    kind = opened.getinfo(members[file]).compress_type
    if kind not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{archive}: {file} is compressed in another way than published")
    with opened.open(members[file]) as member:
        return member.read(_LARGEST_FILE + 1)


# The files' checksums are right, so the following readers check nothing.


def _read_movielens(files: dict[str, bytes]) -> Tables:
    users = _separated(files["users.dat"], "id", "gender", "age", "occupation", "zip")
    movies = _separated(files["movies.dat"], "id", "title", "genres")
    ratings = _separated(files["ratings.dat"], "user", "item", "value", "time", kind=pl.Int64)
    return Tables(
        manifest=Manifest(
            name="movielens-1m",
            value="value",
            time="time",
            positive_above=3.0,
            # The publisher's description lists these values and the number of people. The threshold
            # is that of the PrivRec paper. Genres and titles, including the year, come from an
            # encyclopaedia of films.
            public=Public(
                people=6040,
                items=True,
                item_features=("genres", "title"),
                threshold=True,
                values={
                    "gender": ("F", "M"),
                    "age": ("1", "18", "25", "35", "45", "50", "56"),
                    "occupation": tuple(map(str, range(21))),
                },
            ),
        ),
        interactions=ratings,
        # A zip code is shared by about two people, so zip codes are left out, as in the paper.
        users=users.drop("zip"),
        # Movies without a rating are kept too. Otherwise one person could decide whether a movie is
        # in the model.
        items=movies.with_columns(pl.col("genres").str.split("|")),
    )


def _separated(raw: bytes, *columns: str, kind: type[pl.DataType] = pl.String) -> pl.DataFrame:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return pl.read_csv(
        text.replace("::", "\x1f").encode(),
        separator="\x1f",
        has_header=False,
        quote_char=None,
        schema=dict.fromkeys(columns, kind),
    )


_COUNTRIES = """
Afghanistan; Albania; Algeria; Andorra; Angola; Antigua and Barb.; Argentina; Armenia; Aruba;
Australia; Austria; Azerbaijan; Bahamas; Bahrain; Bangladesh; Barbados; Belarus; Belgium;
Belize; Benin; Bermuda; Bhutan; Bolivia; Bosnia and Herz.; Botswana; Brazil; Brunei; Bulgaria;
Burkina Faso; Burundi; Cambodia; Cameroon; Canada; Cape Verde; Cayman Is.; Central African Rep.;
Chad; Chile; China; Colombia; Comoros; Congo; Costa Rica; Croatia; Cuba; Curaçao; Cyprus; Czech
Rep.; Côte d'Ivoire; Dem. Rep. Congo; Dem. Rep. Korea; Denmark; Djibouti; Dominica; Dominican
Rep.; Ecuador; Egypt; El Salvador; Eq. Guinea; Eritrea; Estonia; Ethiopia; Faeroe Is.; Fiji;
Finland; Fr. Polynesia; France; Gabon; Gambia; Georgia; Germany; Ghana; Gibraltar; Greece;
Greenland; Grenada; Guam; Guatemala; Guernsey; Guinea; Guinea-Bissau; Guyana; Haiti; Honduras;
Hong Kong; Hungary; Iceland; India; Indonesia; Iran; Iraq; Ireland; Isle of Man; Israel; Italy;
Jamaica; Japan; Jersey; Jordan; Kazakhstan; Kenya; Kiribati; Korea; Kosovo; Kuwait; Kyrgyzstan;
Lao PDR; Latvia; Lebanon; Lesotho; Liberia; Libya; Liechtenstein; Lithuania; Luxembourg; Macao;
Macedonia; Madagascar; Malawi; Malaysia; Maldives; Mali; Malta; Marshall Is.; Mauritania;
Mauritius; Mexico; Micronesia; Moldova; Monaco; Mongolia; Montenegro; Morocco; Mozambique;
Myanmar; N. Cyprus; Namibia; Nauru; Nepal; Netherlands; New Caledonia; New Zealand; Nicaragua;
Niger; Nigeria; Norway; Oman; Pakistan; Palau; Palestine; Panama; Papua New Guinea; Paraguay;
Peru; Philippines; Poland; Portugal; Puerto Rico; Qatar; Romania; Russia; Rwanda; S. Sudan;
Saint Lucia; Samoa; San Marino; Saudi Arabia; Senegal; Serbia; Seychelles; Sierra Leone;
Singapore; Slovakia; Slovenia; Solomon Is.; Somalia; Somaliland; South Africa; Spain; Sri Lanka;
St. Kitts and Nevis; St. Vin. and Gren.; Sudan; Suriname; Swaziland; Sweden; Switzerland; Syria;
São Tomé and Principe; Taiwan; Tajikistan; Tanzania; Thailand; Timor-Leste; Togo; Tonga;
Trinidad and Tobago; Tunisia; Turkey; Turkmenistan; Tuvalu; Uganda; Ukraine; United Arab
Emirates; United Kingdom; United States; Uruguay; Uzbekistan; Vanuatu; Vatican; Venezuela;
Vietnam; W. Sahara; Yemen; Zambia; Zimbabwe
"""
"""Short English country names from the public-domain map data of Natural Earth, with a few
territories."""

_MOMENTS: Mapping[str, tuple[str, ...]] = {
    "daytime": ("sunrise", "morning", "noon", "afternoon", "sunset", "evening", "night"),
    "weekday": (*("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),),
    "isweekend": ("weekend", "workday"),
    "homework": ("home", "unknown", "work"),
    "weather": (
        *("cloudy", "drizzle", "foggy", "rainy", "sleet", "snowy", "stormy", "sunny", "unknown"),
    ),
    "country": (*(" ".join(name.split()) for name in _COUNTRIES.split(";")), "unknown"),
    # Cities are numbers; those that do not occur in the data have a value too.
    "city": tuple(map(str, range(1200))),
}
"""The vocabularies of Frappe's contexts: all possible values, not only those in the data."""


def _read_frappe(files: dict[str, bytes]) -> Tables:
    log = pl.read_csv(files["frappe.csv"], separator="\t")
    meta = pl.read_csv(files["meta.csv"], separator="\t", quote_char=None, infer_schema=False)
    price = pl.col("price")
    # The list of apps and prices is public. The log has the same cost for each app.
    cost = pl.when(price == "Free").then(pl.lit("free")).otherwise(pl.lit("paid"))
    title = pl.when(pl.col("name").is_in(["unknown", ""])).then(None).otherwise("name")
    return Tables(
        manifest=Manifest(
            name="frappe",
            context=tuple(_MOMENTS),
            # Names and prices come from the app shop.
            public=Public(
                people=957,
                items=True,
                item_features=("cost", "title"),
                threshold=True,
                values=_MOMENTS,
            ),
        ),
        # `cnt` (how often this user used this app) is the outcome, so it is not an input.
        interactions=log.select("user", "item", *_MOMENTS),
        users=log.select(pl.col("user").unique().sort().alias("id")),
        items=meta.select(
            pl.col("item").alias("id"),
            pl.when(price == "unknown").then(None).otherwise(cost).alias("cost"),
            title.alias("title"),
        ),
    )


_GOWALLA_PEOPLE, _GOWALLA_PLACES = 29_858, 40_981


def _read_gowalla(files: dict[str, bytes]) -> Tables:
    lines = {
        file: split_lists(raw.decode().replace("\r\n", "\n"), file).frame.drop_nulls("item")
        for file, raw in files.items()
    }
    return Tables(
        manifest=Manifest(
            name="gowalla",
            public=Public(people=_GOWALLA_PEOPLE, items=True, threshold=True),
        ),
        interactions=lines["train.txt"],
        # All people and places by number, including those without a line.
        users=pl.DataFrame({"id": range(_GOWALLA_PEOPLE)}),
        items=pl.DataFrame({"id": range(_GOWALLA_PLACES)}),
        test=lines["test.txt"],
    )


PUBLISHED: dict[str, Published] = {
    "movielens-1m": Published(
        archive="ml-1m.zip",
        address="https://grouplens.org/datasets/movielens/1m/",
        download="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        sums={
            "ratings.dat": "506d64ca44484487c11dc2d9a28de5c54948213e6b96285e298afe28d6ea4e0f",
            "users.dat": "1dc3a95300cb19f7c10e027daf29b8cdf1d908dab65b5edfb45950aa389a10a3",
            "movies.dat": "0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9",
        },
        cite="Harper and Konstan 2015, The MovieLens Datasets, ACM TiiS 5(4)",
        read=_read_movielens,
    ),
    "frappe": Published(
        archive="frappe.zip",
        address="https://www.baltrunas.info/context-aware",
        download=None,
        sums={
            "frappe.csv": "409edc12f4e2153c5dd58ae171938735911d9b0f70961d5f1086b241656b2cb5",
            "meta.csv": "de87f6b2e7cd0428f9179167e2e7826b5dd3bf490d5af680261b685763ac214f",
        },
        cite="Baltrunas et al. 2015, Frappe, arXiv:1505.03014",
        read=_read_frappe,
    ),
    "gowalla": Published(
        archive="gowalla.zip",
        # Papers on graph recommenders use this split (the repository's folder Data/gowalla).
        address="https://github.com/xiangwang1223/neural_graph_collaborative_filtering",
        download=None,
        sums={
            "train.txt": "0f086326b28a56c2e6dcb81d86ee72d4ccb7eed3a8d26788392356d8f51111cc",
            "test.txt": "099a2a73924e4b754dc6efd730d764f492321b53c38eb93298850c83acf57be3",
        },
        cite=(
            "Cho, Myers and Leskovec 2011, Friendship and Mobility, KDD; filtered by Liang et al."
            " 2016"
        ),
        read=_read_gowalla,
    ),
}


def files_here(name: str) -> Path | None:
    """Return the archive, or the folder of the unpacked files, of a published data set.

    Return None if a download is needed: there are no files, or those in the cache are not the
    published ones, and a download replaces them.

    Raises:
        DataError: `$PRIVREC_DATA` has files that are not the published ones. They would be read
            before the files in the cache.
    """
    published = _published(name)
    try:
        files = find_files(published)
    except DataError as error:
        if any(places(folder, published) for folder in search_folders()[:-1]):
            raise DataError(f"{error}; remove it, because it is read first") from error
        return None
    return files and files[0]


def fetch(name: str, *, address: str | None = None, timeout: float = 60.0) -> Path:
    """Return the files of a published data set; download its archive into the cache if needed.

    The archive is kept only if its files have the published SHA-256 sums. `address` replaces the
    publisher's address. `timeout` is the longest wait for data, in seconds.

    Raises:
        DataError: There is no download, or it failed. The message names the file to get by hand
            and the folder to put it in.
    """
    published = _published(name)
    if here := files_here(name):
        return here
    target = cache_folder() / published.archive
    by_hand = f"get {published.archive} from {published.address} and put it into {target.parent}"
    source = address or published.download
    if source is None:
        raise DataError(f"the publisher of {name} offers no direct download: {by_hand}")
    try:
        fault = _download(source, target, published, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        fault = str(error).removeprefix("<urlopen error ").removesuffix(">")
        if isinstance(error, urllib.error.HTTPError):
            error.close()
    if fault is not None:
        raise DataError(f"cannot fetch {name} from {source}: {' '.join(fault.split())}; {by_hand}")
    return target


def _published(name: str) -> Published:
    if name not in PUBLISHED:
        raise DataError(
            f"nothing to fetch: {name!r} must be one of {', '.join(PUBLISHED)}"
            f"{nearest(name, PUBLISHED)}"
        )
    return PUBLISHED[name]


def _download(source: str, target: Path, published: Published, timeout: float) -> str | None:
    """Download the archive to `target`; return a description of an error, or None."""
    if not source.startswith(("https://", "http://", "file://")):
        return "the address must start with https://, http:// or file://"
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    part = Path(name)
    try:
        with (
            os.fdopen(handle, "wb") as file,
            # Rule S310 warns of other schemes than the three above.
            urllib.request.urlopen(source, timeout=timeout) as answer,  # noqa: S310
        ):
            shutil.copyfileobj(answer, file)
        _read(part, published)
        part.replace(target)
    except DataError as error:
        return str(error).replace(str(part), "the archive")
    finally:
        part.unlink(missing_ok=True)
    return None
