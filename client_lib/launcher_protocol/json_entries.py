"""The bound on the entries of JSON that the server takes, from users and from workers."""

from typing import Union

ENTRIES_MAX = 200_000
"""Most commas and opening brackets: the JSON has no more lists, objects and entries. While `json`
parses them, 0.1 s, the server answers no other request."""


def entries(text: Union[bytes, str]) -> int:
    """The commas and opening brackets of JSON, also those in its texts."""
    if isinstance(text, bytes):
        return text.count(b",") + text.count(b"[") + text.count(b"{")
    return text.count(",") + text.count("[") + text.count("{")
