"""The end of a script, as its rank tells it: the place of an exit in a loop, and the collectives
that the rank made. Pure.

The rank runner writes the file, the launcher puts its content into the report, and the server
compares the ranks (`server_stub.runtimes.lost_peers`).
"""

import json
from typing import Any, Dict, NamedTuple, Optional

PLACES_MAX = 64
"""Most places of collectives."""
_TEXT_MAX = 200
"""Longest place, in characters."""


class ScriptEnd(NamedTuple):
    """The end of a rank's script, as the rank itself has told it."""

    exited_at: Optional[str] = None
    """The place, such as `train.py:7`, at which it left a loop by an exit; None: it did not."""
    group: str = ""
    """The process group in which it made most collectives."""
    collectives: int = 0
    """Number of the collectives in that group; 0: not known."""
    places: Dict[str, int] = {}
    """Places in the script that made the newest collectives of the group, and how many of them."""


def script_end_of_text(text: str) -> Optional[ScriptEnd]:
    """Read the file of a rank. None: there is no such file, or it holds something else."""
    try:
        return script_end_of_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def script_end_of_json(data: Any) -> Optional[ScriptEnd]:
    """Read the value of JSON, which may hold anything."""
    if not isinstance(data, dict):
        return None
    exited_at = data.get("exited_at")
    group = data.get("group")
    collectives = data.get("collectives")
    places = data.get("places")
    counts = list(places.items())[:PLACES_MAX] if isinstance(places, dict) else []
    return ScriptEnd(
        exited_at=exited_at[:_TEXT_MAX] if isinstance(exited_at, str) else None,
        group=group[:_TEXT_MAX] if isinstance(group, str) else "",
        collectives=_count(collectives),
        places={str(place)[:_TEXT_MAX]: _count(count) for place, count in counts},
    )


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0
