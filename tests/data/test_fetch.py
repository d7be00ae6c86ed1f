import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from commands import document, done
from privrec.data.published import PUBLISHED, cache_folder, fetch, files_here
from privrec.errors import DataError

FILES = {"one.csv": b"a,b\n1,2\n", "two.csv": b"c\n3\n" * 1000}


def archive(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as opened:
        for name, contents in files.items():
            # Without a time of its own, so that two archives of the same files are the same bytes.
            opened.writestr(zipfile.ZipInfo(f"folder/{name}"), contents)
    return out.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary cache, and a published data set called `tiny`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PRIVREC_DATA", raising=False)
    tiny = replace(
        PUBLISHED["movielens-1m"],
        archive="tiny.zip",
        address="https://example.org/about",
        download=(tmp_path / "tiny.zip").as_uri(),
        sums={name: hashlib.sha256(contents).hexdigest() for name, contents in FILES.items()},
    )
    monkeypatch.setitem(PUBLISHED, "tiny", tiny)
    (tmp_path / "tiny.zip").write_bytes(archive(FILES))
    return cache_folder()


def left_behind(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def test_the_archive_ends_up_in_the_cache(cache: Path, tmp_path: Path) -> None:
    path = fetch("tiny")
    assert path == cache / "tiny.zip"
    assert path.read_bytes() == (tmp_path / "tiny.zip").read_bytes()
    assert left_behind(cache) == ["tiny.zip"]


def test_what_is_there_already_is_not_fetched_again(cache: Path, tmp_path: Path) -> None:
    fetch("tiny")
    (tmp_path / "tiny.zip").unlink()
    assert fetch("tiny") == cache / "tiny.zip"


@pytest.mark.parametrize("unpacked", [False, True])
def test_files_of_ones_own_are_seen_and_not_fetched_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked: bool
) -> None:
    (tmp_path / "tiny.zip").unlink()
    mine = tmp_path / "mine" / "deep"
    mine.mkdir(parents=True)
    monkeypatch.setenv("PRIVREC_DATA", str(mine.parent))
    assert files_here("tiny") is None
    if unpacked:
        for name, contents in FILES.items():
            (mine / name).write_bytes(contents)
    else:
        (mine.parent / "tiny.zip").write_bytes(archive(FILES))
    place = mine if unpacked else mine.parent / "tiny.zip"
    assert fetch("tiny") == place
    said = done("data", "fetch", "tiny")
    assert said == f"tiny is here already, nothing was downloaded: {place}\n"
    found = document("data", "fetch", "tiny", "--json")
    assert found == {"name": "tiny", "path": str(place), "downloaded": False}
    assert left_behind(cache) == []


def test_the_command_says_that_it_downloaded(cache: Path) -> None:
    assert document("data", "fetch", "tiny", "--json")["downloaded"]
    assert not document("data", "fetch", "tiny", "--json")["downloaded"]
    (cache / "tiny.zip").unlink()
    assert done("data", "fetch", "tiny") == f"downloaded tiny: {cache / 'tiny.zip'}\n"


def test_other_files_of_ones_own_are_in_the_way(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download would not help: what lies in $PRIVREC_DATA is read first."""
    monkeypatch.setenv("PRIVREC_DATA", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tiny.zip").write_bytes(archive(FILES)[:-30])
    with pytest.raises(DataError, match=r"mine/tiny\.zip is not a whole zip .*; remove it"):
        fetch("tiny")
    assert left_behind(cache) == []


def test_a_damaged_archive_in_the_cache_is_replaced(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "tiny.zip").write_bytes(archive(FILES)[:-30])
    assert fetch("tiny").read_bytes() == archive(FILES)


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "the archive is not a whole zip file"),
        (b"<html>we have moved</html>", "the archive is not a whole zip file"),
        (archive(FILES)[:-40], "the archive is not a whole zip file"),
        (archive({"one.csv": FILES["one.csv"]}), "the archive does not hold two.csv"),
        (archive({**FILES, "one.csv": b"a,b\n1,3\n"}), "one.csv must have the SHA-256 sum"),
    ],
)
def test_what_is_not_as_published_is_refused_and_removed(
    cache: Path, tmp_path: Path, contents: bytes, reason: str
) -> None:
    source = tmp_path / "other.zip"
    source.write_bytes(contents)
    with pytest.raises(DataError, match=reason) as caught:
        fetch("tiny", address=source.as_uri())
    message = str(caught.value)
    assert f"get tiny.zip from https://example.org/about and put it into {cache}" in message
    assert source.as_uri() in message
    assert "\n" not in message
    assert ".part" not in message  # this temporary file no longer exists
    assert left_behind(cache) == []


class Publisher(BaseHTTPRequestHandler):
    """Serves the archive whole or truncated; other paths give 404 or never answer."""

    done = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/gone.zip":
            self.send_error(404)
            return
        if self.path == "/silent.zip":
            self.done.wait(10)
            return
        body = archive(FILES)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:100] if self.path == "/cut.zip" else body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is theirs)
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Publisher) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        Publisher.done.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_over_http(cache: Path, server: str) -> None:
    assert fetch("tiny", address=f"{server}/tiny.zip").read_bytes() == archive(FILES)
    assert left_behind(cache) == ["tiny.zip"]


@pytest.mark.parametrize(
    ("file", "reason"),
    [("gone.zip", "404"), ("cut.zip", "not a whole zip file"), ("silent.zip", "timed out")],
)
def test_a_failing_publisher_leaves_nothing(
    cache: Path, server: str, file: str, reason: str
) -> None:
    with pytest.raises(DataError, match=f"{reason}.*; get tiny.zip from .* and put it into"):
        fetch("tiny", address=f"{server}/{file}", timeout=0.3 if file == "silent.zip" else 60)
    assert left_behind(cache) == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("file:///no/such/file.zip", "No such file"),
        ("http://127.0.0.1:1/x.zip", "refused"),
        ("http://[::1/x.zip", "Invalid IPv6 URL"),
        ("ftp://127.0.0.1/x.zip", "must start with https://, http:// or file://"),
    ],
)
def test_an_address_that_does_not_work(cache: Path, address: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"cannot fetch tiny from .*{reason}"):
        fetch("tiny", address=address)
    assert left_behind(cache) == []


def test_a_cache_that_cannot_be_made_is_named(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot fetch tiny .*(Not a directory|File exists)"):
        fetch("tiny")
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_a_publisher_without_a_direct_link_and_a_name_that_nobody_knows() -> None:
    with pytest.raises(DataError, match=r"no direct download: get frappe\.zip from https://www\.b"):
        fetch("frappe")
    with pytest.raises(DataError, match=r"'movilens' must be one of .*'movielens-1m'\?"):
        fetch("movilens")


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["movielens-1m", "frappe", "gowalla"])
def test_the_real_archives_have_the_published_sums(
    request: pytest.FixtureRequest, name: str
) -> None:
    folder = os.environ.get("PRIVREC_DATA")
    cache: Path = request.getfixturevalue("cache")  # without $PRIVREC_DATA
    source = Path(folder or "") / PUBLISHED[name].archive
    if not folder or not source.is_file():
        pytest.skip(f"{source.name} is not in $PRIVREC_DATA")
    assert fetch(name, address=source.resolve().as_uri()).parent == cache
