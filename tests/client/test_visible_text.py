"""Text of others, as a terminal or a page may show it."""

import json
import time
import unicodedata

import pytest
from hypothesis import given, settings, strategies as st

from client_lib import visible_text
from client_lib.errors import NotFound
from tests.kit.examples import examples

FORMS = (visible_text.plain, visible_text.one_line, visible_text.for_terminal)
ZWJ = "\u200d"
hostile = st.text(
    st.sampled_from("\x1b[]0;1m8:PX^_\\?A(c\x07\x08\r\n\t\x7f\x9b\x9d\u202e\u2066\u200b\u200d e")
    | st.characters(),
    max_size=30,
)


@given(hostile)
@settings(max_examples=examples(500))
def test_of_all_that_a_text_holds_only_colours_reach_the_terminal(text: str) -> None:
    assert "\x1b" not in visible_text.plain(text)
    shown = visible_text.for_terminal(text)
    colours = [part for part in shown.split("\x1b")[1:]]
    assert all(
        part.startswith("[") and set(part[1 : part.index("m")]) <= {*"0123456789;:"}
        for part in colours
    )
    for form in FORMS:
        controls = [
            character
            for character in form(text).replace("\x1b", "")
            if unicodedata.category(character) == "Cc"
        ]
        assert {*controls} <= {*"\t\n"}
        assert not {*form(text)} & {*"\u202e\u2066\u200b\u200e\u2028\ufeff"}
    assert "\n" not in visible_text.one_line(text) + shown


@given(hostile)
@settings(max_examples=examples(300))
def test_json_says_the_same_and_hides_nothing(text: str) -> None:
    escaped = visible_text.in_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(escaped) == text
    assert not {*escaped} & {*"\u202e\u2066\u200b\x9b\x7f"}


def test_letters_that_need_joiners_and_emojis_stay_as_they_are() -> None:
    family = f"👩{ZWJ}👩{ZWJ}👧 ❤\ufe0f क्\u200dष 漢字 ─█▌"
    assert [form(family) for form in FORMS] == [family] * 3


def test_an_order_that_would_be_read_wrongly_is_shown_by_its_numbers() -> None:
    assert visible_text.plain("a\u202eb\u2066c\U000e0041d\x85") == (
        "a<U+202E>b<U+2066>c<U+E0041>d<U+0085>"
    )


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[32mok\x1b[0m", "\x1b[32mok\x1b[0m"),
        ("\x1b[32mok", "\x1b[32mok\x1b[0m"),
        ("50%\x1b[A\x1b[2K", "50%"),
        ("a\x1b]52;c;aGk=\x07b\x1b]8;;http://x\x1b\\c", "abc"),
        ("\x1b]0;no end", "␛]0;no end"),
        ("seen \x1b[8mhidden", "seen hidden"),
        (
            "\x1b[38;5;8mgrey\x1b[m \x1b[38:5:8mgrey\x1b[m",
            "\x1b[38;5;8mgrey\x1b[m \x1b[38:5:8mgrey\x1b[m",
        ),
        ("\x1b[>4;2mx", "x"),
        ("|\x08/\x08\r", "|␈/␈␍"),
    ],
)
def test_a_line_for_a_terminal(line: str, shown: str) -> None:
    assert visible_text.for_terminal(line) == shown


def test_a_row_is_cut_by_columns_and_keeps_the_end_of_its_colours() -> None:
    row = visible_text.for_terminal("\x1b[32m漢字 12\t3")
    assert visible_text.cut(row, 6) == "\x1b[32m漢字 1\x1b[0m"
    assert visible_text.cut(row, 3) == "\x1b[32m漢\x1b[0m"
    assert visible_text.cut("a\u0301b", 1) == "a\u0301"


def test_an_error_is_text_that_does_nothing() -> None:
    problem = NotFound("no job \x1b]0;x\x07named \u202e", hint="line\x1b[2J two")
    assert str(problem) == "no job named <U+202E>\nline two"
    assert problem.body()["message"] == problem.message


@pytest.mark.parametrize(
    "part", ["\x1b]", "\x1b[1", "\x1b[", "\x1b ", "\x1b[0 ", "\x1bP\\", "\x9b", "\x1b[m"]
)
def test_a_text_of_megabytes_takes_a_moment(part: str) -> None:
    text = part * (2**18 // len(part)) + "\x1b]" + "x" * 2**20
    begin = time.thread_time()
    for form in FORMS:
        form(text)
    assert time.thread_time() - begin < 10, "seconds of CPU, where a square would take hours"
