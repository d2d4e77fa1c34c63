"""What a job looks like, and what is said of one that failed: pure functions of a JobInfo."""

import html
import pickle
import re
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given, strategies as st

from client_lib.errors import JobCancelled, JobFailed
from client_lib.reports import display, explanation
from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Attention, Failure, JobInfo, JobProgress
from tests.kit.jobs import job_info

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=timezone.utc)


def job_at_t0(
    state: State = State.RUNNING, reason: Reason = Reason.RUNNING, **more: Any
) -> JobInfo:
    usual: dict[str, Any] = {"spec": {"script": "train.py"}, "created_at": T0, "started_at": T0}
    return job_info("train-x7k2m", state, reason, **usual | more)


def failed(**failure: Any) -> JobInfo:
    return job_at_t0(State.FAILED, Reason.EXIT_CODE, failure=Failure(**failure))


def test_the_report_tells_who_failed_how_and_what_it_said_last() -> None:
    info = failed(
        worker=1,
        rank=3,
        exit_code=137,
        meaning="killed, most often out of memory",
        exception="MemoryError: no more",
        last_lines=[f"line {n}" for n in range(50)],
        hint="ask for less",
    )
    error = explanation.ended(info)
    assert isinstance(error, JobFailed)
    first, exception, head, *lines = error.message.splitlines()
    assert first == (
        "job train-x7k2m FAILED (ExitCode): rank 3 on worker 1 ended with exit code 137 "
        "(killed, most often out of memory)"
    )
    assert (exception, head) == ("MemoryError: no more", "The last lines of rank 3:")
    assert lines == [f"    line {n}" for n in range(30, 50)]
    assert (error.hint or "").splitlines() == [
        "hint: ask for less",
        "next: `job.logs(rank=3)` shows its output",
    ]
    assert error.info is info


def test_the_report_of_a_printed_log_does_not_repeat_it() -> None:
    info = failed(
        rank=0,
        exit_code=1,
        exception="MemoryError: no more",
        last_lines=["a", "MemoryError: no more"],
    )
    assert explanation.ended(info, printed=True).message.splitlines()[1:] == [
        "MemoryError: no more"
    ]


def test_ipython_shows_the_report_and_no_frames() -> None:
    shown = explanation.ended(failed(rank=0, exit_code=1))._render_traceback_()
    assert shown[0] == (
        "\x1b[1;31mJobFailed\x1b[0m: job train-x7k2m FAILED (ExitCode): rank 0 ended with "
        "exit code 1"
    )
    assert shown[1:] == ["next: `job.logs(rank=0)` shows its output"]


def test_a_failure_without_a_rank_tells_the_message() -> None:
    info = job_at_t0(State.FAILED, Reason.NODE_LOST, message="the machine was rebooted")
    assert explanation.as_text(explanation.failure_report(info)) == (
        "job train-x7k2m FAILED (NodeLost): the machine was rebooted"
    )
    assert explanation.advice(info)[0].text.startswith(
        "`client_lib.resubmit('train-x7k2m')` runs it again"
    )


def test_the_attempt_is_told_from_the_second_on() -> None:
    info = job_at_t0(State.FAILED, Reason.TIMEOUT, message="stop_timer", attempt=3)
    assert explanation.failure_report(info)[0].text.endswith("stop_timer in attempt 3")


def test_a_cancelled_job_is_told_as_cancelled() -> None:
    error = explanation.ended(job_at_t0(State.CANCELLED, Reason.CANCELLED, message="by ann"))
    assert isinstance(error, JobCancelled)
    assert error.message == "job train-x7k2m was cancelled (by ann)"
    assert "<b>job train-x7k2m was cancelled (by ann)</b>" in (error._repr_html_() or "")


def test_a_notebook_s_table_escapes_what_users_write() -> None:
    info = job_at_t0(message="<script>alert(1)</script>", spec=JobSpec(script="'<b>.py'"))
    shown = display.as_html(info, T0 + timedelta(seconds=75), note="<i>")
    assert "<script>" not in shown
    assert "<b>.py" not in shown
    assert "<i>" not in shown
    assert "1m15s" in shown


def test_a_notebook_s_table_shows_what_the_runtime_reads_otherwise() -> None:
    assert "base_image is not pulled here" in display.as_html(
        job_at_t0(notices=["base_image is not pulled here"]), T0
    )


def test_a_waiting_job_shows_how_long_it_waits() -> None:
    assert (
        display.ran_for(job_at_t0(started_at=None), T0 + timedelta(hours=1)) == "waiting for 1h00m"
    )


def test_colours_of_a_terminal_are_colours_in_a_notebook() -> None:
    shown = display.coloured("\x1b[1;32m<loss>\x1b[0m 0.1 \x1b[2K\x1b[31mbad")
    assert shown == (
        "<span style='font-weight:bold;color:#2e8b57'>&lt;loss&gt;</span> 0.1 <span "
        "style='color:#dc322f'>bad</span>"
    )


@given(
    st.lists(
        st.sampled_from(["a", "<", "\x1b[0m", "\x1b[31m", "\x1b[1;32m", "\x1b[K", "\x1b", "\n"])
    ).map("".join)
)
def test_any_text_of_a_terminal_is_balanced_html(text: str) -> None:
    shown = display.coloured(text)
    assert shown.count("<span") == shown.count("</span>") == shown.count("<") / 2
    assert html.unescape(re.sub("<[^>]*>", "", shown)) == re.sub("\x1b\\[[0-9;]*[mK]", "", text)


def test_a_list_of_jobs_is_the_table_of_the_command_line_and_a_table_in_a_notebook() -> None:
    infos = [
        job_at_t0().model_copy(update={"name": "<b>"}),
        failed(rank=0, exception="ValueError: x"),
    ]
    text = display.jobs_as_text(infos, 1, T0).splitlines()
    assert [line.split()[0] for line in text] == ["NAME", "<b>", "…"]
    shown = display.jobs_as_html(infos, 2, T0)
    assert "&lt;b&gt;" in shown
    assert "<b style='color:#dc322f'>FAILED</b>" in shown
    assert "rank 0: ValueError: x" in shown


def test_a_failed_job_is_a_card_in_a_notebook() -> None:
    info = failed(
        rank=0, exit_code=1, exception="E: <x>", hint="less <y>", last_lines=["\x1b[31m<z>\x1b[0m"]
    )
    shown = pickle.loads(pickle.dumps(explanation.ended(info)))._repr_html_()
    assert "<b>job train-x7k2m FAILED (ExitCode): rank 0 ended with exit code 1</b>" in shown
    assert "<b>E: &lt;x&gt;</b>" in shown
    assert "<b>hint:</b> less &lt;y&gt;" in shown
    assert "<span style='color:#dc322f'>&lt;z&gt;</span>" in shown
    assert "next: `job.logs(rank=0)`" in shown
    of_job = display.as_html(info, T0, lines=["last"])
    assert "rank 0: E: &lt;x&gt;" in of_job
    assert "less &lt;y&gt;" in of_job


def test_a_running_job_shows_its_progress_as_a_bar() -> None:
    shown = display.as_html(job_at_t0(progress=JobProgress(done=0.45, metrics={"loss": 0.25})), T0)
    assert "width:45%" in shown
    assert "45% · loss 0.25" in shown


def test_a_job_that_deserves_attention_is_amber_in_a_notebook_and_tells_why() -> None:
    told = [Attention(code="loss", sentence="loss was <NaN> from step 5")]
    info = job_at_t0(State.SUCCEEDED, Reason.COMPLETED, attention=told)
    green, amber = "#2e8b57", "#b58900"
    for shown in (display.as_html(info, T0), display.jobs_as_html([info], 1, T0)):
        assert "loss was &lt;NaN&gt; from step 5" in shown
        assert (green in shown, amber in shown) == (False, True)
    assert "(Completed), train.py: loss was <NaN>" in repr(info)
    healthy = display.as_html(job_at_t0(State.SUCCEEDED, Reason.COMPLETED), T0)
    assert (green in healthy, amber in healthy) == (True, False)
    lost = job_at_t0(State.FAILED, Reason.EXIT_CODE, attention=told)
    assert amber not in display.as_html(lost, T0), "a failure is red"
    cell = display.live_bundle("train", "SUCCEEDED", "Completed", attention=["loss was NaN"])
    assert cell["text/plain"] == "SUCCEEDED train: loss was NaN"
    assert amber in cell["text/html"]
