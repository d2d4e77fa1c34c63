"""Reads the digest that a worker leaves in its container's termination message: the report, as far as it fits. Pure."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport


def read_digest(message: str) -> dict[str, Any] | None:
    """A report that `verdict` can judge; None: the message is none of ours, or damaged."""
    try:
        data = json.loads(message)
    except ValueError:
        return None
    return data if isinstance(data, dict) and is_report(data) else None


def is_report(data: dict[str, Any]) -> bool:
    """Whether this is a report, complete or cut."""
    if not all(isinstance(data.get(key), str) for key in ("reason", "message", "ended_at")):
        return False
    if data["reason"] not in {reason.value for reason in Reason} or not isinstance(data.get("exit_code"), int):
        return False
    ranks = data.setdefault("ranks", [])
    try:
        return isinstance(ranks, list) and all(RankReport.model_validate(rank) is not None for rank in ranks)
    except ValidationError:
        return False
