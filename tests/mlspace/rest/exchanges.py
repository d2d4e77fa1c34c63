"""Golden exchanges with the platform's API: stories of requests and their answers, as JSON files.

The steps of a story happen in their order on a server of its own. A step is an exchange: a
`request` of the user `as` (null: without a token; absent: ann), the `answer`, and in `mls` the
command line of the platform that sends this request. Or a step lets the runtime of a job say
something, and waits until the job has the status `until`.

What differs from run to run has a placeholder: `<job 1>`, `<uid 1>`, `<token of ann>`, times.

`python -m tests.mlspace.rest.exchanges` writes the answers anew, for a look at the difference.
"""

import json
import re
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import requests

from client_lib.spec.states import Reason
from tests.http.conftest import Running
from tests.mlspace.rest.conftest import Platform, act, platform, until

GOLDEN = Path(__file__).parent / "golden"
STORIES = sorted(path.stem for path in GOLDEN.glob("*.json"))
LINE = 96
"""Characters of a line of the files."""

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_JOB = re.compile("lm-mpi-job-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_UNIX = "<unix time>"
_UNIX_TEXT = "<unix time as text>"
_ISO = "<ISO 8601>"
_DURATION = "<duration>"
_WORDS = "<words of pydantic>"
_NEAR_S = 600
"""The largest difference between a time of an answer and now."""

Step = dict[str, Any]


def steps(story: str) -> list[Step]:
    found: list[Step] = json.loads((GOLDEN / f"{story}.json").read_text())
    return found


def exchanges() -> list[tuple[str, Step]]:
    """Each exchange of the stories, with the name of its story."""
    return [(story, step) for story in STORIES for step in steps(story) if "request" in step]


class Volatile:
    """Values that differ from run to run, and their placeholders."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """`values`: those that are known, by placeholder."""
        self._values = dict(values)

    def shown(self, value: Any) -> Any:
        """`value` with values in place of placeholders."""
        text = json.dumps(value)
        for placeholder, real in self._values.items():
            text = text.replace(f'"{placeholder}"', json.dumps(real))
            text = text.replace(placeholder, str(real))
        return json.loads(text)

    def hidden(self, value: Any, key: str = "", *, began: bool = True) -> Any:
        """`value` with placeholders in place of values. `key`: its name, in an object whose job
        `began`."""
        if isinstance(value, dict):
            has_begun = bool(value.get("running_at", value.get("status") != "Pending"))
            return {
                name: self.hidden(inner, name, began=has_begun) for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self.hidden(inner, key, began=began) for inner in value]
        if isinstance(value, str):
            return self._hidden_text(value, key, began=began)
        if key.endswith("_at") and value:
            assert isinstance(value, int)
            assert abs(value - time.time()) < _NEAR_S, (key, value)
            return _UNIX
        return value

    def _hidden_text(self, text: str, key: str, *, began: bool) -> str:
        if key == "msg":
            return _WORDS
        if key == "uid" and re.fullmatch(_UUID, text):
            return self._placeholder("uid", text)
        if key == "deleted_at":
            assert abs(int(text) - time.time()) < _NEAR_S, text
            return _UNIX_TEXT
        if key.endswith("_dt"):
            # the form of the platform, to the letter: whole seconds
            then = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
            assert abs(then.timestamp() - time.time()) < _NEAR_S, text
            return _ISO
        if key == "duration" and began:
            assert re.fullmatch(r"\d+s", text), text
            return _DURATION
        text = _JOB.sub(lambda found: self._placeholder("job", found[0]), text)
        for placeholder, real in self._values.items():
            text = text.replace(real, placeholder)
        return text

    def _placeholder(self, kind: str, real: str) -> str:
        for placeholder, known in self._values.items():
            if known == real:
                return placeholder
        placeholder = f"<{kind} {1 + sum(name.startswith(f'<{kind} ') for name in self._values)}>"
        self._values[placeholder] = real
        return placeholder


def played(story: str, server: Running) -> list[Step]:
    """The steps of a story with the answers that this server gives."""
    server.runtime.stops_at_once = False
    volatile = Volatile({f"<token of {name}>": token for name, token in server.tokens.items()})
    return [_played(step, server, volatile) for step in steps(story)]


def _played(step: Step, server: Running, volatile: Volatile) -> Step:
    wanted = volatile.shown(step)
    if "request" in step:
        answer = send(wanted["request"], platform(server, step.get("as", "ann")))
        return {**step, "answer": volatile.hidden(_answer(answer))}
    said = [Reason(wanted["reason"]), wanted["message"]] if "reason" in step else []
    act(server, wanted["job"], wanted["runtime"], *said)
    until(platform(server, "ann"), wanted["job"], wanted["until"])
    return step


def send(request: Step, user: Platform) -> requests.Response:
    method, _, path = request["line"].partition(" ")
    return user(
        method,
        path,
        json=request.get("json"),
        data=request.get("text"),
        headers=request.get("headers"),
    )


def _answer(answer: requests.Response) -> dict[str, Any]:
    kind = answer.headers["Content-Type"]
    body = answer.json() if kind == "application/json" else answer.text
    return {"status": answer.status_code, "content_type": kind, "body": body}


def text(value: Any, indent: str = "", used: int = 0) -> str:
    """JSON for readers: what fits a line is on one. `used`: characters of the line before it."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + used + len(line) < LINE or not isinstance(value, (dict, list)):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [
            f"{inner}{json.dumps(name)}: {text(part, inner, len(name) + 4)}"
            for name, part in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    parts = [inner + text(part, inner) for part in value]
    return "[\n" + ",\n".join(parts) + f"\n{indent}]"


def main() -> None:
    for story in STORIES:
        with tempfile.TemporaryDirectory() as folder:
            server = Running(Path(folder))
            try:
                (GOLDEN / f"{story}.json").write_text(text(played(story, server)) + "\n")
            finally:
                server.stop()


if __name__ == "__main__":
    main()
