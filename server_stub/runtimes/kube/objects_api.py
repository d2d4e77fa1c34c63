"""Requests that create, find and delete the objects of attempts in one namespace. They block; none
is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import METADATA, Api, ApiError, find
from server_stub.runtimes.kube.render import Objects
from server_stub.runtimes.kube.workload import Applied, Object, WorkloadKind

_SHARING_TRIES = 5


class NameTaken(Exception):
    """An object of that name exists and belongs to another attempt."""

    def __init__(self, name: str, by: names.AttemptKey | None) -> None:
        """`by`: the attempt of another job of this server, as two users may give their
        jobs one name; None: unknown.
        """
        super().__init__(name)
        self.by = by


class BeingDeleted(Exception):
    """An object of that name exists and is being deleted."""


class ObjectsApi:
    """The requests for one kind of workload in one namespace.

    The workload is created first and owns the other objects from their creation, so that its
    deletion removes all of them whatever happens in between. A pod whose ConfigMap is created a
    moment later waits for it.
    """

    def __init__(self, api: Api, namespace: str, kind: WorkloadKind) -> None:
        self._api = api
        self._kind = kind
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

    def explained(self, error: ApiError) -> ApiError:
        """The answer about the namespace in the place of a 403, if the namespace is gone: the
        rights of this server, which its Role gives, go with it.
        """
        if error.status == HTTPStatus.FORBIDDEN:
            try:
                self._api.get(self._core)
            except ApiError as of_namespace:
                if of_namespace.status == HTTPStatus.NOT_FOUND:
                    return of_namespace
        return error

    def create_workload(self, workload: Object, owned: Iterable[Object] = ()) -> Object:
        """Create the workload, or find the one that an earlier try created, and return at least its
        metadata.

        `owned`: objects that must be its own. If an earlier workload had this name, all that
        belongs to it must be gone first: objects with the names of `owned`; what its operator
        applied; and its pods, which would be found by the name of the new pods. An operator that
        lags may make one of these once more: what it mounts has other names (`mounted_name`).

        Raises ApiError, NameTaken, BeingDeleted.
        """
        left = (
            self._left_of_earlier(workload, owned, self._kind.applied)
            if self._kind.applied
            else None
        )
        if left is not None and self._find(workload) is None:  # else `_create_or_find` decides
            raise BeingDeleted(left)
        return self._create_or_find(workload)

    def _left_of_earlier(
        self, workload: Object, owned: Iterable[Object], applied: Applied
    ) -> str | None:
        """Describe what has the name of the workload already; None: nothing has."""
        name = workload["metadata"]["name"]
        # cheap: a cache
        selected = {"labelSelector": f"{applied.label}={name}", "resourceVersion": "0"}
        if (
            find(self._api, f"{self._applied}/{name}")
            or self._api.get(f"{self._core}/pods", selected)["items"]
        ):
            return f"what is left of an earlier {_name(workload)}"
        return next((_name(each) for each in owned if self._find(each) is not None), None)

    def create_base(self, base: Object) -> None:
        """Create the object on which workloads are based, unless it is there. Raises ApiError."""
        try:
            self._api.create(self._collections[base["kind"]], base)
        except ApiError as error:
            if error.status != 409:
                raise

    def creations(self, objects: Objects, workload: Mapping[str, Any]) -> list[Callable[[], None]]:
        """Calls that create all objects which the pods mount, owned by the workload. Make them at
        the same time: a pod that finds nothing to mount loses a second. Each raises ApiError,
        NameTaken, BeingDeleted."""
        meta = workload["metadata"]
        owner = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
        owner |= {"name": meta["name"], "uid": meta["uid"]}
        owned = [partial(self._create_owned, each, owner) for each in objects.own.values()]
        return [*owned, partial(self._share, objects.launcher, owner)]

    def _create_owned(self, wanted: Object, owner: dict[str, Any]) -> None:
        found = self._create_or_find(_owned_by(wanted, owner))
        # an earlier workload's, and deleted with it
        if owner["uid"] not in [each["uid"] for each in _owners(found)]:
            raise BeingDeleted(_name(wanted))

    def _create_or_find(self, wanted: Object) -> Object:
        try:
            return dict(self._api.create(self._collections[wanted["kind"]], wanted))
        except ApiError as error:
            if error.status != 409:
                raise
        found = self._find(wanted)
        if (
            found is None
            or found["metadata"].get("deletionTimestamp")
            or _has_lost_its_owner(found, wanted)
        ):
            raise BeingDeleted(_name(wanted))
        theirs, mine = map(_attempt_of, (found, wanted))
        if theirs != mine:
            of_another_job = (
                theirs is not None and mine is not None and theirs.job_id != mine.job_id
            )
            raise NameTaken(_name(wanted), theirs if of_another_job else None)
        return found

    def _find(self, wanted: Object) -> Object | None:
        found: Object | None = find(
            self._api, f"{self._collections[wanted['kind']]}/{wanted['metadata']['name']}"
        )
        return found

    def _share(self, launcher: Object, owner: dict[str, Any]) -> None:
        """Add the owner to the launcher ConfigMap, or create it with this owner: after the first
        job it exists, but the deletion of its last owner may remove it in between. Raises ApiError;
        BeingDeleted: it comes and goes."""
        path = self._collections["ConfigMap"]
        name = launcher["metadata"]["name"]
        patch = {"metadata": {"ownerReferences": [owner]}}
        add = partial(self._api.request, "PATCH", f"{path}/{name}", patch, accept=METADATA)
        create = partial(self._api.create, path, _owned_by(launcher, owner))
        for call, again in [(add, (404, 409)), (create, (409,))] * _SHARING_TRIES:
            try:
                call()
                return
            except ApiError as error:
                if error.status not in again:
                    raise
        raise BeingDeleted(_name(launcher))

    def find_by_uid(self, name: str, uid: str) -> Object | None:
        """The workload with this name and UID; None: it does not exist. Raises ApiError."""
        found: Object | None = find(self._api, f"{self.workloads}/{name}")
        return found if found is not None and found["metadata"]["uid"] == uid else None

    def find_own(self, name: str, key: names.AttemptKey) -> Object | None:
        """The workload with this name and of this attempt; None: it does
        not exist. Raises ApiError.
        """
        found: Object | None = find(self._api, f"{self.workloads}/{name}")
        return found if found is not None and _attempt_of(found) == key else None

    def delete_workload(self, name: str, uid: str, *, in_background: bool = False) -> None:
        """Begin to delete the workload with all objects that it owns; a missing one is no error.
        Raises ApiError.

        By default the pods are deleted first, if the operator permits that, so that the name of the
        workload is free only when no pod runs. `in_background` is for a workload whose pods have
        ended: the workload is deleted before its pods, which costs the garbage collector a third of
        the requests (its limit: see `objects`).
        """
        policy = "Background" if in_background or self._applied else "Foreground"
        body = {"propagationPolicy": policy, "preconditions": {"uid": uid}}
        try:
            self._api.request("DELETE", f"{self.workloads}/{name}", body, accept=METADATA)
        except ApiError as error:
            if error.status not in (404, 409):
                raise


def _name(wanted: Mapping[str, Any]) -> str:
    return f"{wanted['kind']} {wanted['metadata']['name']}"


def _attempt_of(found: Mapping[str, Any]) -> names.AttemptKey | None:
    return names.attempt_of(found["metadata"].get("labels") or {})


def _owned_by(wanted: Object, owner: dict[str, Any]) -> Object:
    return wanted | {"metadata": wanted["metadata"] | {"ownerReferences": [owner]}}


def _owners(found: Mapping[str, Any]) -> list[dict[str, str]]:
    return found["metadata"].get("ownerReferences") or []


def _has_lost_its_owner(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """True if its owner was an earlier workload with the name of the current owner."""
    uids = {(each["kind"], each["name"]): each["uid"] for each in _owners(wanted)}
    return any(
        uids.get((each["kind"], each["name"]), each["uid"]) != each["uid"]
        for each in _owners(found)
    )
