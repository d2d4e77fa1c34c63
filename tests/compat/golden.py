"""The golden files: conversations of one user with a server, as readable JSON.

A conversation is a list of steps. A step is something that happens to a job, as the runtime would
report it, or an exchange: a request of the client and the answer of the server.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from client_lib.spec import paths

FOLDER = Path(__file__).parent / "golden"
"""Has a folder for each recorded version, which has a file for each conversation."""

REQUEST_HEADERS = ("Accept", "Content-Type", paths.IDEMPOTENCY_KEY, "Range")
ANSWER_HEADERS = ("Content-Type", "Content-Range", "Retry-After")
_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{32}|[0-9a-f]{16})(?![0-9a-f])")
_FREE = re.compile(r"[0-9.]+ [MGT]B free")

Json = Any
Body = Mapping[str, Json]
"""The content of a body by its kind: {"json": ...}, {"lines": ...}, {"base64": ...} or nothing."""


class Request(NamedTuple):
    """A request without its token: each is authorized."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Body


class Answer(NamedTuple):
    """The answer of the server."""

    status: int
    headers: dict[str, str]
    body: Body


class Exchange(NamedTuple):
    """A request and its answer."""

    request: Request
    answer: Answer

    @property
    def title(self) -> str:
        return f"{self.request.method} {self.request.path}"


class Happening(NamedTuple):
    """Something that happens to a job, such as `runs train`."""

    words: tuple[str, ...]


Step = Exchange | Happening


class Conversation(NamedTuple):
    """One file."""

    shown: Json
    """The data that the client showed its user."""
    steps: list[Step]


def body_of(content: bytes, headers: Mapping[str, str]) -> Body:
    """A body as the golden files hold it."""
    if not content:
        return {}
    if "json" in headers.get("Content-Type", "") and paths.NDJSON not in headers["Content-Type"]:
        return {"json": json.loads(content)}
    try:
        return {"lines": content.decode().splitlines(keepends=True)}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def bytes_of(body: Body) -> bytes:
    """The body that a golden file holds."""
    if "json" in body:
        return json.dumps(body["json"]).encode()
    if "base64" in body:
        return base64.b64decode(body["base64"])
    return "".join(body.get("lines", [])).encode()


def file_of(version: str, name: str) -> Path:
    return FOLDER / version / f"{name}.json"


def read(file: Path) -> Conversation:
    """The conversation of a golden file."""
    return parsed(file.read_text())


def parsed(text: str) -> Conversation:
    """The conversation in the text of a golden file."""
    stored = json.loads(text)
    return Conversation(stored["shown"], [_step(each) for each in stored["steps"]])


def as_text(conversation: Conversation) -> str:
    """The text of a golden file."""
    steps = [
        {"happens": list(step.words)}
        if isinstance(step, Happening)
        else {"request": step.request._asdict(), "answer": step.answer._asdict()}
        for step in conversation.steps
    ]
    stored = {"shown": conversation.shown, "steps": steps}
    return json.dumps(stored, indent=1, ensure_ascii=False) + "\n"


def _step(stored: Mapping[str, Any]) -> Step:
    if "happens" in stored:
        return Happening(tuple(stored["happens"]))
    return Exchange(Request(**stored["request"]), Answer(**stored["answer"]))


class StandIns:
    """Values that differ from run to run, and what stands for them in the golden files: fixed texts
    for places and secrets, numbers in the order of their appearance for ids. Each stand-in is a
    valid value of its kind, so that a recorded answer can be read as it is.
    """

    def __init__(self, fixed: Mapping[str, str]) -> None:
        """`fixed`: stand-ins by the values that they stand for."""
        self._fixed = dict(sorted(fixed.items(), key=lambda pair: -len(pair[0])))
        self._ids: dict[str, str] = {}

    def put_in(self, text: str) -> str:
        """The text with stand-ins in place of values."""
        for value, stand_in in self._fixed.items():
            text = text.replace(value, stand_in)
        return _ID.sub(self._numbered, _FREE.sub("9 GB free", text))

    def take_out(self, text: str) -> str:
        """The text with the values in place of stand-ins."""
        for value, stand_in in self._fixed.items():
            text = text.replace(stand_in, value)
        values = {stand_in: value for value, stand_in in self._ids.items()}
        return _ID.sub(lambda found: values.get(found[0], found[0]), text)

    def learn(self, recorded: str, now: str) -> None:
        """Learn the stand-in of each id in `now`: the id at the same place in `recorded`."""
        for stand_in, value in zip(_ID.findall(recorded), _ID.findall(now), strict=False):
            self._ids.setdefault(value, stand_in)

    def _numbered(self, found: re.Match[str]) -> str:
        number = f"{len(self._ids) + 1:x}"
        return self._ids.setdefault(found[0], number.zfill(len(found[0])))
