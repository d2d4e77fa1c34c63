"""Maps status words of Kubernetes to the reasons of a job. Pure.

A status word is for machines (`ErrImagePull`). Sources, at Kubernetes 1.36:
pkg/kubelet/container/sync_result.go, pkg/kubelet/images/types.go,
pkg/kubelet/kuberuntime/kuberuntime_container.go, pkg/kubelet/eviction,
staging/src/k8s.io/api/core/v1/types.go.
"""

from collections.abc import Mapping
from typing import Literal

from client_lib.spec.states import Reason

NO_IMAGE_NAME = "InvalidImageName"
"""Status word of a container that will never run."""
StatusField = Literal["waiting", "scheduling", "ended", "refused", "disruption"]
"""The field of a pod's status that contains the word, see TABLE."""


def _words(by_reason: Mapping[Reason, str]) -> dict[str, Reason]:
    return {word: reason for reason, words in by_reason.items() for word in words.split()}


TABLE: Mapping[StatusField, Mapping[str, Reason]] = {
    # state.waiting.reason of a container that does not run yet: CreateContainerConfigError means a
    # Secret or ConfigMap that isn't there yet; CrashLoopBackOff is the reason of an init container,
    # or of a worker that has not reported
    "waiting": _words(
        {
            Reason.STARTING: "ContainerCreating PodInitializing CreateContainerConfigError "
            "CreateContainerError RunContainerError CreatePodSandboxError "
            "ConfigPodSandboxError KillPodSandboxError KillContainerError PreCreateHookError "
            "PreStartHookError PostStartHookError CrashLoopBackOff",
            Reason.IMAGE_PULL: "ErrImagePull ImagePullBackOff ErrImageNeverPull ImageInspectError "
            "RegistryUnavailable SignatureValidationFailed",
            Reason.START_FAILED: NO_IMAGE_NAME,
        }
    ),
    # condition PodScheduled of a pod without a node
    "scheduling": {"": Reason.QUEUED}
    | _words(
        {Reason.UNSCHEDULABLE: "Unschedulable SchedulerError", Reason.QUEUED: "SchedulingGated"}
    ),
    # state.terminated.reason of a container that ended: with Completed the launcher left no report,
    # even with exit code 0; with ContainerStatusUnknown the kubelet was away and found the
    # container gone
    "ended": _words(
        {
            Reason.LAUNCHER_LOST: "Completed Error Unknown",
            Reason.OUT_OF_MEMORY: "OOMKilled",
            Reason.START_FAILED: "StartError ContainerCannotRun",
            Reason.NODE_LOST: "ContainerStatusUnknown",
            Reason.TIMEOUT: "DeadlineExceeded",
            Reason.PREEMPTED: "Evicted",
        }
    ),
    # status.reason of a pod that was ended as a whole: an evicted worker that exceeded the limit of
    # its files is told apart by the text; UnexpectedAdmissionError: a device plugin had none of the
    # devices that the scheduler counted
    "refused": _words(
        {
            Reason.PREEMPTED: "Evicted Preempting",
            Reason.NODE_LOST: "NodeLost NodeShutdown Shutdown Terminated",
            Reason.UNSCHEDULABLE: "NodeAffinity UnexpectedAdmissionError TopologyAffinityError "
            "PodOSSelectorNodeLabelDoesNotMatch PodOSNotSupported",
            Reason.START_FAILED: "AppArmor SysctlForbidden",
            Reason.TIMEOUT: "DeadlineExceeded",
        }
    ),
    # condition DisruptionTarget of a pod that is evicted
    "disruption": _words(
        {
            Reason.PREEMPTED: (
                "PreemptionByScheduler PreemptionByKubeScheduler EvictionByEvictionAPI"
            ),
            Reason.NODE_LOST: "DeletionByTaintManager DeletionByPodGC TerminationByKubelet",
        }
    ),
}
_OTHERWISE: Mapping[StatusField, Reason] = {
    "waiting": Reason.STARTING,
    "scheduling": Reason.UNSCHEDULABLE,
    "ended": Reason.LAUNCHER_LOST,
    "refused": Reason.LAUNCHER_LOST,
    "disruption": Reason.PREEMPTED,
}
"""Meanings of words that the table lacks."""


def meaning(field: StatusField, word: str) -> Reason:
    """Reason why the job waits, or why its worker ended, by a word in this
    field; every word has one.
    """
    # OutOfcpu, OutOfpods, any extended resource
    if field == "refused" and word.startswith("OutOf"):
        return Reason.UNSCHEDULABLE
    return TABLE[field].get(word, _OTHERWISE[field])


def is_known(field: StatusField, word: str) -> bool:
    """True if the table has the word; an empty one says nothing and is known, too."""
    return not word or word in TABLE[field] or (field == "refused" and word.startswith("OutOf"))
