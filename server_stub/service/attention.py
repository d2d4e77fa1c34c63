"""Decides what of a job deserves a person's attention, although its state is a good one. Pure.

The only place that does: the reconciler stores what an end deserves, and what a hang does;
`job_metrics` adds what the log of a running job shows. A loss that is NaN has spoiled the result,
and stays, as does a rule of `alarm` that has become true; a slow rank matters while the job runs.
"""

from collections.abc import Sequence
from typing import NamedTuple

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Attention, JobInfo
from server_stub.curves.alerts import Alert


class Seen(NamedTuple):
    """The facts that the logs of the newest attempt show."""

    loss: str = ""
    """A sentence about the loss that is NaN or infinite; "": there is none."""
    slow: Sequence[str] = ()
    """Sentences about slow workers and the slow rank."""
    alerts: Sequence[Alert] = ()
    """Alerts of the scripts."""


NOTHING = Seen()


def is_hung(info: JobInfo) -> bool:
    """True if the ranks hang now."""
    return info.state is State.RUNNING and info.reason is Reason.HUNG


def attention(info: JobInfo, seen: Seen = NOTHING, *, stuck: bool = False) -> list[Attention]:
    """List what the job deserves as it is now. `stuck`: it waits for the end of a job that
    hangs.
    """
    found = []
    if info.state is State.PENDING and stuck:
        found.append(Attention(code="stuck", sentence=info.message))
    if is_hung(info):
        found.append(Attention(code="hung", sentence=info.message))
    if seen.loss:
        found.append(Attention(code="loss", sentence=seen.loss))
    told = {each.rule: each.sentence for each in info.alarms}
    new = {each.source: each.sentence for each in seen.alerts}
    found += [Attention(code="alarm", sentence=each) for each in {**new, **told}.values()]
    if info.state is State.RUNNING:
        found += [Attention(code="slow", sentence=each) for each in seen.slow]
    return found
