"""Maps reports of Kubernetes to the reasons of a job: status words, and errors of a request to create an object. Pure.

A status word is for machines (`ErrImagePull`); `messages` interprets the text beside it. An unknown word also has a
meaning, marked as unknown. Sources, at Kubernetes 1.36: pkg/kubelet/container/sync_result.go,
pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime/kuberuntime_container.go, pkg/kubelet/eviction,
staging/src/k8s.io/api/core/v1/types.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from client_lib.spec.states import Reason
from server_stub.runtimes.kube.observe import messages as messages
from server_stub.runtimes.kube.observe.messages import shortened
from server_stub.runtimes.kube.workload import Meaning


class StatusField(Enum):
    """The field of a pod's status that contains the word."""

    WAITING = auto()
    """state.waiting.reason of a container that does not run yet."""
    SCHEDULING = auto()
    """Condition PodScheduled of a pod without a node."""
    ENDED = auto()
    """state.terminated.reason of a container that ended."""
    REFUSED = auto()
    """status.reason of a pod that was ended as a whole."""
    DISRUPTION = auto()
    """Condition DisruptionTarget of a pod that is evicted."""


_PULL = Meaning(Reason.IMAGE_PULL)
_STARTING = Meaning(Reason.STARTING)
_FAILED = Meaning(Reason.START_FAILED)
_LOST = Meaning(Reason.LAUNCHER_LOST)
_NODE = Meaning(Reason.NODE_LOST)
_TAKEN = Meaning(Reason.PREEMPTED)
_NO_ROOM = Meaning(Reason.UNSCHEDULABLE)

TABLE: Mapping[StatusField, Mapping[str, Meaning]] = {
    StatusField.WAITING: {
        "": _STARTING,
        "ContainerCreating": _STARTING,
        "PodInitializing": _STARTING,
        "ErrImagePull": _PULL,
        "ImagePullBackOff": _PULL,
        "ErrImageNeverPull": _PULL,
        "ImageInspectError": _PULL,
        "RegistryUnavailable": _PULL,
        "SignatureValidationFailed": _PULL,
        "InvalidImageName": Meaning(Reason.START_FAILED, permanent=True),
        "CreateContainerConfigError": _STARTING,  # a Secret or ConfigMap that isn't there yet
        "CreateContainerError": _STARTING,
        "RunContainerError": _STARTING,
        "CreatePodSandboxError": _STARTING,
        "ConfigPodSandboxError": _STARTING,
        "KillPodSandboxError": _STARTING,
        "KillContainerError": _STARTING,
        "PreCreateHookError": _STARTING,
        "PreStartHookError": _STARTING,
        "PostStartHookError": _STARTING,
        "CrashLoopBackOff": _STARTING,  # of an init container; the containers of workers are never restarted
    },
    StatusField.SCHEDULING: {
        "": Meaning(Reason.QUEUED),
        "Unschedulable": _NO_ROOM,
        "SchedulerError": _NO_ROOM,
        "SchedulingGated": Meaning(Reason.QUEUED),
    },
    StatusField.ENDED: {
        "": _LOST,
        "Completed": _LOST,  # the launcher ended without a report, even with exit code 0
        "Error": _LOST,
        "OOMKilled": Meaning(Reason.OUT_OF_MEMORY),
        "StartError": _FAILED,
        "ContainerCannotRun": _FAILED,
        "ContainerStatusUnknown": _NODE,  # the kubelet was away and found it gone
        "DeadlineExceeded": Meaning(Reason.TIMEOUT),
        "Evicted": _TAKEN,
        "Unknown": _LOST,
    },
    StatusField.REFUSED: {
        "": _LOST,
        "Evicted": _TAKEN,  # a worker that exceeded the limit of its files is told apart by the text
        "Preempting": _TAKEN,
        "NodeLost": _NODE,
        "NodeShutdown": _NODE,
        "Shutdown": _NODE,
        "Terminated": _NODE,
        "NodeAffinity": _NO_ROOM,
        "UnexpectedAdmissionError": _NO_ROOM,  # a device plugin had none of the devices that the scheduler counted
        "TopologyAffinityError": _NO_ROOM,
        "PodOSSelectorNodeLabelDoesNotMatch": _NO_ROOM,
        "PodOSNotSupported": _NO_ROOM,
        "AppArmor": _FAILED,
        "SysctlForbidden": _FAILED,
        "DeadlineExceeded": Meaning(Reason.TIMEOUT),
    },
    StatusField.DISRUPTION: {
        "": _TAKEN,
        "PreemptionByScheduler": _TAKEN,
        "PreemptionByKubeScheduler": _TAKEN,
        "EvictionByEvictionAPI": _TAKEN,
        "DeletionByTaintManager": _NODE,
        "DeletionByPodGC": _NODE,
        "TerminationByKubelet": _NODE,
    },
}

_UNKNOWN: Mapping[StatusField, Meaning] = {
    StatusField.WAITING: Meaning(Reason.STARTING, known=False),
    StatusField.SCHEDULING: Meaning(Reason.UNSCHEDULABLE, known=False),
    StatusField.ENDED: Meaning(Reason.LAUNCHER_LOST, known=False),
    StatusField.REFUSED: Meaning(Reason.LAUNCHER_LOST, known=False),
    StatusField.DISRUPTION: Meaning(Reason.PREEMPTED, known=False),
}


def meaning(kind: StatusField, word: str) -> Meaning:
    """The meaning of a word in this field; its `known` is False if the table lacks the word."""
    if kind is StatusField.REFUSED and word.startswith("OutOf"):  # OutOfcpu, OutOfpods, any extended resource
        return _NO_ROOM
    return TABLE[kind].get(word, _UNKNOWN[kind])


# --- errors of a request to create an object

_WEBHOOK_AWAY = re.compile(r"failed calling webhook \"(?P<name>[^\"]+)\"")
_DENIED = re.compile(r"^admission webhook \"")


class Retry(Enum):
    """Rule for repeating the request."""

    ALWAYS = auto()
    BRIEFLY = auto()
    """A few times: just after its start the API server refuses valid users."""
    NEVER = auto()


class Refusal(NamedTuple):
    """The reason why the objects of an attempt do not exist yet, or never will."""

    reason: Reason
    message: str
    retry: Retry


def refusal(status: int, message: str, what: str, operator: str) -> Refusal:
    """Interpret an ApiError. `what` is the object, such as `PyTorchJob train`."""
    if status in (0, 408, 429) or status >= 500:
        return _away(message, operator)
    policy = messages.POLICY.search(message)
    if policy:  # status 422, or the status that the policy chooses
        text = f"the cluster's policy '{policy.group('name')}' refuses {what}: {shortened(policy.group('why'))}"
        return Refusal(Reason.START_FAILED, text, Retry.NEVER)
    if status == 403:
        return _forbidden(message, what)
    if status == 401:
        return Refusal(Reason.QUEUED, f"the Kubernetes API refuses this server's credentials: {message}", Retry.ALWAYS)
    if status == 404:
        text = f"{what} can't be made: {shortened(message)}; is the {operator} installed, and the namespace there?"
        return Refusal(Reason.START_FAILED, text, Retry.BRIEFLY)
    return Refusal(Reason.START_FAILED, f"the cluster refuses {what}: {shortened(message)}", Retry.NEVER)


def _away(message: str, operator: str) -> Refusal:
    webhook = _WEBHOOK_AWAY.search(message)
    if webhook:
        text = f"the webhook {webhook.group('name')} does not answer: does the {operator} run?"
        return Refusal(Reason.QUEUED, text, Retry.ALWAYS)
    return Refusal(Reason.QUEUED, f"the Kubernetes API does not answer: {shortened(message)}", Retry.ALWAYS)


def _forbidden(message: str, what: str) -> Refusal:
    """Interpret a 403, which is a quota, a webhook or a missing right, by its text."""
    if "exceeded quota" in message:
        return Refusal(Reason.UNSCHEDULABLE, messages.not_created(message, 1, 0)[0], Retry.ALWAYS)
    if _DENIED.search(message):
        return Refusal(Reason.START_FAILED, f"the cluster refuses {what}: {shortened(message)}", Retry.NEVER)
    text = (
        f"this server may not make {what}: {shortened(message)}; `client-lib doctor` lists the rights that are missing"
    )
    return Refusal(Reason.START_FAILED, text, Retry.BRIEFLY)
