"""The lines that a reader wants: parameters of a request, checked. `since` is read by the clock."""

import re
from datetime import datetime, timedelta, timezone
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from typing_extensions import Self  # of the standard library from Python 3.11 on

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.record import STREAMS
from client_lib.spec.paths import Position, parse_cursor

MAX_TAIL = 1_000_000
MAX_CONTEXT = 1000
MAX_EXPRESSION = 1000
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _known_stream(name: str) -> str:
    if name not in STREAMS:
        raise ValueError(f"is unknown; there are: {', '.join(STREAMS)}")
    return name


_Since = Annotated[str, AfterValidator(lambda text: parse_since(text, datetime.now(timezone.utc)))]
_Cursor = Annotated[
    dict[Position, int],
    BeforeValidator(lambda given: parse_cursor(given) if isinstance(given, str) else given),
    WithJsonSchema({"type": "string"}),
]


def _as_list(schema: JsonDict) -> None:
    """Describe a set as a list: a value that is given twice is accepted."""
    schema.pop("uniqueItems")


class LogQuery(BaseModel):
    """The parameters of `GET /jobs/{name}/logs`. A value that can't be read, and two fields that
    exclude each other, raise pydantic's ValidationError; it holds the InvalidRequest for the
    client."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    follow: bool = Field(False, description="Stay until the job is final and every line was sent.")
    cursor: _Cursor = Field(
        default_factory=dict, description="Continue here: attempt.worker:offset, joined by commas."
    )
    """If it is not empty, an earlier answer has applied `tail`."""
    before: _Cursor | None = Field(
        None,
        description="End here, at a cursor; with `tail` the page before it. "
        "Without `follow`, `grep`.",
    )
    """Logs that the cursor does not name are not read at all."""
    tail: int | None = Field(
        None, ge=0, le=MAX_TAIL, description="Begin with this many last lines."
    )
    since: _Since | None = Field(
        None, description="RFC 3339, or how long ago: 90, 30s, 10m, 2h, 1d."
    )
    """Once read, a time stamp (client_lib.launcher_protocol.record)."""
    ranks: frozenset[Annotated[int, Field(ge=0)]] = Field(
        frozenset(), alias="rank", description="Only these ranks.", json_schema_extra=_as_list
    )
    """Empty: every rank, and the lines of no rank."""
    streams: frozenset[Annotated[str, AfterValidator(_known_stream)]] = Field(
        frozenset(), alias="stream", description="Only these streams.", json_schema_extra=_as_list
    )
    attempt: int | None = Field(
        None, ge=1, description="Only this attempt; default: all, in order."
    )
    timestamps: bool = Field(False, description="Text: the time before each line.")
    grep: str | None = Field(
        None, description="Only lines with this regular expression; without `follow` and `cursor`."
    )
    context: int = Field(
        0, ge=0, le=MAX_CONTEXT, description="With `grep`: lines of the same rank before and after."
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.grep is not None:
            if len(self.grep) > MAX_EXPRESSION:
                raise InvalidRequest(f"grep is longer than {MAX_EXPRESSION} characters")
            if self.follow or self.cursor:
                raise InvalidRequest(
                    "grep searches the lines that there are: it takes no follow and no cursor"
                )
        if self.before is not None and (self.follow or self.grep is not None):
            raise InvalidRequest("before reads older lines: it takes no follow and no grep")
        return self


def parse_since(text: str, now: datetime) -> str:
    """The stamp that `text` means: an RFC 3339 time, or how long ago (`90`, `30s`, `10m`, `2h`,
    `1d`). A time without an offset is UTC. Raises InvalidRequest."""
    duration = _DURATION.fullmatch(text.strip())
    try:
        if duration:
            time = now - timedelta(seconds=float(duration[1]) * _SECONDS[duration[2]])
        else:
            time = datetime.fromisoformat(
                text.strip().replace("Z", "+00:00").replace("z", "+00:00")
            )
            time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
        return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"since={text!r} is neither a time nor a duration",
            hint="write 2026-11-21T10:58:55Z, or how long ago: 30s, 10m, 2h, 1d",
        ) from error
