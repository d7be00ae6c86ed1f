"""Every code block of the tutorials runs, and prints what the page shows."""

import pytest

from blocks import PAGES, blocks_of, marked, run_page

TUTORIALS = [page for page in PAGES if "tutorials" in page]


@pytest.mark.slow
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("page", TUTORIALS)
def test_the_blocks_of_a_tutorial_run(page: str) -> None:
    run_page(blocks_of(page))


@pytest.mark.slow
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("page", [page for page in TUTORIALS if marked(page, "slow")])
def test_the_slow_blocks_of_a_tutorial_run(page: str) -> None:
    run_page(blocks_of(page), frozenset({"slow"}))
