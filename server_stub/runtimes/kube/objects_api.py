"""Requests that create, find and delete the objects of an attempt. They block; none is repeated.

The workload is created first and owns the other objects from their creation, so that its deletion removes all of them
whatever happens in between. A pod whose ConfigMap is created a moment later waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import METADATA, STRATEGIC_MERGE, Api, ApiError, find
from server_stub.runtimes.kube.render import Objects
from server_stub.runtimes.kube.workload import Applied, Object, WorkloadKind

_SHARING_TRIES = 5


class NameTaken(Exception):
    """An object of that name exists and belongs to another attempt.

    `by` is the attempt of another job of this server that has it, for two users may give their jobs one name.
    """

    def __init__(self, name: str, by: names.AttemptKey | None) -> None:
        super().__init__(name)
        self.by = by


class BeingDeleted(Exception):
    """An object of that name exists and is being deleted."""


class ObjectsApi:
    """The objects of attempts in one namespace."""

    def __init__(self, api: Api, namespace: str, kind: WorkloadKind) -> None:
        self._api, self._kind = api, kind
        self._core = f"/api/v1/namespaces/{namespace}"
        self.workloads = kind.collection(namespace)
        self._applied = kind.applied_collection(namespace)
        self._collections = {
            "ConfigMap": f"{self._core}/configmaps",
            "Secret": f"{self._core}/secrets",
            "NetworkPolicy": f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
            kind.name: self.workloads,
            **{base: kind.collection(namespace, plural) for base, plural in kind.bases.items()},
        }

    def create_workload(self, workload: Object, owned: Iterable[Object] = ()) -> Object:
        """Create the workload, or find the one that an earlier try created, and return at least its metadata.

        `owned`: the objects that its pods mount. Those of an earlier workload of that name must be gone, or the new
        pods could mount them, and so must be what its operator applied, and its pods, or they would mount the new
        objects and be found by the name of the new pods. Raises ApiError, NameTaken, BeingDeleted.
        """
        name = workload["metadata"]["name"]
        left = self._left_of_earlier(workload, owned, self._kind.applied) if self._kind.applied else None
        if left is not None and find(self._api, f"{self.workloads}/{name}") is None:  # else `_create_or_find` decides
            raise BeingDeleted(left)
        return self._create_or_find(workload)

    def _left_of_earlier(self, workload: Object, owned: Iterable[Object], applied: Applied) -> str | None:
        """Describe what has the name of the workload already; None: nothing has."""
        name = workload["metadata"]["name"]
        selected = {"labelSelector": f"{applied.label}={name}", "resourceVersion": "0"}  # cheap: a cache
        if find(self._api, f"{self._applied}/{name}") or self._api.get(f"{self._core}/pods", selected)["items"]:
            return f"what is left of an earlier {_name(workload)}"
        paths = {_name(each): f"{self._collections[each['kind']]}/{each['metadata']['name']}" for each in owned}
        return next((left for left, path in paths.items() if find(self._api, path) is not None), None)

    def create_base(self, base: Object) -> None:
        """Create the object on which workloads are based, unless it is there. Raises ApiError."""
        try:
            self._api.create(self._collections[base["kind"]], base)
        except ApiError as error:
            if not error.status == 409:
                raise

    def creations(self, objects: Objects, workload: Mapping[str, Any]) -> list[Callable[[], None]]:
        """Calls that create all objects which the pods mount, owned by the workload.

        Make them at the same time: a pod that finds nothing to mount loses a second. Each raises ApiError, NameTaken,
        BeingDeleted.
        """
        meta = workload["metadata"]
        owner = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
        owner |= {"name": meta["name"], "uid": meta["uid"]}
        owned = [partial(self._create_owned, each, owner) for each in objects.owned()]
        return [*owned, partial(self._share, objects.launcher, owner)]

    def _create_owned(self, wanted: Object, owner: dict[str, Any]) -> None:
        found = self._create_or_find(_owned_by(wanted, owner))
        owners = [each["uid"] for each in found["metadata"].get("ownerReferences") or ()]
        if owner["uid"] not in owners:  # owned by an earlier workload of that name, and deleted with it
            raise BeingDeleted(_name(wanted))

    def _create_or_find(self, wanted: Object) -> Object:
        path = self._collections[wanted["kind"]]
        try:
            return dict(self._api.create(path, wanted))
        except ApiError as error:
            if not error.status == 409:
                raise
        found: Object | None = find(self._api, f"{path}/{wanted['metadata']['name']}")
        if found is None or found["metadata"].get("deletionTimestamp") or _has_lost_its_owner(found, wanted):
            raise BeingDeleted(_name(wanted))
        if _identity(found) != _identity(wanted):
            raise NameTaken(_name(wanted), _other_attempt(found, wanted))
        return found

    def _share(self, launcher: Object, owner: dict[str, Any]) -> None:
        """Add the owner to the existing launcher ConfigMap, or create it with this owner.

        After the first job it always exists, but the deletion of its last owner may remove it in between.
        """
        path, name = self._collections["ConfigMap"], launcher["metadata"]["name"]
        patch = {"metadata": {"ownerReferences": [owner]}}
        for last in [False] * (_SHARING_TRIES - 1) + [True]:
            try:
                self._api.request("PATCH", f"{path}/{name}", patch, kind=STRATEGIC_MERGE, accept=METADATA)
                return
            except ApiError as error:
                if not (error.status == 404 or error.status == 409) or last:
                    raise
            try:
                self._api.create(path, _owned_by(launcher, owner))
                return
            except ApiError as error:
                if not error.status == 409:
                    raise

    def find_by_uid(self, name: str, uid: str) -> Object | None:
        """The workload with this name and UID; None: it does not exist. Raises ApiError."""
        found: Object | None = find(self._api, f"{self.workloads}/{name}")
        return found if found is not None and found["metadata"]["uid"] == uid else None

    def find_own(self, workload: Object) -> Object | None:
        """The workload of the same name and attempt; None: it does not exist. Raises ApiError."""
        found: Object | None = find(self._api, f"{self.workloads}/{workload['metadata']['name']}")
        return found if found is not None and _identity(found) == _identity(workload) else None

    def delete_workload(self, name: str, uid: str, *, in_background: bool = False) -> None:
        """Begin to delete the workload with all objects that it owns; a missing one is no error.

        By default its pods are deleted first, so that its name is free only when none of them runs, if its operator
        permits that. `in_background` deletes it before its pods, for a workload whose pods have ended: the garbage
        collector then makes a third of the requests (its limit: see `objects`).
        """
        policy = "Background" if in_background or self._applied else "Foreground"
        body = {"propagationPolicy": policy, "preconditions": {"uid": uid}}
        try:
            self._api.request("DELETE", f"{self.workloads}/{name}", body, accept=METADATA)
        except ApiError as error:
            if not (error.status == 404 or error.status == 409):
                raise


def _name(wanted: Mapping[str, Any]) -> str:
    return f"{wanted['kind']} {wanted['metadata']['name']}"


def _identity(found: Mapping[str, Any]) -> tuple[str | None, str | None]:
    meta = found["metadata"]
    return (meta.get("labels") or {}).get(names.JOB_ID), (meta.get("annotations") or {}).get(names.HASH)


def _other_attempt(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> names.AttemptKey | None:
    """The attempt that owns the object, if it belongs to another job of this server."""
    theirs, mine = (names.attempt_of(each["metadata"].get("labels") or {}) for each in (found, wanted))
    return theirs if theirs and mine and theirs.job_id != mine.job_id else None


def _owned_by(wanted: Object, owner: dict[str, Any]) -> Object:
    return wanted | {"metadata": wanted["metadata"] | {"ownerReferences": [owner]}}


def _has_lost_its_owner(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """True if its owner was an earlier workload with the name of the current owner."""
    uids = {(each["kind"], each["name"]): each["uid"] for each in wanted["metadata"].get("ownerReferences") or ()}
    owners = found["metadata"].get("ownerReferences") or ()
    return any(uids.get((each["kind"], each["name"]), each["uid"]) != each["uid"] for each in owners)
