"""Records of several sources as whole lines: nothing is lost, and each source keeps its order."""

import re
from collections.abc import Iterable, Sequence

from hypothesis import given, settings, strategies as st

from client_lib.launcher_protocol.record import GOES_ON, LINE, PROGRESS
from client_lib.launcher_protocol.whole_lines import WholeLines
from tests.kit.examples import examples

SOURCES = ("a", "b")
Line = tuple[str, str, str]
"""Source, kind and text."""


def numbered(drawn: Iterable[tuple[str, str, int]]) -> list[Line]:
    """Each text has its number, so that its place can be told."""
    return [
        (source, kind, f"<{number}{'x' * length}>")
        for number, (source, kind, length) in enumerate(drawn)
    ]


records = st.lists(
    st.tuples(
        st.sampled_from(SOURCES), st.sampled_from([LINE, GOES_ON, PROGRESS]), st.integers(0, 5)
    ),
    max_size=30,
).map(numbered)


def out_of(given_records: Sequence[Line], most: int) -> list[Line]:
    whole = WholeLines[str, str, str](most)
    out = []
    for source, kind, text in given_records:
        out += whole.add(source, source, kind, text)
    out += whole.close()
    assert not whole.holds
    return out


def lines_of(source: str, given_records: Sequence[Line]) -> list[tuple[str, str]]:
    """Kind and text of each whole line of a source, and of the last of each run of progress."""
    lines: list[tuple[str, str]] = []
    begun = ""
    for each, kind, text in given_records:
        if each != source:
            continue
        begun += text
        if kind == GOES_ON:
            continue
        if kind == PROGRESS and lines and lines[-1][0] == PROGRESS:
            lines.pop()
        lines.append((kind, begun))
        begun = ""
    return [*lines, (LINE, begun)] if begun else lines


@given(records)
@settings(max_examples=examples(300))
def test_pieces_are_joined_and_of_a_run_of_progress_the_last_remains(drawn: list[Line]) -> None:
    out = out_of(drawn, 10**6)
    for source in SOURCES:
        own = [(kind, text) for each, kind, text in out if each == source]
        assert own == lines_of(source, drawn)


@given(records, st.integers(0, 30))
@settings(max_examples=examples(500))
def test_what_does_not_fit_is_given_out_in_its_order(drawn: list[Line], most: int) -> None:
    out = out_of(drawn, most)
    for source in SOURCES:
        text = "".join(text for each, _, text in out if each == source)
        assert all(line in text for _, line in lines_of(source, drawn))
        numbers = [int(number) for number in re.findall(r"<(\d+)", text)]
        assert numbers == sorted(numbers)
