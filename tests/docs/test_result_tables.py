"""Tables in pages of documentation are those of the JSON files that they name."""

from pathlib import Path

import pytest

from privrec.reproduce.results import Result
from privrec.show.reproduction import filled

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RESULTS = sorted((ROOT / "docs" / "results").glob("*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_are_those_of_its_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    where = page.relative_to(ROOT)
    assert filled(text, page.parent) == text, f"fill {where} by 'privrec reproduce … --into'"
    assert text.count("<!-- table of ") == text.count("<!-- end of table -->")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_small_and_says_where_it_comes_from(path: Path) -> None:
    result = Result.read(path)
    assert result is not None
    assert result.name == path.stem
    assert not result.quick
    assert result.command.startswith(f"privrec reproduce {result.name}")
    assert result.commit
    assert result.date
    assert path.stat().st_size < 200_000
