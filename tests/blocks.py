"""The code blocks of the documentation: found, run in order, and compared with the output shown.

A page is a story. Its blocks run in order, in one folder and, for Python, with one set of names.

- `python` is executed; `bash` is run command by command, and must end with exit code 0.
- `text` with the title "Output" is what the block before it prints. Each shown line must be
  printed, in this order, with all its words in this order. Other lines and words may be between
  them: `…` says so to readers. A number stands for any number near it.
- A block whose title is a file name is written to that file. `toml`, `json` and `csv` must parse.
- Other `text` is a drawing.

A comment above a block says what else holds for it: `<!-- not run: why -->`, `<!-- slow -->`,
`<!-- realdata -->` (both have markers of that name), `<!-- exit code 2 -->`, or
`<!-- from FILE -->`, a quotation from a file of the repository that tests run elsewhere.
"""

import csv
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import Result
from typer.main import get_command

from commands import invoke
from privrec.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
OUTPUT = "Output"
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*) *(?P<rest>.*)$")
_TITLE = re.compile(r'^(title="(?P<title>[^"]+)")?$')
_MARK = re.compile(
    r"<!-- (?P<mark>not run(?=: )|slow|realdata|exit code(?= \d)|from)(:? (?P<more>\S.*))? -->"
)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_BOX = re.compile("[\u2500-\u257f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block, where it is, and what the comment above it says."""

    page: str
    line: int
    language: str
    title: str
    text: str
    mark: str
    more: str

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    return list(blocks_in(page, (ROOT / page).read_text(encoding="utf-8")))


def marked(page: str, mark: str) -> list[Block]:
    """Return the blocks of a page with this mark."""
    return [block for block in blocks_of(page) if block.mark == mark]


def blocks_in(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a text."""
    lines = iter(enumerate(text.splitlines(), start=1))
    before = ""
    for number, line in lines:
        if (fence := _FENCE.match(line)) is None:
            before = line.strip() or before
            continue
        rest = _TITLE.match(fence["rest"])
        assert rest is not None, f"{page}:{number}: {fence['rest']!r} is not a title"
        body = []
        for _, inside in lines:
            if inside.strip() == "```":
                break
            body.append(inside.removeprefix(fence["indent"]))
        else:
            raise AssertionError(f"{page}:{number}: this block does not end")
        mark = _MARK.fullmatch(before)
        yield Block(
            page=page,
            line=number,
            language=fence["language"],
            title=rest["title"] or "",
            text="\n".join(body) + "\n",
            mark=mark["mark"] if mark else "",
            more=(mark["more"] or "") if mark else "",
        )
        before = ""


def run_page(blocks: list[Block], also: frozenset[str] = frozenset()) -> list[Block]:
    """Run the blocks in the current folder; return those that were run.

    Blocks marked as slow or for real data are left out unless their mark is in `also`.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    ran: list[Block] = []
    printed = ""
    for block in blocks:
        if block.mark in {"not run", "slow", "realdata"} - also:
            printed = ""
            continue
        if block.title == OUTPUT:
            assert printed, f"{block.place}: the block before it prints nothing"
            assert_shown(block, printed)
        elif block.language != "text":
            printed = _run(block, names)
        ran.append(block)
    return ran


def _run(block: Block, names: dict[str, Any]) -> str:
    """Write, parse or run a block; return what it prints."""
    if block.mark == "from":
        _assert_quoted(block)
        return ""
    if parse := _PARSERS.get(block.language):
        parse(block.text)
    if block.title:
        Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        return _run_python(block, names)
    elif block.language == "bash":
        return "".join(_run_command(block, command) for command in commands_in(block.text))
    return ""


def _run_python(block: Block, names: dict[str, Any]) -> str:
    # Empty lines in front, so that a traceback names the line of the page.
    code = compile("\n" * block.line + block.text, str(ROOT / block.page), "exec")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102
    return printed.getvalue()


def commands_in(text: str) -> list[str]:
    """Return the commands of a block; a backslash at the end of a line joins it with the next."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _run_command(block: Block, command: str) -> str:
    """Run privrec in this process, which has it imported, and anything else in a shell."""
    words = shlex.split(command, comments=True)
    if words[:2] == ["privrec", "audit"] and "--confidence" not in words:
        # With secure noise and the usual confidence, a right ledger is accused one time in twenty.
        words += ["--confidence", "0.9999999"]
    plain = not any(mark in words for mark in ("|", ">", "&&", "<"))
    ran = _in_process(words[1:]) if words[0] == "privrec" and plain else _in_shell(command)
    code, output = ran
    wanted = int(block.more) if block.mark == "exit code" else 0
    assert code == wanted, f"{block.place}: {command}\nexit code {code}\n{output}"
    return output


def _in_process(words: list[str]) -> tuple[int, str]:
    ran: Result = invoke(*words)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran.exit_code, ran.output


def _in_shell(command: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return ran.returncode, ran.stdout + ran.stderr


def _assert_quoted(block: Block) -> None:
    there = iter((ROOT / block.more).read_text(encoding="utf-8").splitlines())
    for line in filter(lambda line: line.strip(" …"), block.text.splitlines()):
        assert any(line.strip() == other.strip() for other in there), (
            f"{block.place}: {line.strip()!r} is not in {block.more}, or not in this order"
        )


def check_command(block: Block, command: str) -> None:
    """Fail unless privrec has this command with these options; run nothing."""
    program, *words = shlex.split(command, comments=True)
    if program != "privrec":
        return
    found: click.Command = get_command(app)
    with click.Context(found) as above:
        while isinstance(found, click.Group):
            name, *words = words or ["nothing"]
            below = found.get_command(above, name)
            assert below is not None, f"{block.place}: there is no command {name!r}"
            found = below
        try:
            found.make_context(command, words, parent=above)
        except click.ClickException as error:
            raise AssertionError(f"{block.place}: {error.format_message()}") from error


def assert_shown(block: Block, printed: str) -> None:
    """Fail unless each line of the block is printed, in this order."""
    there = iter(printed.splitlines())
    for shown in block.text.splitlines():
        if shown.strip(" …"):
            assert any(same_line(shown, line) for line in there), (
                f"{block.place}: {shown.strip()!r} is not printed, or not in this order:\n{printed}"
            )


def same_line(shown: str, printed: str) -> bool:
    """Return whether a printed line has all words of the shown one, in this order.

    Other words may be between them.

    >>> same_line("hits …  0.25", "┃ hits @20 │ 0.26 ┃"), same_line("2 people", "4 people")
    (True, False)
    """
    there = iter(_BOX.sub(" ", printed).split())
    words = (word for word in _BOX.sub(" ", shown).split() if word != "…")
    return all(any(_same_word(word, other) for other in there) for word in words)


def _same_word(shown: str, printed: str) -> bool:
    pieces = [re.escape(piece) for piece in _NUMBER.sub("\0", shown).split("\0")]
    pattern = f"({_NUMBER.pattern})".join(pieces).replace("…", ".*?")
    if (found := re.fullmatch(pattern, printed)) is None:
        return False
    wanted = map(_value, _NUMBER.findall(shown))
    return all(
        math.isclose(one, other, rel_tol=0.05, abs_tol=0.01)
        for one, other in zip(wanted, map(_value, found.groups()), strict=True)
    )


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _parse_csv(text: str) -> None:
    separator = ";" if ";" in text.splitlines()[0] else ","
    rows = list(csv.reader(io.StringIO(text), delimiter=separator))
    assert len({len(row) for row in rows}) == 1, f"rows of different lengths: {rows}"


_PARSERS: dict[str, Callable[[str], Any]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "csv": _parse_csv,
}
LANGUAGES = {"python", "bash", "text", "html", *_PARSERS}
