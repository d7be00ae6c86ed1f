"""Every code block of README.md and of the pages in docs/ runs, and prints what the page shows."""

import re
from pathlib import Path

import pytest

from blocks import LANGUAGES, PAGES, ROOT, blocks_of, check_command, commands_in, marked, run_page
from privrec.data.manifest import read_manifest
from privrec.data.synthetic import SyntheticSettings

STORIES = [page for page in PAGES if "tutorials" not in page]
NOT_RUN = 16
"""How many blocks are not run at all. Raise it only for one that cannot run on a test machine."""


@pytest.fixture
def few_people(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, and let `synthetic` alone stand for fewer people and items."""
    sizes = SyntheticSettings.__init__.__kwdefaults__
    assert sizes is not None
    for name, size in {"users": 120, "items": 60, "longest": 30}.items():
        monkeypatch.setitem(sizes, name, size)


@pytest.mark.slow
@pytest.mark.usefixtures("few_people")
@pytest.mark.parametrize("page", STORIES)
def test_the_blocks_of_a_page_run(page: str) -> None:
    run_page(blocks_of(page))


@pytest.mark.slow
@pytest.mark.usefixtures("scratch")  # Attacks start processes, which have people of usual number.
@pytest.mark.parametrize("page", [page for page in STORIES if marked(page, "slow")])
def test_the_slow_blocks_of_a_page_run(page: str) -> None:
    assert any(block.mark == "slow" for block in run_page(blocks_of(page), frozenset({"slow"})))


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.usefixtures("few_people")
@pytest.mark.parametrize("page", [page for page in STORIES if marked(page, "realdata")])
def test_the_blocks_for_real_data_run(page: str) -> None:
    run_page(marked(page, "realdata"), frozenset({"realdata"}))


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md"])
def test_every_file_of_the_project_that_a_page_names_exists(page: str) -> None:
    """Those of `src/` are named from the package, or from its `algorithms`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    source = ROOT / "src" / "privrec"
    for name in re.findall(r"(?<![\w/.-])\w+/[\w/]*\w\.py\b", text):
        places = (ROOT / name, source / name, source / "algorithms" / name)
        assert any(place.is_file() for place in places), f"{page} names {name}"


def test_every_block_is_of_a_known_kind() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.language in LANGUAGES, (
                f"{block.place}: which language is {block.language!r}?"
            )


@pytest.mark.slow
def test_commands_that_are_not_run_exist_with_their_options() -> None:
    """All commands are looked at, also those of blocks that are slow or not run."""
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "bash":
                for command in commands_in(block.text):
                    check_command(block, command)


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    why = {block.place: block.more for page in PAGES for block in marked(page, "not run")}
    assert len(why) == NOT_RUN, why
    assert all(len(reason.split()) > 3 for reason in why.values()), why


def test_the_manifest_of_the_data_page_is_read(scratch: Path) -> None:
    [block] = [block for block in blocks_of("docs/data.md") if block.language == "toml"]
    (scratch / block.title).write_text(block.text, encoding="utf-8")
    assert read_manifest(scratch / block.title).public.people == 10_000
