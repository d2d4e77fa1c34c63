"""The text that the webhook of a job (`notify`) gets. `notifications` sends it."""

from typing import Any, Literal

from client_lib.spec.wire import JobInfo
from client_lib.spec.wording import summary

Told = Literal["ended", "hangs", "moves", "alarm"]
"""Events that the webhook of a job gets."""


def message_of(info: JobInfo, event: Told) -> dict[str, Any]:
    """The notification of a job in its present state."""
    fields = {name: getattr(info, name) for name in ("owner", "state", "reason", "attempt")}
    return {
        "text": summary(info),
        "event": event,
        "id": f"{info.id}-{info.version}",
        "job": info.name,
        "attention": [each.model_dump() for each in info.attention],
        **fields,
    }
