"""Text of others (lines of a log, names, messages) as a terminal or a page may show it: nothing in
such a text acts on the screen, or makes a line read as another one.

    part of a text                            `plain`             `for_terminal`
    colours and styles (SGR)                  left out            kept, and ended with the line
    other whole escape sequences              left out            left out
    every other control character             shown: ␛ ␇ ␈ ␍ ␡ <U+009B>, in both
    invisible characters, see below           shown: <U+202E>, in both

Whole sequences are left out because a terminal shows nothing of them either: movements of the
cursor, clears, titles, links, the clipboard (OSC 52). Of a sequence without an end every character
is shown. Invisible characters that are shown by their number: controls of direction, which let a
line read as another one; line ends that only some viewers know; spaces of no width, which make two
names look alike; tags and the selectors of variants from 17 on, into which a whole sentence fits.
Kept are the joiners U+200C and U+200D and the first 16 selectors: Persian, Hindi and emojis are
written with them. Pure, and standard library only.
"""

import json
import re
import unicodedata

_ESCAPES = re.compile(
    r"(\x1b\[[0-9;:]*m)"  # SGR, group 1
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: cursor, clears, modes
    r"|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC: titles, links, clipboard
    r"|\x1b[ -/]+[0-~]"  # choice of a character set
    r"|\x1b[0-OQ-WYZ\\`-~]"  # single functions: reset, one line up, save the cursor
)
# no two parts of it match the same character, and no part but the first matches ESC: a search takes
# a time in proportion to the text
_SGR = re.compile(r"(\x1b\[[0-9;:]*m)")
_RESETS = ("\x1b[0m", "\x1b[m")
_CONCEALED = 8
"""Parameter of SGR that makes text invisible."""
_COLOUR_FOLLOWS = (38, 48, 58)
"""Parameters of SGR after which a colour comes."""
_OF_COLOUR = {"5": 1, "2": 3}
"""Numbers of a colour, by the parameter that says its kind."""
_VARIANT_16 = "\ufe0f"
"""Draws the character before it as an emoji, which has two columns."""
_INVISIBLE = (
    (0x061C, 0x061C),  # Arabic letter mark
    (0x180E, 0x180E),  # Mongolian vowel separator
    (0x200B, 0x200B),  # zero width space
    (0x200E, 0x200F),  # left-to-right mark, right-to-left mark
    (0x2028, 0x202E),  # separators of lines and paragraphs, embeddings and overrides of direction
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates of direction
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFF9, 0xFFFB),  # annotations between lines
    (0xE0000, 0xE01EF),  # tags, selectors of variants from 17 on
)
_DELETE = "\x7f"
"""The one control character of ASCII that JSON lets stand as it is."""
_NUMBERED = ((0x80, 0x9F), *_INVISIBLE)
_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(0x20)},
    0x7F: "␡",
    **{code: f"<U+{code:04X}>" for first, last in _NUMBERED for code in range(first, last + 1)},
}
_IN_JSON = {
    ord(_DELETE): "\\u007f",
    **{
        code: json.dumps(chr(code))[1:-1]
        for first, last in _NUMBERED
        for code in range(first, last + 1)
    },
}
_IN_LINES = {code: shown for code, shown in _SHOWN.items() if code != ord("\t")}
_IN_TEXTS = {code: shown for code, shown in _IN_LINES.items() if code != ord("\n")}


def plain(text: str) -> str:
    """A text of any number of lines, without colours."""
    if _is_harmless(text):
        return text
    return _ESCAPES.sub("", text).replace("\r\n", "\n").translate(_IN_TEXTS)


def one_line(text: str) -> str:
    """A text as one line: a newline is shown too, and a tab is a space."""
    return plain(text.replace("\t", " ")).replace("\n", _SHOWN[ord("\n")])


def for_terminal(line: str) -> str:
    """A line of a log with its colours."""
    if _is_harmless(line):
        return line
    parts = _ESCAPES.split(line)
    parts[::2] = [text.translate(_IN_LINES) for text in parts[::2]]
    colours = ["" if not sgr or _conceals(sgr) else sgr for sgr in parts[1::2]]
    parts[1::2] = colours
    last = next(filter(None, reversed(colours)), _RESETS[0])
    return "".join(parts) + ("" if last in _RESETS else _RESETS[0])


def in_json(text: str) -> str:
    """The same JSON, in which what would not be seen is written as `\\u202e`."""
    return text if text.isascii() and _DELETE not in text else text.translate(_IN_JSON)


def cut(shown: str, columns: int) -> str:
    """The part of what `for_terminal` returned that fits into a row of a terminal, with all of its
    colours; each tab is a space."""
    parts = _SGR.split(shown.replace("\t", " "))
    for place in range(0, len(parts), 2):
        parts[place], columns = _fitting(parts[place], columns)
    return "".join(parts)


def _fitting(text: str, columns: int) -> tuple[str, int]:
    """The beginning of a text without escape sequences that fits, and the columns that it
    leaves."""
    if len(text) <= columns and text.isascii():
        return text, columns - len(text)
    for at, character in enumerate(text):
        left = columns - _columns_of(character)
        if left < 0:
            return text[:at], 0
        columns = left
    return text, columns


def _columns_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in ("W", "F"):
        return 2
    is_mark = unicodedata.category(character) in ("Mn", "Me", "Cf")
    return 0 if is_mark and character != _VARIANT_16 else 1


def _is_harmless(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _conceals(sgr: str) -> bool:
    parameters = iter(sgr[2:-1].split(";"))
    for parameter in parameters:
        number, has_more, _ = parameter.partition(":")
        code = int(number[-9:] or 0)
        if code == _CONCEALED:
            return True
        if code in _COLOUR_FOLLOWS and not has_more:
            for _ in range(_OF_COLOUR.get(next(parameters, ""), 0)):
                next(parameters, None)
    return False
