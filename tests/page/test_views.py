"""Views of jobs without a server: every text of a user is shown as text."""

import json
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from client_lib.errors import InvalidRequest
from client_lib.reports import explanation, table as columns
from client_lib.reports.difference import JobDiff
from client_lib.spec.job import Condition
from client_lib.spec.request import CodeSnapshot, Provenance
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import (
    Check,
    Event,
    GroupInfo,
    InstanceType,
    JobInfo,
    Membership,
    OutputFile,
    OutputLeftOut,
    ServerInfo,
    WarmPoolInfo,
)
from server_stub.files.snapshot_files import SnapshotFile
from server_stub.http.page import views
from server_stub.service.lifecycle import DELETED
from server_stub.users import User
from tests.spec.test_answers import NEWER, info

NOW = datetime(2026, 11, 22, 10, 5, tzinfo=timezone.utc)
SHARED: dict[str, Any] = {
    "base": "../",
    "csrf": "c" * 64,
    "user": User("ann", admin=True),
    "now": NOW,
}
MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&lt;{{ 7*7 }}"


class Page(HTMLParser):
    """Tags, attributes that could run something, and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def job_page(job: JobInfo, events: list[Event], **more: Any) -> str:
    kept = {"files": [], "left_out": [], "in_place": None, "types": [], **more}
    return views.render("job.html", **SHARED, **views.job(job, events, NOW), **kept)


def of_texts(text: str) -> str:
    """The pages of a job whose every text is this one."""
    texts = {
        "script": text,
        "args": [text],
        "labels": {"k": text},
        "env_variables": {"A": text},
        "job_desc": text,
    }
    failure = {"rank": 1, "exception": text, "last_lines": [text], "hint": text, "meaning": text}
    worker = {"worker": 0, "state": text, "host": text, "message": text}
    job = info(
        name=text,
        owner=text,
        message=text,
        failure=failure,
        notices=[text],
        stacks=[text],
        workers=[worker],
    )
    # also what no request may hold
    job = job.model_copy(update={"spec": job.spec.model_copy(update=texts)})
    event = Event(time=NOW, attempt=1, state=State.FAILED, reason=Reason.EXIT_CODE, message=text)
    file = OutputFile(path=text, size=1, sha256="0" * 64, modified_at=NOW, attempt=1, worker=0)
    left_out = OutputLeftOut(path=text, size=1, why=text, worker=0)
    of_group = {"name": text, "id": "i", "index": 0}
    member = job.model_copy(update={"group": Membership.model_validate(of_group)}).model_dump(
        mode="json"
    )
    group = GroupInfo(
        name=text, id="i", owner=text, script=text, size=1, created_at=NOW
    ).model_dump(mode="json")
    rows = views.rows(
        {"jobs": [job.model_dump(mode="json")], "groups": [group]}, f"{text}/{text}", [member]
    )
    query = {"q": text, "owner": text}
    table = views.render(
        "jobs.html", **SHARED, rows=rows, next_cursor=text, query=query, opened=f"{text}/{text}"
    )
    problem = views.render("error.html", **SHARED, problem=InvalidRequest(text, hint=text))
    return (
        table
        + job_page(job, [event], files=[file], left_out=[left_out], in_place=text)
        + problem
        + of_code(job, text)
    )


def of_code(job: JobInfo, text: str) -> str:
    """The pages of code, of differences and of the server."""
    line = f" {text}".replace("\n", " ")
    shown = SnapshotFile(text, 1, "0" * 64, text)
    diff = JobDiff(text, text, {text: [text]}, {text: line})
    check, pool = (
        Check(name=text, ok=False, message=text, fix=text),
        WarmPoolInfo(python=text, state="ready"),
    )
    known = ServerInfo(version=text, runtime=text, user=text, data_dir=text, warm_pools=[pool])
    kind = InstanceType(name=text, gpus=0, cpu=1, memory_gib=1, description=text)
    packed = job.model_copy(
        update={"code": CodeSnapshot.model_construct(sha256="0" * 64, root=text, size=1)}
    )
    figures = {
        "jobs": {State.FAILED: 1},
        "followers": 0,
        "requests": 0,
        "errors": 0,
        "free_bytes": 0,
    }
    ran = Provenance.model_construct(commit=text, branch=text, remote=text, diff=line)
    pages: list[tuple[str, dict[str, Any]]] = [
        ("code.html", {"job": packed, "files": [shown], "chosen": shown}),
        ("code.html", {"job": job, "files": [], "ran": ran, "in_place": text}),
        ("difference.html", {"name": text, "owner": text, "diff": diff}),
        ("difference.html", {"name": text, "owner": text, "diff": None, "failed": False}),
        ("server.html", {"info": known, "checks": [check], "types": [kind], "figures": figures}),
    ]
    return "".join(views.render(template, **SHARED, **view) for template, view in pages)


PLAIN = Page(of_texts("x"))


@given(
    st.text(min_size=1, max_size=60)
    | st.sampled_from([MARKUP, "javascript:alert(1)", "\x00", "</title>", "--><b>", "`<b>`"])
)
def test_no_text_of_a_user_becomes_markup(text: str) -> None:
    found = Page(of_texts(text))
    assert [tag for tag in found.tags if tag != "code"] == [
        tag for tag in PLAIN.tags if tag != "code"
    ]
    assert [name for name, _ in found.attributes] == [name for name, _ in PLAIN.attributes]
    for name, value in found.attributes:
        assert not (
            name in ("href", "src", "action")
            and (value or "").lower().startswith(("javascript:", "data:"))
        )


def test_markup_is_shown_as_it_was_written() -> None:
    assert Page(of_texts(MARKUP)).text.count(MARKUP) >= 40


@pytest.mark.parametrize("template", ["login.html", "error.html"])
def test_what_a_hint_has_between_backticks_is_code(template: str) -> None:
    page = views.render(
        template, **SHARED, problem=InvalidRequest("no", hint="`a <b>` makes a link; ` is no code")
    )
    assert "<code>a &lt;b&gt;</code> makes a link; ` is no code" in page


def test_no_page_has_a_script_or_a_style_of_its_own() -> None:
    assert "style" not in PLAIN.tags
    assert not [name for name, _ in PLAIN.attributes if name == "style" or name.startswith("on")]
    assert PLAIN.tags.count("script") == sum(name == "src" for name, _ in PLAIN.attributes)


def test_a_state_and_a_reason_of_a_newer_version_are_shown() -> None:
    seen = info(**NEWER)
    event = Event.model_validate(NEWER | {"time": seen.created_at, "attempt": 1, "message": "m"})
    page = Page(job_page(seen, [event])).text
    assert "is SUSPENDED (SomethingNew)" in page
    assert "frozen" in page


def test_the_page_begins_with_the_sentence_of_explain_and_its_next_step() -> None:
    page = Page(
        job_page(
            info(failure={"rank": 3, "exit_code": 1, "last_lines": ["a line"], "hint": "do so"}), []
        )
    ).text
    assert "job train-x7k2m FAILED (ExitCode): rank 3 ended with exit code 1" in page
    assert "the log below (rank 3) shows its output" in page
    assert "do so" in page


def test_colours_of_a_terminal_are_not_shown_as_text() -> None:
    red = "loss is \x1b[31mtoo large\x1b[0m for lr"
    page = Page(
        job_page(info(message=red, failure={"rank": 0, "exit_code": 1, "exception": red}), [])
    )
    assert ("\x1b" in page.text, "loss is too large for lr" in page.text) == (False, True)


def test_secrets_stay_masked() -> None:
    spec = {"script": "train.py", "env_variables": {"HF_TOKEN": "***", "MODE": "fast"}}
    page = Page(job_page(info(spec=spec), [])).text
    assert "***" in page
    assert "fast" in page


def test_a_running_job_shows_how_much_is_done() -> None:
    progress = {
        "done": 0.455,
        "left_s": 720,
        "left_from_s": 600,
        "left_to_s": 900,
        "rate": 1,
        "metrics": {"loss": 0.25},
    }
    running = info(
        state="RUNNING", reason="Running", message="", failure=None, started_at=NOW.isoformat()
    )
    job = json.loads(running.model_dump_json()) | {"progress": progress}
    table = views.render("jobs.html", **SHARED, rows=[job], query={})
    assert all(text in Page(table).text for text in ("45%", "12 min left", "loss 0.25"))
    assert "12 min left" in Page(job_page(JobInfo.model_validate(job), [])).text


def test_the_page_shows_the_columns_that_the_list_names(monkeypatch: pytest.MonkeyPatch) -> None:
    job = json.loads(info(name="train-1").model_dump_json())
    # a promise of the template: a column that has no look of its own there is shown as text
    monkeypatch.setattr(columns, "PAGE", ("NAME", "REASON"))
    shown = Page(views.render("jobs.html", **SHARED, rows=[job], query={})).text
    assert "JobReason train-1" in " ".join(shown.split())
    assert job["reason"] in shown


def test_a_retry_that_went_well_is_a_note_beside_the_other_facts() -> None:
    ended = {"state": "SUCCEEDED", "reason": "Completed", "message": "", "failure": None}
    page = job_page(info(**ended, attempt=2, retry="1 of 3 retries"), [])
    assert "attempt 2, 1 of 3 retries" in page
    assert "attention" not in page.replace('data-attention=""', "")
    assert "attempt" not in Page(job_page(info(**ended, attempt=1), [])).text


LOST = {"code": "loss", "sentence": "loss was NaN on rank 1 from step 5 (rank 0: finite)"}


def test_a_job_that_deserves_attention_has_a_dot_a_title_and_an_icon_of_its_own() -> None:
    facts = {"state": "SUCCEEDED", "reason": "Completed", "message": "", "failure": None}
    lost = info(**facts, attention=[LOST])
    page = job_page(lost, [])
    assert '<span class="state succeeded attention">' in page
    assert "<title>⚠ train-x7k2m · client_lib</title>" in page
    assert 'href="../static/attention.svg"' in page
    assert "; loss was NaN on rank 1 from step 5 (rank 0: finite)" in Page(page).text
    job = json.loads(lost.model_dump_json())
    group = GroupInfo(
        name="scan",
        id="i",
        owner="ann",
        script="train.py",
        size=1,
        created_at=NOW,
        attention=[{"code": "loss", "sentence": f"scan-0: {LOST['sentence']}"}],
    ).model_dump(mode="json")
    rows = views.rows({"jobs": [job], "groups": [group]}, "", [])
    table = views.render("jobs.html", **SHARED, rows=rows, query={})
    assert table.count(' attention">') == 2
    assert Page(table).text.count(LOST["sentence"]) == 2
    healthy = job_page(info(**facts), [])
    assert "attention" not in healthy.replace('data-attention=""', "")
    assert "⚠" not in healthy


ENDS = (None, State.SUCCEEDED, State.FAILED, State.CANCELLED, DELETED)


@pytest.mark.parametrize("state", State)
def test_the_page_of_each_state_reason_and_kind_of_dependency_renders(state: State) -> None:
    jobs = [info(state=state, reason=reason, failure=None) for reason in Reason]
    jobs += [
        info(
            state=state,
            reason=reason,
            failure=None,
            dependencies=[{"name": "first", "id": "i", "condition": condition, "ended": ended}],
        )
        for reason in (Reason.QUEUED, Reason.RUNNING, Reason.DEPENDENCY_FAILED)
        for condition in get_args(Condition)
        for ended in ENDS
    ]
    rows = [json.loads(job.model_dump_json()) for job in jobs]
    assert views.render("jobs.html", **SHARED, rows=rows, query={}).count("<tr data-name") == len(
        jobs
    )
    for job in jobs:
        event = Event(time=NOW, attempt=1, state=state, reason=job.reason, message=job.message)
        page = Page(job_page(job, [event]))
        assert f"{job.name} {state.lower()}" in " ".join(page.text.split())
        for spelling in (views.SPELLING, explanation.SHELL, explanation.PYTHON):
            step = explanation.explain(job, [event], NOW, spelling)[-1]
            assert step.kind == "next"
            assert "{" not in step.text


def test_an_empty_table_says_how_to_begin_or_that_nothing_matches() -> None:
    assert "client-lib submit" in views.render("jobs.html", **SHARED, rows=[], query={})
    assert "No job matches" in views.render(
        "jobs.html", **SHARED, rows=[], query={"state": "FAILED"}
    )


def test_the_form_of_the_table_becomes_filters() -> None:
    wanted = views.filters({"q": "train team=vision a=b=c", "state": "FAILED", "owner": "*"})
    assert (wanted.name_prefix, wanted.labels) == ("train", {"team": "vision", "a": "b=c"})
    assert (wanted.states, wanted.owners) == ((State.FAILED,), ("*",))
    with pytest.raises(InvalidRequest, match="PENDING"):
        views.filters({"state": "failed?"})


def event(second: int, state: State, attempt: int = 1) -> Event:
    return Event(
        time=NOW + timedelta(seconds=second),
        attempt=attempt,
        state=state,
        reason=Reason.RUNNING,
        message="",
    )


def test_the_timeline_has_a_bar_for_each_state_of_each_attempt() -> None:
    events = [
        event(0, State.PENDING),
        event(10, State.RUNNING),
        event(15, State.RUNNING),
        event(50, State.RESTARTING),
        event(60, State.RUNNING, attempt=2),
    ]
    shown = [
        (bar["event"].state, bar["x"], bar["width"])
        for bar in views.bars(events, NOW + timedelta(seconds=100))
    ]
    assert shown == [
        ("PENDING", 0, 100),
        ("RUNNING", 100, 400),
        ("RESTARTING", 500, 100),
        ("RUNNING", 600, 400),
    ]


@given(
    st.lists(
        st.tuples(st.integers(-5, 10**6), st.sampled_from(list(State)), st.integers(1, 3)),
        max_size=8,
    )
)
def test_the_bars_lie_in_the_timeline_whatever_the_clocks_say(
    changes: list[tuple[int, State, int]],
) -> None:
    for bar in views.bars([event(*change) for change in changes], NOW):
        assert 0 <= bar["x"] <= 1000
        assert 3 <= bar["width"] <= 1000
