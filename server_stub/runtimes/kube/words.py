"""The one table from Kubernetes' and the operator's words to ours. Pure and total: an unknown word has a meaning, too,
and says that it is unknown.

A word is what a machine reads (`ErrImagePull`); the sentence beside it is in `sentences`. Sources, at Kubernetes 1.36
and training-operator 1.9: pkg/kubelet/container/sync_result.go, pkg/kubelet/images/types.go,
pkg/kubelet/kuberuntime/kuberuntime_container.go, pkg/kubelet/eviction, staging/src/k8s.io/api/core/v1/types.go,
pkg/apis/kubeflow.org/v1/common_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from client_lib.spec.states import Reason


class Kind(Enum):
    """Where a word is said."""

    WAITING = auto()
    """A container that doesn't run yet: state.waiting.reason."""
    SCHEDULING = auto()
    """A pod without a node: condition PodScheduled."""
    ENDED = auto()
    """A container that ended: state.terminated.reason."""
    REFUSED = auto()
    """A pod that was ended as a whole: status.reason."""
    DISRUPTION = auto()
    """A pod that is taken away: condition DisruptionTarget."""
    JOB = auto()
    """A PyTorchJob's conditions."""


class Word(NamedTuple):
    """What a foreign word means."""

    reason: Reason
    """While it waits, or why it ended."""
    hopeless: bool = False
    """Of something that waits: it doesn't become better by itself, so the attempt ends."""
    known: bool = True


_PULL = Word(Reason.IMAGE_PULL)
_STARTING = Word(Reason.STARTING)
_FAILED = Word(Reason.START_FAILED)
_LOST = Word(Reason.LAUNCHER_LOST)
_NODE = Word(Reason.NODE_LOST)
_TAKEN = Word(Reason.PREEMPTED)
_NO_ROOM = Word(Reason.UNSCHEDULABLE)

TABLE: Mapping[Kind, Mapping[str, Word]] = {
    Kind.WAITING: {
        "": _STARTING,
        "ContainerCreating": _STARTING,
        "PodInitializing": _STARTING,
        "ErrImagePull": _PULL,
        "ImagePullBackOff": _PULL,
        "ErrImageNeverPull": _PULL,
        "ImageInspectError": _PULL,
        "RegistryUnavailable": _PULL,
        "SignatureValidationFailed": _PULL,
        "InvalidImageName": Word(Reason.START_FAILED, hopeless=True),
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
        "CrashLoopBackOff": _STARTING,  # of an init container; our own are never restarted
    },
    Kind.SCHEDULING: {
        "": Word(Reason.QUEUED),
        "Unschedulable": _NO_ROOM,
        "SchedulerError": _NO_ROOM,
        "SchedulingGated": Word(Reason.QUEUED),
    },
    Kind.ENDED: {
        "": _LOST,
        "Completed": _LOST,  # a launcher that left without a word, be it with 0
        "Error": _LOST,
        "OOMKilled": Word(Reason.OUT_OF_MEMORY),
        "StartError": _FAILED,
        "ContainerCannotRun": _FAILED,
        "ContainerStatusUnknown": _NODE,  # the kubelet was away and found it gone
        "DeadlineExceeded": Word(Reason.TIMEOUT),
        "Evicted": _TAKEN,
        "Unknown": _LOST,
    },
    Kind.REFUSED: {
        "": _LOST,
        "Evicted": _TAKEN,
        "Preempting": _TAKEN,
        "NodeLost": _NODE,
        "NodeShutdown": _NODE,
        "Shutdown": _NODE,
        "Terminated": _NODE,
        "NodeAffinity": _NO_ROOM,
        "OutOfcpu": _NO_ROOM,
        "OutOfmemory": _NO_ROOM,
        "OutOfpods": _NO_ROOM,
        "OutOfephemeral-storage": _NO_ROOM,
        "UnexpectedAdmissionError": _NO_ROOM,  # a device plugin had none of the devices that the scheduler counted
        "TopologyAffinityError": _NO_ROOM,
        "PodOSSelectorNodeLabelDoesNotMatch": _NO_ROOM,
        "PodOSNotSupported": _NO_ROOM,
        "AppArmor": _FAILED,
        "SysctlForbidden": _FAILED,
        "DeadlineExceeded": Word(Reason.TIMEOUT),
    },
    Kind.DISRUPTION: {
        "": _TAKEN,
        "PreemptionByScheduler": _TAKEN,
        "PreemptionByKubeScheduler": _TAKEN,
        "EvictionByEvictionAPI": _TAKEN,
        "DeletionByTaintManager": _NODE,
        "DeletionByPodGC": _NODE,
        "TerminationByKubelet": _NODE,
    },
    Kind.JOB: {
        "Created": Word(Reason.QUEUED),
        "Suspended": Word(Reason.QUEUED),
        "Running": _STARTING,  # its master runs; whether the ranks do, the workers tell
        "Restarting": _STARTING,
        "Succeeded": Word(Reason.COMPLETED),
        "Failed": Word(Reason.LAUNCHER_LOST, hopeless=True),
    },
}

_UNKNOWN: Mapping[Kind, Word] = {
    Kind.WAITING: Word(Reason.STARTING, known=False),
    Kind.SCHEDULING: Word(Reason.UNSCHEDULABLE, known=False),
    Kind.ENDED: Word(Reason.LAUNCHER_LOST, known=False),
    Kind.REFUSED: Word(Reason.LAUNCHER_LOST, known=False),
    Kind.DISRUPTION: Word(Reason.PREEMPTED, known=False),
    Kind.JOB: Word(Reason.STARTING, known=False),
}


def meaning(kind: Kind, word: str) -> Word:
    """What the word means where it is said; `known` is False for one that the table lacks."""
    found = TABLE[kind].get(word)
    if found is None and kind is Kind.REFUSED and word.startswith("OutOf"):  # of any extended resource
        return _NO_ROOM
    return found if found is not None else _UNKNOWN[kind]
