"""Conversations of users of a release, as calls and command lines. Each function returns what its
user sees: data that a later version must keep, but no sentence that a later version may reword.

A conversation that was released stays as it is, because its golden files are replayed with it: what
a later version adds gets a conversation of its own.
"""

import io
from collections.abc import Callable
from typing import Any

from client_lib.errors import ClientLibError, JobFailed
from client_lib.job import Job
from client_lib.spec.wire import JobInfo
from tests.compat.stage import User


def life_of_a_job(user: User) -> Any:
    """A job from its submit to its removal, with a snapshot of the code."""
    job: Job[Any] = Job(
        script="train.py --lr 0.1",
        name="train",
        n_workers=2,
        code="snapshot",
        outputs=["out/*", "*.pt"],
        env_variables={"EPOCHS": 3},
        secrets=["HF_TOKEN"],
        labels={"team": "vision"},
        client=user.client,
    )
    planned = job.render().runtime
    said = job.submit()
    user.happens("waits", "train")
    waiting = job.status()
    user.happens("runs", "train")
    user.happens("prints", "train")
    running = job.info()
    lines = list(job.log_lines(follow=False))
    entries = list(job.log_entries(follow=False, rank=1, tail=1))
    metrics = job.metrics()
    stacks = job.stacks()
    user.happens("keeps", "train")
    user.happens("succeeds", "train")
    ended = job.wait()
    printed = io.StringIO()
    job.logs(tail=2, rank=0, file=printed)
    files = job.download("fetched")
    manifest = job.render()
    goodput = job.goodput()
    provenance = job.provenance()
    events = job.events()
    job.code("code")
    job.delete()
    user.happens("goes", "train")
    return {
        "planned": planned,
        "said": said,
        "waiting": waiting,
        "running": _seen(running),
        "lines": sorted(lines),
        "entries": [[entry.text, entry.rank, entry.stream] for entry in entries],
        "loss": metrics["loss"].values,
        "done": metrics.progress and metrics.progress.done,
        "stacks": [process.state for rank in stacks.ranks for process in rank.processes],
        "ended": _seen(ended),
        "printed": printed.getvalue().splitlines(),
        "fetched": {file.relative_to("fetched").as_posix(): file.stat().st_size for file in files},
        "manifest": manifest.objects[0]["environment"],
        "goodput": goodput.wall_s,
        "command": provenance.submitted and provenance.submitted.command_line,
        "events": [[event.state, event.reason] for event in events],
        "code": sorted(file.name for file in (user.folder / "code").iterdir()),
    }


def a_failed_job_and_its_successor(user: User) -> Any:
    """A job in place that fails, is explained, changed, run again, and cancelled."""
    job: Job[Any] = Job(script="train.py", name="fails", n_workers=2, client=user.client)
    job.submit()
    user.happens("runs", "fails")
    user.happens("fails", "fails")
    try:
        job.wait()
    except JobFailed as failed:
        failure = failed.info.failure
    explanation = job.explanation()
    again = user.client.resubmit("fails", new_name="again", n_workers=3)
    user.happens("starts", "again")
    restarted = again.info()
    difference = job.diff(again)
    again.kill()
    user.happens("stops", "again")
    return {
        "failed": _seen(job.info()),
        "rank": failure and failure.rank,
        "exception": failure and failure.exception,
        "last_lines": failure and failure.last_lines,
        "explained": [explanation.state, explanation.reason, explanation.attempt],
        "again": _seen(restarted),
        "differs": len(difference.parts) > 0,
        "cancelled": again.status(),
    }


def a_group(user: User) -> Any:
    """A group of runs: one succeeds, one fails and runs again, one is cancelled with the group."""
    job: Job[Any] = Job(script="train.py", n_workers=2, client=user.client)
    group = job.each("scan", {"lr": [0.1, 0.01, 0.001]}, max_parallel=2)
    stored = group.info()
    user.happens("runs", "scan-0")
    user.happens("runs", "scan-1")
    user.happens("prints", "scan-0")
    user.happens("succeeds", "scan-0")
    user.happens("fails", "scan-1")
    user.happens("starts", "scan-2")
    listed = [[info.name, info.state] for info in user.client.list_jobs(group="scan")]
    rows = [[row["name"], row["state"]] for row in group.compare()]
    best = group.best("loss").name
    group.cancel()
    user.happens("stops", "scan-2")
    cancelled = user.client.get_group("scan")
    members = [member.name for member in cancelled]
    again = group.resubmit(failed=True)
    return {
        "stored": [stored.size, stored.state, stored.counts],
        "listed": listed,
        "rows": rows,
        "best": best,
        "cancelled": cancelled.last_info.state,
        "members": members,
        "again": [again.state, again.earlier],
    }


def a_server(user: User) -> Any:
    """Questions of a client about the server, and about many jobs at once."""
    client = user.client
    cursor = client.state_changes().cursor
    for number in range(3):
        client_job: Job[Any] = Job(
            script=f"echo {number}",
            type="binary",
            name=f"job-{number}",
            labels={"parity": str(number % 2)},
            client=client,
        )
        client_job.submit()
        user.happens("starts", f"job-{number}")
    user.happens("runs", "job-1")
    changes = client.state_changes(cursor)
    info = client.server_info()
    return {
        "changes": [change.state for change in changes.changes],
        "pending": [each.name for each in client.list_jobs(state="PENDING")],
        "labelled": [each.name for each in client.list_jobs(label={"parity": "0"})],
        "newest": [each.name for each in client.list_jobs(name="job-", limit=1)],
        "server": [info.api, info.runtime, info.user, info.admin],
        "types": [each.name for each in client.instance_types()],
        "checks": [[check.name, check.ok] for check in client.doctor().checks],
    }


def refusals(user: User) -> Any:
    """Calls that a server refuses, and the errors that a client raises for these."""
    client = user.client
    job: Job[Any] = Job(script="echo", type="binary", name="taken", client=client)
    job.submit()
    user.happens("runs", "taken")

    def submit(**fields: Any) -> Callable[[], object]:
        words = {"script": "echo", "type": "binary", **fields}
        return Job(**words, client=client).submit

    calls: dict[str, Callable[[], object]] = {
        "no job": lambda: client.job_info("missing"),
        "no group": lambda: client.group_info("missing"),
        "name taken": submit(name="taken"),
        "never fits": submit(n_workers=65),
        "unknown after": submit(after=["missing"]),
        "runs": job.delete,
        "no result": lambda: client.job_result("taken", 0),
        "no snapshot": lambda: client.download_snapshot("0" * 64, user.folder / "snapshot"),
        "bad state": lambda: list(client.list_jobs(state="sleeping")),
    }
    return {what: _refusal(call) for what, call in calls.items()}


def commands(user: User) -> Any:
    """The commands that read."""
    submitted = [
        user.command("submit", "--name=one", "-N2", "-o", "json", "train.py", "--lr=0.1"),
        user.command("submit", "--name=two", "-N2", "-o", "name", "train.py", "--lr=0.2"),
        user.command("submit", "--name=three", "-o", "name", "-t", "binary", "echo", "hello"),
    ]
    user.happens("starts", "three")
    for name in ("one", "two"):
        user.happens("runs", name)
        user.happens("prints", name)
    user.happens("keeps", "one")
    user.happens("succeeds", "one")
    user.happens("fails", "two")
    one = user.command("status", "one", "-o", "json")
    listed = user.command("list", "-o", "json")
    return {
        "submitted": [each["exit_code"] for each in submitted],
        "names": [each["printed"] for each in submitted[1:]],
        "listed": [[job["name"], job["state"]] for job in listed["printed"]],
        "failed": user.command("list", "--state=failed", "-o", "name"),
        "status": [one["printed"]["state"], one["printed"]["spec"]["n_workers"]],
        "events": user.command("status", "two", "--events")["exit_code"],
        "logs": user.command("logs", "one", "--rank=0"),
        "tail": user.command("logs", "one", "--tail=1", "--rank=1", "-o", "json")["exit_code"],
        "wait": [user.command("wait", name)["exit_code"] for name in ("one", "two")],
        "explain": user.command("explain", "two", "-o", "json")["printed"]["reason"],
        "metrics": user.command("metrics", "one", "-o", "json")["exit_code"],
        "best": user.command("best", "one", "two", "--by=loss", "-o", "json")["exit_code"],
        "compare": user.command("compare", "one", "two", "-o", "json")["exit_code"],
        "diff": user.command("diff", "one", "two", "-o", "json")["exit_code"],
        "outputs": user.command("download", "one", "--list")["exit_code"],
        "fetched": user.command("download", "one", "fetched", "--pattern=*.pt")["exit_code"],
        "types": user.command("instances", "-o", "name"),
        "missing": user.command("status", "missing")["exit_code"],
        "deleted": user.command("delete", "one")["exit_code"],
        "cancelled": user.command("cancel", "three")["exit_code"],
    }


ALL: dict[str, Callable[[User], Any]] = {
    talk.__name__: talk
    for talk in (
        life_of_a_job,
        a_failed_job_and_its_successor,
        a_group,
        a_server,
        refusals,
        commands,
    )
}


def _seen(info: JobInfo) -> list[Any]:
    """The facts of a job that every user looks at."""
    return [info.name, info.state, info.reason, info.attempt, info.spec.n_workers]


def _refusal(call: Callable[[], object]) -> list[Any]:
    try:
        call()
    except ClientLibError as error:
        return [type(error).__name__, error.code]
    return ["nothing is refused"]
