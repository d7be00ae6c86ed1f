import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privrec.data.text import safe_text


@pytest.mark.parametrize(
    "unsafe",
    [
        "\x1b",  # starts an escape code
        "\x9b",  # starts an escape code in 8-bit terminals
        "\x07",
        "\x08",
        "\x7f",
        "\x85",
        "\u200b",  # has no width: two titles that look the same
        "\u202e",  # reverses the direction of the letters
        "\u2066",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ud800",  # half a character, which no file can hold
        "\U000e0041",  # an invisible letter
    ],
)
def test_what_could_mislead_is_replaced(unsafe: str) -> None:
    assert safe_text(f"Toy{unsafe}Story") == "Toy\ufffdStory"
    # Also next to letters of other scripts.
    assert safe_text(f"Кино{unsafe}") == "Кино\ufffd"
    assert safe_text(unsafe * 2) == "\ufffd\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Toy Story (1995)",
        "Amélie",
        "千と千尋の神隠し",
        "الرسالة",
        "naïve ☂ 🎬",
        "a\u0301",
        "x\xa0y",
    ],
)
def test_what_people_write_stays(text: str) -> None:
    assert safe_text(text) == text


@given(st.text())
def test_any_text_is_safe_after_it_and_twice_is_once(text: str) -> None:
    safe = safe_text(text)
    assert len(safe) == len(text.replace("\r\n", "\n"))
    assert not {unicodedata.category(letter) for letter in safe} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert safe_text(safe) == safe
    # One line by every definition of a line break.
    assert len(safe.splitlines()) <= 1
