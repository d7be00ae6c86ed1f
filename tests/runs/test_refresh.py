"""A phone fetches a newer model now and then; it sends nothing about its person."""

import http.server
import os
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import privrec
from privrec.errors import PrivrecError
from privrec.runs.run import export_run

ASKED: list[dict[str, str]] = []


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and keeps what it was asked."""

    def do_GET(self) -> None:
        ASKED.append({"path": self.path, **dict(self.headers.items())})
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("shop")
    run = privrec.train("privrec-plus", "synthetic:users=40,items=30", rounds=0)
    export_run(run, folder / "model.privrec")
    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/model.privrec", folder / "model.privrec"
        server.shutdown()


def test_a_model_is_fetched_once_and_again_only_when_it_is_newer(
    shop: tuple[str, Path], tmp_path: Path
) -> None:
    address, made = shop
    mine = tmp_path / "model.privrec"
    assert privrec.refresh(address, mine)
    assert mine.read_bytes() == made.read_bytes()
    assert not privrec.refresh(address, mine)
    later = made.stat().st_mtime + 100
    os.utime(made, (later, later))
    assert privrec.refresh(address, mine)
    me = privrec.open_model(mine).device(likes=["The Silent Harbour"])
    assert len(me.recommend(3)) == 3
    allowed = {"path", "Accept-Encoding", "Host", "User-Agent", "If-Modified-Since", "Connection"}
    assert all(asked.keys() <= allowed for asked in ASKED)


def test_what_is_no_model_replaces_nothing(shop: tuple[str, Path], tmp_path: Path) -> None:
    address, made = shop
    mine = tmp_path / "model.privrec"
    privrec.refresh(address, mine)
    before, good = mine.read_bytes(), made.read_bytes()
    try:
        made.write_bytes(good[:-100])
        os.utime(made, (2e9, 2e9))
        with pytest.raises(PrivrecError, match="not an exported model"):
            privrec.refresh(address, mine)
    finally:
        made.write_bytes(good)
    with pytest.raises(PrivrecError, match="404"):
        privrec.refresh(address + "x", mine)
    assert mine.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.privrec"]


@pytest.mark.parametrize(
    "address", ["http://example.org/m", "file:///etc/passwd", "ftp://x/y", "x"]
)
def test_only_a_safe_address_is_asked(address: str, tmp_path: Path) -> None:
    with pytest.raises(PrivrecError, match="must begin with https"):
        privrec.refresh(address, tmp_path / "m")


def test_an_address_or_an_authority_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(PrivrecError, match=r"cannot fetch https://\[: Invalid IPv6 URL"):
        privrec.refresh("https://[", tmp_path / "m")
    with pytest.raises(PrivrecError, match=r"cannot fetch https://x/m: .*No such file"):
        privrec.refresh("https://x/m", tmp_path / "m", authority=tmp_path / "ca.crt")


def test_a_model_that_cannot_rank_replaces_nothing(shop: tuple[str, Path], tmp_path: Path) -> None:
    address, made = shop
    mine, good = tmp_path / "model.privrec", made.read_bytes()
    privrec.refresh(address, mine)
    try:
        with zipfile.ZipFile(made) as old, zipfile.ZipFile(tmp_path / "odd", "w") as new:
            for name in old.namelist():
                if name != "params/items/bias.npy":
                    new.writestr(name, old.read(name))
        made.write_bytes((tmp_path / "odd").read_bytes())
        os.utime(made, (2e9, 2e9))
        with pytest.raises(PrivrecError, match="'items/bias' must have shape"):
            privrec.refresh(address, mine)
    finally:
        made.write_bytes(good)
    assert mine.read_bytes() == good
