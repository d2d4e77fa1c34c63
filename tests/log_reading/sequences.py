"""Sequences of characters beside text that a hostile or careless log may hold."""

_CURSOR = "[A [3A [H [1;1H [1G [5D [2B [3;5r [6n M 7 8 D E"
_ERASED = "[2J [K [2K [4S [2T [3L [2M [9P c"
_MODES = "[?1049h [?25l [>4;2m [!p (0 #8 ="
_STRINGS = "]0;title\x07 ]52;c;aGk=\x07 ]52;c;aGk=\x1b\\ ]8;;x:y\x1b\\ P1$q\x1b\\"
_WITHOUT_END = "]0;none _none [ [12"
_CONCEALED = "[8m [0;8m [38;5;8m"
_C0 = "\x1b \x00 \x07 \x08\x08 \x0b \x0c \x0e \x0f \x7f"
_C1 = "\x9b2J \x9b3A \x9d0;t\x9c \x85 \x84 \x8d"
_INVISIBLE = "\u202e \u2066 \u200b \u2028 \ufeff \U000e0041"
_ESCAPED = (_CURSOR, _ERASED, _MODES, _STRINGS, _WITHOUT_END, _CONCEALED)

SEQUENCES = [
    *(f"\x1b{each}" for kind in _ESCAPED for each in kind.split(" ")),
    *(each for kind in (_C0, _C1, _INVISIBLE) for each in kind.split(" ")),
]
COLOURS = ["\x1b[31m", "\x1b[1;38;5;208m", "\x1b[0m", "\x1b[m", "\x1b[48;2;1;2;3m", "\x1b[7m"]
