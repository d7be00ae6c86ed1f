"""What runs the code blocks of the documentation finds a page that is wrong."""

from pathlib import Path

import pytest

from blocks import blocks_in, check_command, commands_in, run_page

PRINTS = '```python\nprint("one 1.00")\nprint("two 2.00")\n```\n'


def page(text: str) -> None:
    run_page(list(blocks_in("page.md", text)))


def output(*lines: str) -> str:
    return "\n".join(['```text title="Output"', *lines, "```", ""])


def test_a_page_runs_in_order_in_one_folder_with_one_set_of_names(scratch: Path) -> None:
    page(
        "```python\nx = 2\n```\n"
        '```csv title="a.csv"\nuser,item\nann,i1\n```\n'
        "```bash\ncp a.csv \\\n    b.csv   # a copy\n# nothing\n```\n"
        "- in a list:\n\n    ```python\n    with open('b.csv') as file:\n"
        "        print(file.read(), x + 1)\n    ```\n" + output("user,item", "ann,i1", "3")
    )
    assert (scratch / "b.csv").is_file()


@pytest.mark.parametrize(
    "shown",
    [
        ("one 1.00", "two 2.00"),
        ("two 2.00",),
        ("one …", "…", "two 2.0"),
        ("one 1.04",),
        ("one", "2.0"),
        ("t… 2.00",),
    ],
)
def test_output_may_be_shown_in_part(shown: tuple[str, ...]) -> None:
    page(PRINTS + output(*shown))


@pytest.mark.parametrize(
    "shown",
    [("three",), ("two 2.00", "one 1.00"), ("one 1.20",), ("1.00 one",), ("one 1.00 two",)],
)
def test_output_that_is_not_printed_is_found(shown: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="is not printed, or not in this order"):
        page(PRINTS + output(*shown))


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("```python\nx = 1\n```\n" + output("one"), AssertionError, "prints nothing"),
        ("```python\n1 / 0\n```\n", ZeroDivisionError, "division"),
        ("```bash\nprivrec recipes privrek\n```\n", AssertionError, "exit code 2"),
        ("```bash\nfalse\n```\n", AssertionError, "page.md:1: false\nexit code 1"),
        ("<!-- exit code 2 -->\n```bash\nprivrec recipes\n```\n", AssertionError, "exit code 0"),
        ("```toml\na = \n```\n", ValueError, "Invalid value"),
        ('```json\n{"a": 1,}\n```\n', ValueError, "double quotes"),
        ("```csv\na,b\n1\n```\n", AssertionError, "rows of different lengths"),
        ("```python\n1\n", AssertionError, "does not end"),
        ("```bash norun\nfalse\n```\n", AssertionError, "'norun' is not a title"),
        (
            "<!-- from examples/subspace.py -->\n```python\nrank: Size = 9\n```\n",
            AssertionError,
            "is not in examples/subspace.py",
        ),
    ],
)
def test_a_wrong_block_is_found(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        page(text)


def test_marks_leave_blocks_out() -> None:
    text = "".join(
        f"<!-- {mark} -->\n```bash\n{command}\n```\n"
        for mark, command in (
            ("not run: it would fail", "false"),
            ("slow", "true"),
            ("realdata", "false"),
            ("exit code 1", "false"),
        )
    )
    blocks = list(blocks_in("page.md", text))
    assert [block.mark for block in run_page(blocks)] == ["exit code"]
    assert [block.mark for block in run_page(blocks, frozenset({"slow"}))] == ["slow", "exit code"]
    with pytest.raises(AssertionError, match="exit code 1"):
        run_page(blocks, frozenset({"realdata"}))
    [unmarked] = blocks_in("page.md", "<!-- not run -->\n```bash\nfalse\n```\n")
    assert unmarked.mark == "", "not to run a block needs a reason"


@pytest.mark.parametrize(
    "command",
    [
        "privrec trane popularity",
        "privrec train",
        "privrec train popularity --dta x",
        "privrec data",
    ],
)
def test_a_command_that_does_not_exist_is_found_without_running_it(command: str) -> None:
    [block] = blocks_in("page.md", f"```bash\n{command}\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        check_command(block, command)


def test_a_command_that_exists_is_not_run(scratch: Path) -> None:
    text = "```bash\nprivrec train popularity \\\n    --out run  # a run\n```\n"
    [block] = blocks_in("page.md", text)
    [command] = commands_in(block.text)
    check_command(block, command)
    assert not list(scratch.iterdir())
