"""Makes the objects of one attempt on the cluster, as often as it takes, and says what is in the way. `gang` uses it.

A try whose answer was lost may have made them all the same: the next one finds them by their name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from client_lib.errors import ClientLibError
from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube import facts, names
from server_stub.runtimes.kube.acts import Acts, Leaving, Taken
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.asking import asked
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.facts import TrainingJob
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import Object, Objects
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.record import Record
from server_stub.runtimes.kube.refusals import Patience, Refusal, refusal
from server_stub.runtimes.kube.render import Payload, needs_payload, render

FEW_TRIES = 8  # 45 s: an API server that starts does not know its users, and custom resources, at once
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0

T = TypeVar("T")
_MARKED = Refusal(Reason.QUEUED, "another user's job has this name", Patience.EVER)
_log = logging.getLogger(__name__)


class GivenUp(NamedTuple):
    """Why there will be no gang."""

    reason: Reason
    message: str
    uid: str | None
    """Of the PyTorchJob that was made all the same, and has to go."""


class Making:
    """Of one attempt. `ended`: whether another attempt has, and what is left of it goes by itself. `made` is awaited as
    soon as the PyTorchJob is there; `say` gets what is in the way; `pause` returns after so many seconds, or when
    something has changed."""

    def __init__(
        self,
        attempt: Attempt,
        settings: ClusterSettings,
        catalogue: Catalogue,
        acts: Acts,
        ended: Callable[[AttemptKey], bool],
        made: Callable[[TrainingJob], Awaitable[None]],
        say: Callable[[Refusal], None],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._attempt, self._settings, self._catalogue, self._acts = attempt, settings, catalogue, acts
        self._ended, self._made, self._say, self._pause = ended, made, say, pause
        self.name = names.object_name(attempt.job_name, attempt.number)
        """Of the PyTorchJob: the first choice, or where another user's job has that, the one with the owner's mark."""
        self._marked = names.object_name(attempt.job_name, attempt.number, attempt.owner)
        self._uid: str | None = None
        self._may_be_there = not attempt.fresh
        """A server process before this one, or a try without an answer, may have made it."""

    async def make(self, token: str, known: Record, stopped: Callable[[], bool]) -> GivenUp | None:
        """None: its objects are there, or were and are gone. `known`: the PyTorchJob that was made, if one was."""
        self._uid, self.name = known.uid, known.name or self.name
        try:
            objects = await asyncio.to_thread(self._render, token)
        except ClientLibError as error:  # it was in order when it was accepted: the catalogue has changed
            return GivenUp(Reason.START_FAILED, error.message, known.uid)
        tries, pause_s = 0, FIRST_PAUSE_S
        while not stopped():
            met = await self._try(objects)
            if met is None:
                return None
            if met is _MARKED:
                self.name = self._marked
                objects = await asyncio.to_thread(self._render, token)
                continue
            tries += met.patience is Patience.FEW
            if met.patience is Patience.NONE or tries >= FEW_TRIES:
                return GivenUp(met.reason, met.message, await self._own(objects))
            self._say(met)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return GivenUp(Reason.CANCELLED, "stopped while it waited", await self._own(objects))

    def _render(self, token: str) -> Objects:
        attempt, payload = self._attempt, Payload()
        if needs_payload(attempt, self._settings):
            payload = Payload(
                attempt.snapshot.read_bytes() if attempt.snapshot else None,
                attempt.function.read_bytes() if attempt.function else None,
            )
        return render(attempt, self._settings, self._catalogue, token, payload, self.name)

    async def _try(self, objects: Objects) -> Refusal | None:
        try:
            if (
                self._uid is None
                and self._may_be_there
                and self.name != self._marked
                and await self._is_marked(objects)
            ):
                return _MARKED
            await self._make_all(objects)
        except ApiError as error:
            self._may_be_there = self._may_be_there or error.status == 0 or error.status >= 500
            return refusal(error.status, error.message, f"PyTorchJob {self.name}")
        except Leaving as leaving:
            return Refusal(Reason.QUEUED, f"waits until {leaving}, which is being deleted, is gone", Patience.EVER)
        except Taken as taken:
            if taken.by is not None and self._may_be_marked:
                return _MARKED
            if taken.by is not None and self._ended(taken.by):
                return Refusal(Reason.QUEUED, f"waits until {taken}, of a job that has ended, is gone", Patience.EVER)
            text = f"{taken} is there already, and not of this job: give the job another name"
            return Refusal(Reason.START_FAILED, text, Patience.NONE)
        return None

    async def _make_all(self, objects: Objects) -> None:
        if self._uid is None:
            job: Object | None = await asked(self._acts.make_job, objects.job)
        else:
            job = await asked(self._acts.find_job, self.name, self._uid)
        if job is None:  # it was there, and is gone: the gang sees it
            return
        work: list[Awaitable[None]] = [asked(make) for make in self._acts.rest(objects, job)]
        known = facts.training_job(job)
        if self._uid is None and known is not None:
            self._uid = known.uid
            work.append(self._made(known))
        await asyncio.gather(*work)

    @property
    def _may_be_marked(self) -> bool:
        return self._uid is None and self.name != self._marked

    async def _is_marked(self, objects: Objects) -> bool:
        """A server process before this one has made it under the other name: who had the first choice may be gone."""
        metadata = {**objects.job["metadata"], "name": self._marked}
        return await asked(self._acts.find_own, {**objects.job, "metadata": metadata}) is not None

    async def _own(self, objects: Objects) -> str | None:
        """The UID of a PyTorchJob of this attempt, if there is one."""
        if self._uid is None and self._may_be_there:
            found = await insist(lambda: self._acts.find_own(objects.job))
            self._uid = found["metadata"]["uid"] if found else None
        return self._uid


async def insist(act: Callable[[], T]) -> T:
    """Do it as often as it takes: what must not be left undone."""
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await asked(act)
        except ApiError as error:
            _log.warning("asked again in %g s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
