"""Replays golden files: recorded requests on a server of today, recorded answers on a client of
today. What differs is told in sentences that name the file and the field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import requests

from tests.compat import golden
from tests.compat.conversations import ALL
from tests.compat.golden import Answer, Conversation, Exchange, Happening, Json, Request, StandIns
from tests.compat.sockets import OldServer
from tests.compat.stage import Stage, user_of
from tests.http.conftest import Api

PROSE = {"message", "hint", "meaning", "fix", "notices", "retry", "description"}
"""Fields for people: a later version may word them in another way."""
VOLATILE = {"version", "commit"}
"""Fields of a server and its data that differ from version to version."""
WAY_OUT = (
    "Clients and servers one minor version apart work together, so keep what was recorded. If no "
    "release has it yet, record again: python -m tests.compat.record VERSION. "
    "See docs/compatibility.md"
)


def on_server(conversation: Conversation, folder: Path) -> Iterator[str]:
    """Send the recorded requests to a server of today; the differences of its answers."""
    stage = Stage.in_folder(folder)
    stand_ins = stage.stand_ins(folder, stage.url)
    ann = stage.as_user("ann")
    try:
        with user_of(stage.url, stage.tokens["ann"], folder, stage.happens):
            for number, step in enumerate(conversation.steps, start=1):
                if isinstance(step, Happening):
                    try:
                        stage.happens(*step.words)
                    except AssertionError as problem:
                        yield f"step {number}, {' '.join(step.words)}: {problem}"
                        return
                    continue
                answer = _send(ann, _as_now(step.request, stand_ins))
                for difference in _differences_of(step, answer, stand_ins):
                    yield f"step {number}, {step.title}: {difference}"
    finally:
        stage.stop()


def on_client(name: str, conversation: Conversation, folder: Path) -> Iterator[str]:
    """Hold the conversation with the recorded answers; the differences of what the user sees."""
    with (
        OldServer(conversation.steps) as server,
        user_of(server.url, "token-of-ann", folder, server.happens) as user,
    ):
        shown = json.loads(json.dumps(ALL[name](user)))
    yield from differences(conversation.shown, shown, StandIns({}), "shown")


def differences(recorded: Json, now: Json, stand_ins: StandIns, where: str = "") -> Iterator[str]:
    """Yield a sentence for each value of `recorded` that `now` lacks or has otherwise. `stand_ins`
    learns the ids of `now`.
    """
    was = _kind(recorded)
    kind = _kind(now)
    if isinstance(recorded, str) and isinstance(now, str):
        stand_ins.learn(recorded, now)
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name, value in recorded.items():
            place = f"{where}.{name}" if where else name
            if name not in now:
                yield f"`{place}` is missing"
            elif name in PROSE | VOLATILE:
                if _kind(now[name]) != _kind(value):
                    yield f"`{place}` is {_kind(now[name])} and was {_kind(value)}"
            else:
                yield from differences(value, now[name], stand_ins, place)
    elif isinstance(recorded, list) and isinstance(now, list):
        if len(recorded) != len(now):
            yield f"`{where}` has {len(now)} entries and had {len(recorded)}"
        for number, (value, other) in enumerate(zip(recorded, now, strict=False)):
            yield from differences(value, other, stand_ins, f"{where}[{number}]")
    elif kind != was:
        yield f"`{where}` is {kind} and was {was}"
    elif now != (stand_ins.take_out(recorded) if isinstance(recorded, str) else recorded):
        yield f"`{where}` is {now!r} and was {recorded!r}"


def _kind(value: Json) -> str:
    """The type of a value in JSON, with its article."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")


def _differences_of(recorded: Exchange, now: Answer, stand_ins: StandIns) -> Iterator[str]:
    was = recorded.answer
    if now.status != was.status:
        yield f"the status is {now.status} and was {was.status}: {now.body}"
        return
    for name, value in was.headers.items():
        if now.headers.get(name) != value:
            yield f"the header {name} is {now.headers.get(name)!r} and was {value!r}"
    yield from differences(_parsed(was.body), _parsed(now.body), stand_ins)


def _parsed(body: golden.Body) -> Json:
    """A body whose lines are split in text and JSON, if they hold an object."""
    if "lines" not in body:
        return body.get("json", dict(body))
    return [_split(line) for line in body["lines"]]


def _split(line: str) -> Json:
    text, brace, rest = line.partition("{")
    try:
        return [text, json.loads(brace + rest)]
    except ValueError:
        return [line]


def _as_now(request: Request, stand_ins: StandIns) -> Request:
    """The request with the values of this run."""
    text = json.dumps(request._asdict(), ensure_ascii=False)
    return Request(**json.loads(stand_ins.take_out(text)))


def _send(ann: Api, request: Request) -> Answer:
    _prove(request.body)
    answer: requests.Response = ann(
        request.method,
        request.path,
        params=request.query,
        headers=request.headers,
        data=golden.bytes_of(request.body),
    )
    headers = {name.title(): value for name, value in answer.headers.items()}
    return Answer(answer.status_code, headers, golden.body_of(answer.content, headers))


def _prove(body: golden.Body) -> None:
    """Write the file by which a client shows that it shares a folder with the server."""
    sent = body.get("json", {})
    proof = sent.get("request", sent).get("code", {}).get("proof")
    if proof:
        Path(proof["path"]).write_text(proof["nonce"])
