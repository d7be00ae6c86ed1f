"""`privrec report`, and the pages of a run folder: they lead to each other and to nothing else."""

import json
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np

import privrec
from commands import Refused, document, done
from pages import check_page
from privrec.data.clients import Clients
from privrec.data.federation import part_of
from privrec.runs.loop import train
from tiny import DATA


def links_of(path: Path) -> list[Path]:
    """The files that a page leads to; each must exist."""
    found = check_page(path.read_text(encoding="utf-8"))
    to = [urlsplit(urljoin(path.as_uri(), link)) for link in found.values("href")]
    files = [Path(unquote(one.path)) for one in to]
    assert all(file.is_file() for file in files), files
    return files


def test_a_report_is_written_again_from_the_folder(scratch: Path, refused: Refused) -> None:
    name = 'a "b" & #c?d%e'
    run = train("dp-privrec-plus", DATA, out=scratch / name, delta=1e-3)
    where = scratch / name / "simulation" / "report.html"
    said = done("report", name)
    assert f"report: {name}/simulation/report.html" in said
    assert "nobody was tested yet: privrec evaluate" in said
    page = check_page(where.read_text(encoding="utf-8"))
    assert "Nobody was tested yet" in page.words
    assert "privrec evaluate" in page.words
    assert "What is promised" in page.words
    run.evaluate()
    assert not where.exists()  # It is not of this evaluation.
    done("report", name)
    promised = scratch / name / "privacy.html"
    assert links_of(where) == [promised]
    # It may be given away alone: it leads to nothing that may not.
    assert links_of(promised) == []
    assert "may be released" in check_page(promised.read_text(encoding="utf-8")).words
    assert "may be released" not in check_page(where.read_text(encoding="utf-8")).words
    where.with_name("privacy.html").write_text("of an older version", encoding="utf-8")
    before = where.read_bytes()
    where.unlink()
    told = document("report", name, "--json")
    assert told["evaluated"]
    assert told["report"] == f"{name}/simulation/report.html"
    assert told["privacy"] == f"{name}/privacy.html"
    assert not where.with_name("privacy.html").exists()
    assert where.read_bytes() == before
    assert "nosuch does not exist" in refused("report", "nosuch")
    run.folder.evaluation_path.write_text("{", encoding="utf-8")
    assert "cannot read" in refused("report", name)


def test_attacks_and_audits_are_linked(tmp_path: Path) -> None:
    run = train("popularity", DATA, out=tmp_path / "run")
    run.evaluate()
    page = tmp_path / "run" / "simulation" / "attack.html"
    page.write_text("<!doctype html>", encoding="utf-8")
    assert page in links_of(privrec.write_report(run))


def test_examples_are_of_public_data_alone(tmp_path: Path) -> None:
    """A person's own data may have the name of a built-in set: then nobody is shown."""
    run = train("popularity", DATA, out=tmp_path / "public")
    run.evaluate()
    place = run.folder.evaluation_path.with_name("examples.json")
    shown = json.loads(place.read_text(encoding="utf-8"))["examples"]
    assert 1 <= len(shown) <= 10
    assert 'class="card"' in privrec.write_report(run).read_text(encoding="utf-8")
    data = privrec.load(DATA)
    own = part_of(data, np.arange(1, data.n_clients))
    again = train("popularity", own, out=tmp_path / "own")
    assert again.config.data == data.name
    again.evaluate()
    assert not again.folder.evaluation_path.with_name("examples.json").exists()
    assert 'class="card"' not in privrec.write_report(again).read_text(encoding="utf-8")


def test_people_of_a_data_folder_are_never_shown(scratch: Path) -> None:
    rows = [f"person{u},secret {(u * 7 + n) % 30}" for u in range(60) for n in range(8)]
    Path("lines.csv").write_text("user,item\n" + "\n".join(rows) + "\n", encoding="utf-8")
    done("data", "import", "lines.csv", "--out", "mine")
    run = train("popularity", "mine", out=scratch / "run")
    run.evaluate()
    place = run.folder.evaluation_path.parent
    assert not list(place.glob("examples*"))
    for path in place.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "secret" not in text
        assert "person1" not in text


def test_an_example_is_a_test_person_and_a_hit_is_a_hidden_like_of_hers(tmp_path: Path) -> None:
    run = train("privrec-plus", DATA, out=tmp_path / "run", rounds=0)
    run.evaluate()
    place = run.folder.evaluation_path.with_name("examples.json")
    shown = json.loads(place.read_text(encoding="utf-8"))["examples"]
    prepared = run.prepared
    held = prepared.task.protocol.testing(prepared.task.whole)(prepared.task.split.test)
    titles = np.array(prepared.task.whole.catalogue.titles)

    def of(clients: Clients, k: int, *, liked: bool) -> set[str]:
        rows = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
        kept = clients.liked[rows] if liked else slice(None)
        return set(titles[clients.item[rows][kept]].tolist())

    people = [
        (
            of(held.kept, k, liked=True),
            of(held.kept, k, liked=False),
            of(held.tested, k, liked=True),
        )
        for k in range(len(held.kept))
    ]
    assert shown
    for one in shown:
        listed = [row["title"] for row in one["list"]]
        marks = [row["hit"] for row in one["list"]]
        assert any(
            set(one["liked"]) <= likes
            and len(likes) == len(one["liked"]) + one["more"]
            and len(hidden) == one["held_out"]
            and marks == [title in hidden for title in listed]
            and not met & set(listed)
            for likes, met, hidden in people
        )


def test_compared_runs_lead_to_their_reports(scratch: Path) -> None:
    for name, l2 in (("one: 1", 500.0), ('two "2"', 7.0)):
        run = train("ease", DATA, out=scratch / name, ease_l2=l2)
        run.evaluate()
        privrec.write_report(run)
    done("compare", "one: 1", 'two "2"', "--html", "deep/down/page.html")
    page = scratch / "deep" / "down" / "page.html"
    assert set(links_of(page)) == {
        scratch / name / "simulation" / "report.html" for name in ("one: 1", 'two "2"')
    }
    found = check_page(page.read_text(encoding="utf-8"))
    after = found.cells_after("Settings that differ")
    assert after == ["", "one: 1", 'two "2"', "ease_l2", "500.0", "7.0"]
