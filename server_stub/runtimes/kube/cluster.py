"""One namespace of a cluster: what all attempts share, and the watches of its inventory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from client_lib.errors import ClientLibError
from client_lib.spec.job import JobSpec
from server_stub.files.job_dirs import attempt_dir, worker_dir
from server_stub.runtimes import Attempt, inputs, plan
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import Api, ObjectWatch, serves
from server_stub.runtimes.kube.catalogue import Needs
from server_stub.runtimes.kube.objects_api import ObjectsApi
from server_stub.runtimes.kube.observe import ending
from server_stub.runtimes.kube.observe.inventory import (
    Inventory,
    Workload,
    parse_event,
    parse_pod,
    parse_workload,
)
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.pod_log import PodLogs
from server_stub.runtimes.kube.queues import Queues
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.worker_gateway.attempt import OpenAttempt, WorkerGroup, WorkerRegistry

REMOVALS_AT_ONCE = 4
_OURS = {"labelSelector": f"{names.MANAGED_BY}={names.OURS}"}
_SHOWN = (
    "Scheduled Created Started Killing SuccessfulCreate SuccessfulCreatePod SuccessfulCreateService"
)
"""Reasons of events whose content is in the status of a pod, too."""
# events have no labels
_EVENTS = {"fieldSelector": ",".join(f"reason!={reason}" for reason in _SHOWN.split())}


@dataclass(frozen=True)
class Cluster:
    """One namespace of a cluster, and the rules for jobs in it."""

    api: Api
    options: ClusterOptions
    """`options.kind`: of the workloads of new attempts, and of what `objects` finds and deletes."""
    kinds: tuple[WorkloadKind, ...]
    """Kinds of all workloads that may exist, as an operator may change
    `job_kind` while jobs run.
    """
    registry: WorkerRegistry
    objects: ObjectsApi
    inventory: Inventory
    logs: PodLogs
    queues: Queues
    ended: set[names.AttemptKey] = field(default_factory=set)
    """Attempts that have ended and whose objects are still there."""
    removal_turns: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(REMOVALS_AT_ONCE)
    )
    """Admits removals of attempts that have ended, in the order of their requests. One for all
    namespaces, as they have one garbage collector."""

    @classmethod
    def of(
        cls,
        api: Api,
        options: ClusterOptions,
        registry: WorkerRegistry,
        others: Sequence[WorkloadKind] = (),
    ) -> Cluster:
        """Make the parts for workloads of `options.kind`, and of `others` that exist
        already. Makes no request.
        """
        objects = ObjectsApi(api, options.namespace, options.kind)
        logs = PodLogs(api, options.namespace, registry)
        inventory = Inventory()
        queues = Queues(api, options.namespace, inventory)
        return cls(
            api, options, (options.kind, *others), registry, objects, inventory, logs, queues
        )

    @property
    def kind(self) -> WorkloadKind:
        return self.options.kind

    def of_kind(self, name: str | None) -> Cluster:
        """The cluster for an attempt whose workload has this kind; None, or a kind that
        is unknown: a new attempt.
        """
        kind = next((each for each in self.kinds if each.name == name), self.kind)
        if kind is self.kind:
            return self
        objects = ObjectsApi(self.api, self.options.namespace, kind)
        return replace(self, options=replace(self.options, kind=kind), objects=objects)

    def in_namespace(self, namespace: str) -> Cluster:
        """Another namespace of the same cluster."""
        options = replace(self.options, namespace=namespace, kueue=None)
        found = Cluster.of(self.api, options, self.registry)
        return replace(found, kinds=self.kinds, ended=self.ended, removal_turns=self.removal_turns)

    def with_kind_there(self) -> Cluster:
        """Return this cluster with the first of the kinds that it serves; unchanged if it serves
        none. Blocks. Raises ApiError.
        """
        there = [kind for kind in self.kinds if serves(self.api, kind.api_version, kind.plural)]
        return self.of_kind(there[0].name) if there else self

    def name_of(self, attempt: Attempt, owner: str | None = None) -> str:
        """Name of the workload of an attempt; with `owner` its second choice."""
        return names.object_name(attempt.job_name, attempt.number, owner, self.kind.name_max)

    def watches(
        self, workloads_listed: Callable[[str, list[Workload]], None]
    ) -> list[ObjectWatch[Any]]:
        """Watches that keep the inventory up to date; each list of workloads goes, with the name of
        their kind, to `workloads_listed` instead."""
        api, core, seen = self.api, f"/api/v1/namespaces/{self.options.namespace}", self.inventory
        pod = partial(parse_pod, kinds=self.kinds)
        pods_listed = partial(seen.take_list, "Pod")
        found: list[ObjectWatch[Any]] = [
            ObjectWatch(api, f"{core}/pods", _OURS, pod, pods_listed, seen.put, seen.gone),
            ObjectWatch(
                api,
                f"{core}/events",
                _EVENTS,
                parse_event,
                seen.list_events,
                seen.put_event,
                seen.event_gone,
            ),
        ]
        for kind in self.kinds:
            path = kind.collection(self.options.namespace)
            absent = len(self.kinds) > 1
            read = partial(parse_workload, kind=kind)
            listed = partial(workloads_listed, kind.name)
            found.append(
                ObjectWatch(
                    api, path, _OURS, read, listed, seen.put, seen.gone, may_be_absent=absent
                )
            )
        return found

    def register(self, attempt: Attempt, changed: Callable[[], None]) -> OpenAttempt:
        """Let the workers of an attempt connect. `changed` is called
        after each of their reports.
        """
        needed = self.needs(attempt.spec)
        after = attempt.after

        async def archive() -> Iterator[bytes]:
            """The outputs of the jobs that it waited for."""
            return inputs.archive(await after() if after else ())

        group = WorkerGroup(
            job_id=attempt.job_id,
            job_name=attempt.job_name,
            attempt=attempt.number,
            folder=attempt_dir(attempt.job_dir, attempt.number),
            workers=tuple(
                worker_dir(attempt.job_dir, attempt.number, each)
                for each in range(attempt.spec.n_workers)
            ),
            processes_per_worker=needed.processes
            if needed
            else 1,  # without needs no worker is started
            snapshot=attempt.snapshot,
            function=attempt.function,
            inputs=archive if after else None,
            log_limit_bytes=plan.log_share(attempt, self.options.settings.log_limit_bytes),
            owner=attempt.owner,
            may_return=ending.may_return(attempt.spec),
        )
        return self.registry.open(group, changed)

    def needs(self, spec: JobSpec) -> Needs | None:
        """Needs of a job. None: the catalogue has lost the instance type
        since the job was accepted.
        """
        try:
            return self.options.catalogue.needs(spec)
        except ClientLibError:
            return None
