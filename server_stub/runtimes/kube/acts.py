"""What is done on the cluster: the objects of an attempt made and removed, a log read. Blocking; nothing is retried.

The PyTorchJob comes first and owns the others from their birth, so that whatever happens in between, nothing is left
over when it is deleted. A pod whose ConfigMap is made a moment later waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import METADATA, STRATEGIC_MERGE, Api, ApiError
from server_stub.runtimes.kube.objects import Object, Objects

TAIL_LINES = 5000
TAIL_BYTES = 8 * 2**20
_SHARING_TRIES = 5


class Taken(Exception):
    """An object of that name is there, and is not of this attempt.

    `by`: the attempt of another job of ours that has it, as two users may give their jobs one name."""

    def __init__(self, name: str, by: names.AttemptKey | None) -> None:
        super().__init__(name)
        self.by = by


class Leaving(Exception):
    """An object of that name is there, and is being deleted."""


class Acts:
    """In one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._core = f"/api/v1/namespaces/{namespace}"
        self.jobs = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self._collections = {
            "ConfigMap": f"{self._core}/configmaps",
            "Secret": f"{self._core}/secrets",
            "NetworkPolicy": f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
            names.KIND: self.jobs,
        }

    def make_job(self, job: Object) -> Object:
        """The PyTorchJob, at least its metadata, made now or by an earlier try. Raises ApiError, Taken, Leaving."""
        return self._create_or_find(job)

    def rest(self, objects: Objects, job: Mapping[str, Any]) -> list[Callable[[], None]]:
        """What makes everything that its pods mount, owned by it: all at once, as pods that find nothing to mount lose
        a second. Each raises ApiError, Taken, Leaving."""
        owner = _owner(job)
        owned = [partial(self._make_owned, each, owner) for each in objects.owned()]
        return [*owned, partial(self._share, objects.launcher, owner)]

    def _make_owned(self, wanted: Object, owner: dict[str, Any]) -> None:
        found = self._create_or_find(_owned_by(wanted, owner))
        if not _is_owned_by(found, owner["uid"]):  # of a gang before, and about to go with it
            raise Leaving(_name(wanted))

    def _create_or_find(self, wanted: Object) -> Object:
        path = self._collections[wanted["kind"]]
        try:
            return dict(self._api.create(path, wanted))
        except ApiError as error:
            if not error.conflict:
                raise
        try:
            found: Object = self._api.get(f"{path}/{wanted['metadata']['name']}")
        except ApiError as error:
            raise Leaving(_name(wanted)) if error.not_found else error from None
        if found["metadata"].get("deletionTimestamp") or _has_lost_its_owner(found, wanted):
            raise Leaving(_name(wanted))
        if _identity(found) != _identity(wanted):
            raise Taken(_name(wanted), _other_attempt(found, wanted))
        return found

    def _share(self, launcher: Object, owner: dict[str, Any]) -> None:
        """Add the owner to the one that is there, as after the first job there always is, or make it with this owner;
        its last owner may take it along in between."""
        path, name = self._collections["ConfigMap"], launcher["metadata"]["name"]
        patch = {"metadata": {"ownerReferences": [owner]}}
        for last in [False] * (_SHARING_TRIES - 1) + [True]:
            try:
                self._api.request("PATCH", f"{path}/{name}", patch, kind=STRATEGIC_MERGE, accept=METADATA)
                return
            except ApiError as error:
                if not (error.not_found or error.conflict) or last:
                    raise
            try:
                self._api.create(path, _owned_by(launcher, owner))
                return
            except ApiError as error:
                if not error.conflict:
                    raise

    def find_job(self, name: str, uid: str) -> Object | None:
        """None: there is none of this UID. Raises ApiError."""
        try:
            found: Object = self._api.get(f"{self.jobs}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return found if found["metadata"]["uid"] == uid else None

    def find_own(self, job: Object) -> Object | None:
        """The PyTorchJob of this attempt, whoever made it; None: there is none. Raises ApiError."""
        try:
            found: Object = self._api.get(f"{self.jobs}/{job['metadata']['name']}")
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return found if _identity(found) == _identity(job) else None

    def delete_job(self, name: str, uid: str, *, nothing_runs: bool = False) -> None:
        """Begin to delete it with all that it owns. One that is gone already is no error.

        Pods first, so that its name is free when none runs; where `nothing_runs` it goes first, as that takes the
        garbage collector, which makes 20 requests/s for the whole cluster, a third of the requests.
        """
        policy = "Background" if nothing_runs else "Foreground"
        body = {"propagationPolicy": policy, "preconditions": {"uid": uid}}
        try:
            self._api.request("DELETE", f"{self.jobs}/{name}", body, accept=METADATA)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    def log_tail(self, pod: str) -> bytes:
        """The last that a worker printed; empty where it is not to be had. Raises ApiError where nobody answers."""
        query: dict[str, str | int | bool] = {
            "container": names.CONTAINER,
            "tailLines": TAIL_LINES,
            "limitBytes": TAIL_BYTES,
        }
        try:
            return self._api.text(f"{self._core}/pods/{pod}/log", query)
        except ApiError as error:
            if error.status in (400, 404):
                return b""
            raise

    def log_path(self, pod: str) -> str:
        return f"{self._core}/pods/{pod}/log"


def _name(wanted: Mapping[str, Any]) -> str:
    return f"{wanted['kind']} {wanted['metadata']['name']}"


def _identity(found: Mapping[str, Any]) -> tuple[str | None, str | None]:
    meta = found["metadata"]
    return (meta.get("labels") or {}).get(names.JOB_ID), (meta.get("annotations") or {}).get(names.HASH)


def _other_attempt(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> names.AttemptKey | None:
    """Of another job of ours, whose object it is."""
    theirs, mine = (names.attempt_of(each["metadata"].get("labels") or {}) for each in (found, wanted))
    return theirs if theirs and mine and theirs.job_id != mine.job_id else None


def _owner(job: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
    }


def _owned_by(wanted: Object, owner: dict[str, Any]) -> Object:
    return wanted | {"metadata": wanted["metadata"] | {"ownerReferences": [owner]}}


def _has_lost_its_owner(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """It was of a PyTorchJob that had the name of the one that owns `wanted`, and is gone."""
    uids = {(each["kind"], each["name"]): each["uid"] for each in wanted["metadata"].get("ownerReferences") or ()}
    owners = found["metadata"].get("ownerReferences") or ()
    return any(uids.get((each["kind"], each["name"]), each["uid"]) != each["uid"] for each in owners)


def _is_owned_by(found: Mapping[str, Any], uid: str) -> bool:
    return any(each.get("uid") == uid for each in found["metadata"].get("ownerReferences") or ())
