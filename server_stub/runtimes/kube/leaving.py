"""Pods that are being deleted, and that nobody ends: their node has vanished, or its kubelet has.

Kubernetes keeps such a pod on the list, as running, until the node is back or an administrator removes it. An attempt
does not wait for that: when a pod had all the time that it was given to end, it is taken for lost. Time is counted here
from when this server saw the deletion, so that no other machine's clock matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from client_lib.spec.states import Reason
from server_stub.runtimes.kube.facts import Pod
from server_stub.runtimes.kube.words import Kind, meaning
from server_stub.workers import WorkerView

SLACK_S = 30.0
"""What a kubelet may take to end a pod beyond the pod's own grace period. Of a node that Kubernetes itself says is gone
nothing is awaited."""


class Leaving:
    """Of one attempt."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """By UID: when it was first seen to be deleted."""

    def look(self, pods: Iterable[Pod], now: float) -> tuple[Pod, ...]:
        """The same pods; those that nobody ends are `unanswered`. `now`: of a clock that never jumps."""
        found = tuple(pods)
        for pod in found:
            if pod.deleting and not pod.over:
                self._since.setdefault(pod.uid, now)
        return tuple(replace(pod, unanswered=True) if self._is_due(pod, now) else pod for pod in found)

    def next_due(self, pods: Iterable[Pod]) -> float | None:
        """When one of them will be unanswered; None: none is on its way out."""
        waited_for = [pod for pod in pods if pod.uid in self._since and not pod.over]
        return min((self._due(pod) for pod in waited_for), default=None)

    def _is_due(self, pod: Pod, now: float) -> bool:
        return pod.uid in self._since and not pod.over and now >= self._due(pod)

    def _due(self, pod: Pod) -> float:
        return self._since[pod.uid] + pod.grace_s + (0.0 if _is_node_lost(pod) else SLACK_S)


def takes_a_worker(pods: Iterable[Pod], views: Iterable[WorkerView]) -> bool:
    """A pod that speaks for a worker is being deleted."""
    owners = {view.pod_uid for view in views}
    return any(pod.deleting and not pod.over and pod.uid in owners for pod in pods)


def _is_node_lost(pod: Pod) -> bool:
    return pod.disruption is not None and meaning(Kind.DISRUPTION, pod.disruption.word).reason is Reason.NODE_LOST
