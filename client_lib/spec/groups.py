"""Groups: many runs of one job, as requests and answers of `/groups`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from client_lib.spec.bounds import ARGUMENTS_MAX, MANY_MAX, Bound, Label, Scalar, Text, up_to
from client_lib.spec.job import Strict
from client_lib.spec.names import NAME_MAX as MEMBER_NAME_MAX
from client_lib.spec.names import check_name
from client_lib.spec.states import State
from client_lib.spec.wire import SubmitRequest

MEMBERS_MAX = MANY_MAX
BYTES_MAX = 32 * 2**20  # of the requests of all members
MEMBER_NUMBERS = 100_000  # those of resubmitted members among them
NAME_MAX = MEMBER_NAME_MAX - len(f"-{MEMBER_NUMBERS - 1}")


class GroupMember(Strict):
    """One run of the group."""

    args: Annotated[list[Text], up_to(ARGUMENTS_MAX)]
    """Its `args`, in the place of those of the job."""
    values: Annotated[dict[Label, Scalar], up_to(MANY_MAX, "object")] = {}
    """Values that it tries, as in `{"lr": "0.1"}`; for people and tables."""


class GroupRequest(Strict):
    """`POST /groups`: a job and its runs, which differ in their arguments."""

    name: Annotated[Label, Bound(check_name), Field(max_length=NAME_MAX)]
    """Unique among one's jobs and groups. The members are called `<name>-0`, `<name>-1` and so on."""
    request: SubmitRequest
    """The job; each member has a `spec.name` and `spec.args` of its own."""
    members: Annotated[list[GroupMember], Field(min_length=1), up_to(MEMBERS_MAX)]
    max_parallel: Annotated[int, Field(ge=1)] | None = None
    """Members that may run or wait for a machine at the same time; None: all."""
    stop_on_failure: bool = False
    """True: when a member has FAILED, the others are cancelled."""


def state_of(members: Collection[State]) -> State:
    """The state of a group whose members are in these states."""
    if members and all(state in (State.PENDING, State.RESTARTING) for state in members):
        return State.PENDING
    if not all(state.final for state in members):
        return State.RUNNING
    return next((state for state in (State.FAILED, State.CANCELLED) if state in members), State.SUCCEEDED)
