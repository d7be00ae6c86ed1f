"""The files of an exported page: whole, for any address, and never over somebody's own files."""

import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

import privrec
from commands import Refused, done, invoke
from privrec.privacy.statement import epsilon_text
from privrec.runs.folder import write_whole
from privrec.show import site
from privrec.show.promise import scale_place
from privrec.show.site import WEB
from tiny import DATA


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "run"
    privrec.train("privrec-plus", DATA, out=place, rounds=0, choose=False)
    return place


def test_every_file_of_the_page_is_there_and_kept_for_offline_use(
    run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page"
    said = done("export", run, "--web", page, "--title", "Films & more")
    assert "python3 -m http.server --directory" in said
    about = json.loads((page / "about.json").read_text())
    there = {str(path.relative_to(page)) for path in page.rglob("*") if path.is_file()}
    assert {*about["files"]} == {"./", *there}
    worker = (page / "worker.js").read_text()
    files = json.loads(re.findall(r"const FILES = (.*);", worker)[0])
    assert {*files} == {"./", *there} - {"worker.js", "index.html"}
    assert about["name"] == json.loads((page / "manifest.json").read_text())["name"]
    assert about["name"] == "Films & more"
    # Paths are relative: the page may lie anywhere.
    for path in re.findall(r'(?:href|src)="([^"#]+)"', (page / "index.html").read_text()):
        assert path in there
    # The model is compact unless it is asked for in full.
    assert privrec.open_model(page / "model.privrec").device().recommend(3)
    small = (page / "model.privrec").stat().st_size
    done("export", run, "--web", page, "--full")
    assert (page / "model.privrec").stat().st_size > small


def test_another_model_is_another_version(run: Path, tmp_path: Path) -> None:
    """So that a browser that has kept the files takes the new ones."""
    versions = set()
    for words in ([], [], ["--full"], ["--title", "b"]):
        done("export", run, "--web", tmp_path / "page", *words)
        worker = (tmp_path / "page" / "worker.js").read_text()
        versions.add(re.findall(r'const VERSION = "(\w{16})";', worker)[0])
    assert len(versions) == 3


def cut_off(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the next export end before this file is written."""

    def write(path: Path, content: bytes) -> None:
        if path.name == name:
            raise KeyboardInterrupt
        write_whole(path, content)

    monkeypatch.setattr(site, "write_whole", write)


@pytest.mark.parametrize("name", ["index.js", "model.privrec", "manifest.json", "about.json"])
def test_the_worker_has_a_new_version_only_when_all_other_files_are_new(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a browser would keep old files under the new version, and never ask again."""
    done("export", run, "--web", tmp_path / "page")
    before = (tmp_path / "page" / "worker.js").read_bytes()
    cut_off(monkeypatch, name)
    assert invoke("export", run, "--web", tmp_path / "page", "--full").exit_code != 0
    assert (tmp_path / "page" / "worker.js").read_bytes() == before
    monkeypatch.undo()
    done("export", run, "--web", tmp_path / "page", "--full")
    assert (tmp_path / "page" / "worker.js").read_bytes() != before


@pytest.mark.parametrize("name", ["style.css", "manifest.json", "model.privrec"])
def test_an_export_that_was_cut_off_begins_anew(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(monkeypatch, name)
    assert invoke("export", run, "--web", tmp_path / "page").exit_code != 0
    assert not (tmp_path / "page" / name).exists()
    monkeypatch.undo()
    done("export", run, "--web", tmp_path / "page")
    assert (tmp_path / "page" / name).is_file()
    assert "promise" in json.loads((tmp_path / "page" / "about.json").read_text())


def test_the_promise_is_that_of_the_report(run: Path, tmp_path: Path) -> None:
    done("export", run, "--web", tmp_path / "page")
    told = json.loads((tmp_path / "page" / "about.json").read_text())["promise"]
    privacy = privrec.open_run(run).privacy()
    assert (told["strength"], told["text"]) == ("none", privacy.short)
    assert told["full"] == privacy.statement
    assert told["epsilon"] is told["place"] is None


def test_a_guarantee_is_told_with_its_epsilon(tmp_path: Path) -> None:
    run = privrec.train("dp-privrec-plus", DATA, out=tmp_path / "run", delta=1e-3, epsilon=4.0)
    done("export", tmp_path / "run", "--web", tmp_path / "page")
    told = json.loads((tmp_path / "page" / "about.json").read_text())["promise"]
    epsilon = run.privacy().epsilon
    assert epsilon is not None
    assert told["strength"] == "moderate"
    assert told["epsilon"] == epsilon_text(epsilon)
    assert told["place"] == pytest.approx(scale_place(epsilon), abs=1e-4)
    assert 0.4 < told["place"] < 0.75


def test_other_files_are_not_written_over(run: Path, scratch: Path, refused: Refused) -> None:
    (scratch / "mine").mkdir()
    (scratch / "mine" / "letter.txt").write_text("dear")
    assert "mine has other files" in refused("export", run, "--web", "mine")
    for about in ('{"name": "My shop"}', '{"is": "shop"}', "[]", "{", "[" * 100_000, "\xe9"):
        (scratch / "mine" / "about.json").write_text(about, encoding="latin-1")
        assert "mine has other files" in refused("export", run, "--web", "mine")
    assert len([*(scratch / "mine").iterdir()]) == 2
    (scratch / "file").write_text("")
    assert "file is a file" in refused("export", run, "--web", "file")


def test_a_link_is_not_followed(run: Path, scratch: Path, refused: Refused) -> None:
    done("export", run, "--web", "page")
    (scratch / "mine").mkdir()
    shutil.rmtree(scratch / "page" / "device")
    (scratch / "page" / "device").symlink_to(scratch / "mine")
    assert "page/device is a link" in refused("export", run, "--web", "page")
    assert not [*(scratch / "mine").iterdir()]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give --out, the file to write, or --web"),
        (["--out", "f", "--pictures", "p"], "about --web"),
        (["--out", "f", "--title", "t"], "about --web"),
        (["--web", "w", "--pictures", "p"], "--pictures takes a folder; got p"),
        (["--web", "w", "--pictures", "empty"], "empty has no picture of an item"),
    ],
)
def test_wrong_options_are_refused(
    words: list[str], why: str, run: Path, scratch: Path, refused: Refused
) -> None:
    (scratch / "empty").mkdir()
    assert why in refused("export", run, *words)


def test_only_privrec_plus_has_a_compact_export(scratch: Path) -> None:
    privrec.train("popularity", DATA, out=scratch / "other")
    ran = invoke("export", "other", "--web", "page")
    assert ran.exit_code == 2
    assert "popularity has no compact export" in ran.stderr
    assert not (scratch / "page").exists()


def test_pictures_are_one_file(run: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name in ("i3.png", "i5.JPG", "other.png", "i7.txt"):
        (pictures / name).write_bytes(name.encode())
    said = done("export", run, "--web", tmp_path / "page", "--pictures", pictures)
    about = json.loads((tmp_path / "page" / "about.json").read_text())
    assert about["pictures"] == {"i3.png": ["i3", "image/png"], "i5.JPG": ["i5", "image/jpeg"]}
    with zipfile.ZipFile(tmp_path / "page" / "pictures.zip") as file:
        assert {name: file.read(name) for name in file.namelist()} == {
            name: name.encode() for name in about["pictures"]
        }
    size = (tmp_path / "page" / "pictures.zip").stat().st_size
    assert f"{size:,} of pictures" in said


def test_the_policy_allows_nothing_from_elsewhere() -> None:
    page = (WEB / "page" / "index.html").read_text()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert {source for rule in rules.values() for source in rule.split()} == {
        "'none'", "'self'", "blob:",
    }  # fmt: skip


def test_the_icons_are_of_the_size_that_they_say() -> None:
    for size in (192, 512):
        content = (WEB / "page" / f"icon-{size}.png").read_bytes()
        assert content[16:24] == size.to_bytes(4) * 2


def test_the_meter_claims_no_more_than_it_sees() -> None:
    """Browsers list the addresses of requests, but neither their bodies nor WebSockets."""
    messages = json.loads((WEB / "page" / "messages.json").read_text(encoding="utf-8"))
    for language, addresses in (("en", "in addresses"), ("de", "in Adressen")):
        said = messages[language]
        assert said["bytes"].endswith(addresses)
        assert "WebSocket" in said["sentNote"]
        assert said["requests"].endswith(("files of its own.", "Dateien abgerufen."))
