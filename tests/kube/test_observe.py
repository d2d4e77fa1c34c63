"""What is said of objects that a real cluster gave (recorded.json), and that any
object at all has a meaning.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.observe import (
    ClusterState,
    Interpretation,
    observe,
    reasons,
    taken_away,
)
from server_stub.runtimes.kube.observe.inventory import (
    Container,
    Event,
    StatusReason,
    Workload,
    parse_event,
    parse_pod,
    parse_workload,
)
from server_stub.runtimes.kube.observe.reasons import StatusField
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB, REPLICA_INDEX, REPLICA_TYPE
from server_stub.runtimes.verdict import Stage
from server_stub.worker_gateway.worker import WorkerView
from tests.kit.examples import examples

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded.json").read_text())

LABELS = {names.JOB_ID: "j", names.ATTEMPT: "1", names.MANAGED_BY: names.OURS}


def sight(name: str, n_workers: int = 1) -> ClusterState:
    """A recorded case, in which no worker has said a word."""
    case = RECORDED[name]
    pods = tuple(pod for raw in case["pods"] if (pod := parse_pod(raw, [PYTORCHJOB])))
    events = tuple(map(parse_event, case["events"]))
    silent = tuple(map(WorkerView, range(n_workers)))
    return ClusterState(n_workers, parse_workload(case["job"], PYTORCHJOB), pods, events, silent)


def message(name: str, n_workers: int = 1) -> str:
    return observe(sight(name, n_workers)).blocker.message


def lost(seen: Interpretation, worker: int = 0) -> tuple[Reason, str]:
    assert seen.workers[worker].stage is Stage.LOST
    return seen.workers[worker].lost_reason, seen.workers[worker].lost_because


# --- why it waits


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "0/1 nodes have 8 nvidia.com/gpu free; waits since 17:34 UTC"),
        ("cpu", "0/1 nodes have 100 cpu free; waits since 17:34 UTC"),
        (
            "select",
            (
                "0/1 nodes can take it: 1 node(s) didn't match Pod's node affinity/selector; waits "
                "since 17:34 UTC"
            ),
        ),
    ],
)
def test_a_gang_without_room_says_what_is_missing_and_since_when(name: str, said: str) -> None:
    seen = observe(sight(name, 2))
    assert (seen.blocker.reason, seen.blocker.message) == (Reason.UNSCHEDULABLE, said)
    assert [info.state for info in seen.infos] == ["waiting", "waiting"]


def test_a_quota_is_said_with_its_name_and_its_numbers() -> None:
    seen = observe(sight("quota2", 3))
    assert seen.blocker.reason is Reason.UNSCHEDULABLE
    assert seen.blocker.message == (
        "quota 'team' allows 0.293 GiB of memory, 0.195 are used, this job wants 0.586 GiB of "
        "memory"
    )


def test_a_quota_of_gpus_counts_what_others_use() -> None:
    text = (
        "exceeded quota: team, requested: requests.nvidia.com/gpu=2, used: "
        "requests.nvidia.com/gpu=4, limited: {}"
    )
    text = text.format("requests.nvidia.com/gpu=4")
    failed = Event(
        "e", "job", "FailedCreatePod", f'Error creating: pods "x" is forbidden: {text}', ""
    )
    job = sight("gpu").workload
    pod = replace(sight("gpu").pods[0], worker=0)
    assert job is not None
    seen = observe(
        ClusterState(2, replace(job, uid="job"), (pod,), (failed,), (WorkerView(0), WorkerView(1)))
    )
    assert seen.blocker.reason is Reason.UNSCHEDULABLE
    # one of the two pods is there and counts as used
    assert (
        "quota" not in seen.blocker.message
        or "2 are used, this job wants 4 GPUs" in seen.blocker.message
    )
    only = observe(
        ClusterState(2, replace(job, uid="job"), (), (failed,), (WorkerView(0), WorkerView(1)))
    )
    assert only.blocker.message == "quota 'team' allows 4 GPUs, 4 are used, this job wants 4 GPUs"


def test_a_job_without_pods_says_what_its_pod_group_waits_for() -> None:
    """Volcano keeps it out of its queue until there is room; the operator makes pods then."""
    job = sight("gpu").workload
    assert job is not None
    part = f"PodGroup/{job.name}"
    assert part in job.known_by
    waits = Event(
        "e", job.uid, "Unschedulable", "queue resource quota insufficient", "2026-11-23", part
    )
    state = ClusterState(
        2, job, events=(waits,), views=(WorkerView(0), WorkerView(1)), gang_scheduler="volcano"
    )
    blocker = observe(state).blocker
    assert blocker.message.startswith(
        "its PodGroup waits for volcano: queue resource quota insufficient; waits since"
    )
    assert (blocker.reason, blocker.counts_toward_timeout) == (Reason.QUEUED, False)


def test_pod_security_that_refuses_is_hopeless_and_says_what_is_wrong() -> None:
    seen = observe(sight("loose", 2))
    assert seen.blocker.permanent
    assert seen.blocker.reason is Reason.START_FAILED
    assert seen.blocker.message.startswith(
        "the namespace's Pod Security level 'restricted' refuses the pods: "
        "allowPrivilegeEscalation != false"
    )


def test_an_image_that_is_not_there_is_named() -> None:
    assert message("never-pull") == (
        "image 'localhost/none:local' can't be pulled: it is not on the node, and its pull policy "
        "is Never"
    )
    assert message("pull").startswith("image 'registry.invalid/none:1' can't be pulled: ")
    blocker = observe(sight("pull")).blocker
    assert blocker.reason is Reason.IMAGE_PULL
    # nobody else should wait for the place of a job that waits for what may never be
    assert blocker.counts_toward_timeout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('failed to resolve reference "r.io/x:y": r.io/x:y: not found', "not found"),
        (
            'failed to resolve reference "docker.io/me/x:y": pull access denied, repository does '
            "not exist or may require authorization: server message: insufficient_scope: "
            "authorization failed",
            "not found, or the registry wants a pull secret",
        ),
        (
            "pulling from host r.io failed with status code [manifests y]: 401 Unauthorized",
            (
                "the registry refuses it (pulling from host r.io failed with status code "
                "[manifests y]: 401 Unauthorized)"
            ),
        ),
        (
            "failed to do request: Head: dial tcp: lookup r.io: no such host",
            "lookup r.io: no such host",
        ),
        ("", ""),
    ],
)
def test_why_an_image_can_not_be_pulled_is_said_in_few_words(text: str, why: str) -> None:
    case = sight("pull")
    pod = replace(
        case.pods[0], image="x:y", main=Container("pytorch", StatusReason("ErrImagePull", text))
    )
    seen = observe(replace(case, pods=(pod,), events=()))
    assert seen.blocker.message == "image 'x:y' can't be pulled" + (f": {why}" if why else "")


def test_an_image_of_the_operators_own_container_is_named_and_not_the_jobs() -> None:
    case = sight("pull")
    init = Container(
        "init-pytorch",
        StatusReason("ErrImagePull", "r.io/debian:12: not found"),
        image="r.io/debian:12",
    )
    waits = replace(
        case.pods[0], init=(init,), main=Container("pytorch", StatusReason("PodInitializing"))
    )
    assert observe(replace(case, pods=(waits,))).blocker.message == (
        "image 'r.io/debian:12' can't be pulled: not found; the training operator's container "
        "init-pytorch is to run it"
    )
    creating = replace(waits, init=(replace(init, waiting=StatusReason("PodInitializing")),))
    pulling = Event(
        "e", waits.uid, "Pulling", 'Pulling image "r.io/debian:12"', "2026-11-21T12:01:30Z"
    )
    message = observe(replace(case, pods=(creating,), events=(pulling,))).blocker.message
    assert message.startswith("image 'r.io/debian:12' is being pulled on node ")


def test_a_pull_secret_that_is_missing_is_named() -> None:
    case = sight("pull")
    text = (
        "Unable to retrieve some image pull secrets (a, b); attempting to pull the image may not "
        "succeed."
    )
    missing = Event("e", case.pods[0].uid, "FailedToRetrieveImagePullSecret", text, "")
    message = observe(replace(case, events=(missing,))).blocker.message
    assert message.endswith("; there is no pull secret a, b")


def test_a_pull_that_fails_is_said_before_one_that_goes_on() -> None:
    failing = sight("pull")
    pod = replace(
        failing.pods[0], worker=1, uid="other", main=Container("pytorch", StatusReason(""))
    )
    pulling = Event("e", "other", "Pulling", "Pulling image", "2026-11-21T12:01:30Z")
    for pods in ((failing.pods[0], pod), (pod, failing.pods[0])):
        both = observe(
            replace(
                failing,
                n_workers=2,
                pods=pods,
                events=(pulling,),
                views=(WorkerView(0), WorkerView(1)),
            )
        )
        assert "can't be pulled" in both.blocker.message
        assert both.blocker.counts_toward_timeout


def test_a_name_that_no_image_can_have_is_hopeless() -> None:
    blocker = observe(sight("bad-image-name")).blocker
    assert blocker.permanent
    assert blocker.message == (
        "image 'localhost/None:x:y' can't be pulled: invalid reference format: repository name "
        "(None) must be lowercase"
    )


def test_an_image_that_is_being_pulled_says_so() -> None:
    case = sight("never-pull")
    creating = replace(case.pods[0], main=Container("pytorch", StatusReason("ContainerCreating")))
    pulling = Event("e", creating.uid, "Pulling", "Pulling image", "2026-11-21T12:01:30Z")
    seen = observe(replace(case, pods=(creating,), events=(pulling,)))
    assert seen.blocker.reason is Reason.IMAGE_PULL
    assert seen.blocker.message == (
        "image 'localhost/none:local' is being pulled on node node1; waits since 12:01 UTC"
    )
    assert not seen.blocker.counts_toward_timeout  # a gang may take its time for it
    pulled = replace(pulling, reason="Pulled", at="2026-11-21T12:02:00Z")
    assert (
        observe(replace(case, pods=(creating,), events=(pulling, pulled))).blocker.reason
        is Reason.STARTING
    )


def test_a_job_that_no_operator_has_seen_says_so() -> None:
    case = replace(sight("running", 2), pods=())
    assert (
        observe(case).blocker.message == "the operator has made no pod yet; waits since 17:34 UTC"
    )


def test_a_job_that_the_operator_has_given_up_without_a_pod_is_hopeless() -> None:
    """Pods that are there tell by themselves. A pod that is preempted before its agent has reached
    the server leaves nothing but the operator's word."""
    job = sight("running", 2).workload
    assert job is not None

    def given_up(text: str) -> Workload:
        return replace(job, conditions=(*job.conditions, StatusReason("Failed", text)))

    failed = given_up("the spec is not valid")
    seen = observe(ClusterState(2, failed, views=(WorkerView(0), WorkerView(1))))
    assert seen.blocker.permanent
    assert seen.blocker.message == "the operator has given the PyTorchJob up: the spec is not valid"
    assert seen.blocker.reason is Reason.LAUNCHER_LOST
    had_pods = tuple(WorkerView(number, pod_uid="gone") for number in range(2))
    unheard = (WorkerView(0), WorkerView(1))
    without_pods = given_up("PyTorchJob train is failed because 1 Worker replica(s) failed.")
    at_limit = given_up("Job train has failed because it has reached the specified backoff limit")
    for workload, views in (
        (failed, had_pods),
        (without_pods, unheard),
        (at_limit, unheard),
    ):
        lost = observe(ClusterState(2, workload, views=views)).blocker
        assert (lost.reason, lost.permanent) == (Reason.PREEMPTED, True)
        assert lost.message.startswith("all 2 workers lost their pods, as by a drain of a node; ")
    assert not observe(replace(sight("running", 2), workload=failed)).blocker.permanent


def test_a_condition_that_the_table_lacks_is_reported() -> None:
    raw = json.loads(json.dumps(RECORDED["running"]["job"]))
    raw["status"]["conditions"] = [{"type": "Melting", "status": "True"}]
    seen = observe(replace(sight("running", 2), workload=parse_workload(raw, PYTORCHJOB)))
    assert seen.unknown == (
        "Kubernetes says 'Melting' (job) of a PyTorchJob, a word that this server does not know",
    )


def test_a_suspended_job_waits_for_its_queue() -> None:
    job = sight("running", 2).workload
    assert job is not None
    suspended = StatusReason("Suspended", "", "2026-11-21T12:01:00Z")
    job = replace(job, queue="team", suspended=True, conditions=(suspended,))
    state = ClusterState(2, job, views=(WorkerView(0), WorkerView(1)))
    seen = observe(state)
    assert (seen.blocker.reason, seen.blocker.message) == (
        Reason.QUEUED,
        "waits for queue team; waits since 12:01 UTC",
    )
    assert not seen.blocker.counts_toward_timeout
    placed = observe(replace(state, queue_place="3rd of 7 in queue team"))
    assert placed.blocker.message == "3rd of 7 in queue team; waits since 12:01 UTC"


def test_a_job_that_kueue_suspends_is_preempted_and_says_for_whom() -> None:
    case = sight("running", 2)
    job = case.workload
    assert job is not None
    gone = replace(case, workload=replace(job, queue="team", suspended=True), pods=())
    assert taken_away(gone, "PyTorchJob train") == (
        Reason.PREEMPTED,
        "Kueue has taken its place in queue team back",
    )
    stopped = Event("e", job.uid, "Stopped", "Preempted to accommodate a workload", "")
    assert taken_away(replace(gone, events=(stopped,)), "PyTorchJob train")[1].endswith(
        "back: Preempted to accommodate a workload"
    )
    assert (
        taken_away(replace(gone, workload=replace(job, suspended=True)), "x")[0]
        is Reason.DELETED_EXTERNALLY
    )


def test_pods_that_run_prepare_until_their_workers_say_otherwise() -> None:
    case = sight("running", 2)
    assert message("running", 2) == "0 of 2 workers are prepared"
    uids = [pod.uid for pod in sorted(case.pods, key=lambda pod: pod.worker)]
    views = (WorkerView(0, uids[0], state="ready"), WorkerView(1, uids[1], state="preparing"))
    seen = observe(replace(case, views=views))
    assert seen.blocker.message == "1 of 2 workers are prepared"
    assert [worker.stage for worker in seen.workers] == [Stage.READY, Stage.STARTING]
    started = tuple(replace(view, state="started") for view in views)
    assert {worker.stage for worker in observe(replace(case, views=started)).workers} == {
        Stage.STARTED
    }


def test_where_pods_reach_no_server_a_container_that_runs_counts_as_started() -> None:
    assert {worker.stage for worker in observe(replace(sight("running", 2), views=())).workers} == {
        Stage.STARTED
    }


# --- why it ended


def test_a_worker_that_used_too_much_memory_is_said_with_its_limit() -> None:
    assert lost(observe(sight("oom"))) == (
        Reason.OUT_OF_MEMORY,
        "worker 0 was killed for using more than its 0.5 GiB of memory",
    )


def test_a_child_that_used_too_much_memory_is_out_of_memory_though_the_container_ended_with_0() -> (
    None
):
    assert lost(observe(sight("oom-child")))[0] is Reason.OUT_OF_MEMORY


def test_a_report_of_a_killed_rank_becomes_out_of_memory_where_the_kernel_says_so() -> None:
    case = sight("oom-child")
    report: Any = {
        "reason": "Signal",
        "message": "rank 1 was killed by signal 9",
        "exit_code": 137,
        "ranks": [],
    }
    seen = observe(replace(case, views=(WorkerView(0, case.pods[0].uid, report=report),)))
    assert seen.workers[0].report == report | {
        "reason": "OutOfMemory",
        "message": "worker 0 was killed for using more than its 0.5 GiB of memory",
    }


def test_an_image_without_python_says_what_to_take() -> None:
    assert lost(observe(sight("no-python"))) == (
        Reason.START_FAILED,
        (
            "image 'localhost/python:local' has no python9, which starts the worker: take an image "
            "with Python 3"
        ),
    )


def test_a_launcher_that_dies_without_a_word_is_lost_with_its_exit_code() -> None:
    assert lost(observe(sight("segv"))) == (
        Reason.LAUNCHER_LOST,
        "worker 0 ended with exit code 139 and left no report",
    )


def test_what_a_rank_leaves_for_the_kubelet_can_be_stored() -> None:
    """A rank may write anything to /dev/termination-log."""
    [raw] = json.loads(json.dumps(RECORDED["segv"]["pods"]))
    [container] = raw["status"]["containerStatuses"]
    container["state"]["terminated"]["message"] = "done\0"
    pod = parse_pod(raw, [PYTORCHJOB])
    assert pod is not None
    said = lost(observe(replace(sight("segv"), pods=(pod,))))[1]
    assert said == "worker 0 ended with exit code 139 and left no report: done\\x00"


def digest_of(reason: str, message: str) -> dict[str, Any]:
    return {
        "protocol": 1,
        "worker": 0,
        "attempt": 1,
        "exit_code": 1,
        "reason": reason,
        "message": message,
        "ended_at": "2026-11-21T10:00:00+00:00",
        "ranks": [],
        "log_end_seq": 0,
        "log_end_offset": 0,
    }


def test_a_digest_in_the_termination_message_is_as_good_as_a_report() -> None:
    digest = digest_of("ExitCode", "rank 0 ended with exit code 3")
    pod = sight("term").pods[0]
    assert pod.main.ended is not None
    ended = replace(pod.main.ended, text=json.dumps(digest))
    seen = observe(
        replace(sight("term"), pods=(replace(pod, main=replace(pod.main, ended=ended)),))
    )
    assert seen.workers[0].stage is Stage.ENDED
    assert seen.workers[0].report == digest


def test_an_elastic_worker_that_never_reached_the_server_has_ended_though_it_starts_again() -> None:
    digest = digest_of("NodeLost", "worker 0 has not reached its server")
    said = StatusReason("Error", json.dumps(digest), exit_code=1)
    pod = sight("running", 2).pods[0]
    again = replace(pod, worker=0, main=replace(pod.main, before=said))
    state = replace(sight("running", 2), n_workers=1, pods=(again,), views=(WorkerView(0),))
    assert observe(state).workers[0].report == digest
    claimed = replace(state, views=(WorkerView(0, pod.uid, state="started"),))
    assert observe(claimed).workers[0].stage is Stage.STARTED


def test_the_wait_for_the_first_word_of_a_running_worker_is_the_limit_of_its_agent() -> None:
    pod = replace(sight("running", 2).pods[0], worker=0)
    state = replace(sight("running", 2), n_workers=1, pods=(pod,), views=(WorkerView(0),))
    assert not observe(state).blocker.counts_toward_timeout
    spoke = replace(state, views=(WorkerView(0, pod.uid, state="preparing"),))
    assert observe(spoke).blocker.counts_toward_timeout


def test_the_report_of_a_worker_counts_whatever_became_of_its_pod() -> None:
    report: Any = {"reason": "Completed", "message": "", "exit_code": 0, "ranks": []}
    seen = observe(replace(sight("oom"), pods=(), views=(WorkerView(0, "uid", report=report),)))
    assert seen.workers[0].stage is Stage.ENDED
    assert not seen.workers[0].failed


def test_a_pod_that_took_the_place_of_one_that_ran_is_none_of_this_attempt() -> None:
    pod = sight("running", 2).pods[0]
    views = (WorkerView(0, "another"), WorkerView(1))
    seen = observe(replace(sight("running", 2), pods=(replace(pod, worker=0),), views=views))
    assert lost(seen)[0] is Reason.PREEMPTED


def test_a_pod_that_goes_before_it_spoke_may_be_replaced() -> None:
    gone = replace(sight("running", 2).pods[0], worker=0, gone=True, main=Container("pytorch"))
    assert (
        observe(replace(sight("running", 1), pods=(gone,), views=(WorkerView(0),))).workers[0].stage
        is Stage.STARTING
    )
    spoke = observe(replace(sight("running", 1), pods=(gone,), views=(WorkerView(0, gone.uid),)))
    assert lost(spoke) == (
        Reason.DELETED_EXTERNALLY,
        "the pod of worker 0 was deleted by someone else",
    )


def test_a_pod_that_is_taken_away_says_by_whom() -> None:
    pod = replace(
        sight("running", 2).pods[0],
        worker=0,
        gone=True,
        disruption=StatusReason(
            "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
        ),
    )
    seen = observe(replace(sight("running", 1), pods=(pod,), views=(WorkerView(0, pod.uid),)))
    assert lost(seen) == (
        Reason.NODE_LOST,
        "worker 0 was taken away from node node1: Taint manager: deleting due to NoExecute taint",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ',
            "more than 1Gi to /tmp; put large files on a volume",
        ),
        (
            'Usage of EmptyDir volume "home" exceeds the limit "1Ti".',
            "more than 1Ti to /client-lib/home",
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 51712Mi. ",
            "51712Mi to its own disk",
        ),
        (
            'Container pytorch exceeded its local ephemeral storage limit "1.5Gi". ',
            "more than 1.5Gi to its own disk",
        ),
        (
            'Usage of EmptyDir volume "shm" exceeds the limit "2Gi". ',
            "more than 2Gi to /dev/shm; take a larger shm_size_class",
        ),
    ],
)
def test_a_pod_that_exceeds_its_own_limit_is_not_preempted_and_one_of_a_full_node_is_lost_with_it(
    text: str, said: str
) -> None:
    pod = replace(
        sight("running", 2).pods[0], worker=0, gone=True, refused=StatusReason("Evicted", text)
    )
    views = (WorkerView(0, pod.uid),)
    reason, why = lost(observe(replace(sight("running", 1), pods=(pod,), views=views)))
    assert reason is Reason.STORAGE_FULL
    assert why.startswith("worker 0 was ended on node node1: ")
    assert said in why
    low = StatusReason("TerminationByKubelet", "The node was low on resource: memory.")
    full = replace(pod, disruption=low)
    assert (
        lost(observe(replace(sight("running", 1), pods=(full,), views=views)))[0]
        is Reason.NODE_LOST
    )
    other = replace(
        pod, refused=StatusReason("Evicted", "The node had condition: [MemoryPressure]. ")
    )
    assert (
        lost(observe(replace(sight("running", 1), pods=(other,), views=views)))[0]
        is Reason.PREEMPTED
    )


def test_who_stopped_the_workers_is_told_from_what_was_deleted() -> None:
    case = sight("running", 2)
    assert (
        taken_away(replace(case, workload=None), "PyTorchJob train")[1]
        == "PyTorchJob train was deleted by someone else"
    )
    pods = (replace(case.pods[0], ends_by="2026-11-23T18:00:00Z"), case.pods[1])
    assert taken_away(replace(case, pods=pods), "PyTorchJob train") == (
        Reason.DELETED_EXTERNALLY,
        f"the pod of worker {pods[0].worker} was deleted by someone else",
    )
    both = tuple(replace(pod, ends_by=f"2026-11-23T18:00:0{pod.worker}Z") for pod in case.pods)
    assert (
        taken_away(replace(case, pods=both), "x")[1]
        == "the pod of worker 0 was deleted by someone else"
    )


# --- total


def test_every_word_of_the_table_has_a_meaning_and_every_kind_has_words() -> None:
    for field in get_args(StatusField):
        assert reasons.TABLE[field]
        for word in reasons.TABLE[field]:
            assert reasons.is_known(field, word)


@given(field=st.sampled_from(get_args(StatusField)), word=st.text(min_size=1))
def test_a_word_that_the_table_lacks_has_a_meaning_and_is_unknown(
    field: StatusField, word: str
) -> None:
    known = word in reasons.TABLE[field] or (field == "refused" and word.startswith("OutOf"))
    assert reasons.is_known(field, word) is known
    assert reasons.meaning(field, word) in Reason


def test_an_unknown_word_is_said_aloud() -> None:
    pod = replace(
        sight("pull").pods[0], main=Container("pytorch", StatusReason("ErrImageMelted", "too hot"))
    )
    seen = observe(replace(sight("pull"), pods=(pod,)))
    assert "too hot" in seen.blocker.message
    assert seen.unknown == (
        (
            "Kubernetes says 'ErrImageMelted' (waiting) of a pod, a word that this server does not "
            "know"
        ),
    )


TEXT = st.one_of(
    st.none(),
    st.sampled_from(["", "Unschedulable", "0/3 nodes are available: 3 x.", "{}", "1"]),
    st.text(),
)
ANY_WORD = st.one_of(
    st.sampled_from(sorted({word for table in reasons.TABLE.values() for word in table})), TEXT
)
STATE: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries(
        {"waiting": st.fixed_dictionaries({}, optional={"reason": ANY_WORD, "message": TEXT})}
    ),
    st.fixed_dictionaries({"running": st.fixed_dictionaries({}, optional={"startedAt": TEXT})}),
    st.fixed_dictionaries(
        {
            "terminated": st.fixed_dictionaries(
                {"exitCode": st.integers(0, 255)}, optional={"reason": ANY_WORD, "message": TEXT}
            )
        }
    ),
    st.just({}),
)
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["PodScheduled", "DisruptionTarget", "Ready", "Suspended", "Created"]
        )
    },
    optional={
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reason": ANY_WORD,
        "message": TEXT,
    },
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"state": STATE}, optional={"name": st.sampled_from(["pytorch", "init"])}
    ),
    max_size=2,
)
POD = st.builds(
    lambda status, spec, index, uid, gone: (
        {
            "metadata": {
                "name": "p",
                "uid": uid,
                "labels": LABELS | {REPLICA_TYPE: "worker", REPLICA_INDEX: str(index)},
            }
            | gone,
            "spec": spec,
            "status": status,
        }
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "phase": st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]),
            "reason": ANY_WORD,
            "message": TEXT,
            "conditions": st.one_of(st.none(), st.lists(CONDITION, max_size=3)),
            "containerStatuses": st.one_of(st.none(), CONTAINERS),
            "initContainerStatuses": CONTAINERS,
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={"nodeName": TEXT, "containers": st.just([{}, {"name": "pytorch", "image": "x"}])},
    ),
    st.integers(0, 2),
    st.sampled_from("abc"),
    st.sampled_from([{}, {"deletionTimestamp": "2026-11-21T12:01:00Z"}]),
)
EVENT = st.fixed_dictionaries(
    {
        "metadata": st.just({"uid": "e"}),
        "involvedObject": st.fixed_dictionaries({"uid": st.sampled_from("jab")}),
    },
    optional={
        "reason": st.one_of(st.sampled_from(["FailedCreatePod", "Pulling", "FailedMount"]), TEXT),
        "message": TEXT,
        "lastTimestamp": TEXT,
    },
)
VIEW = st.builds(
    WorkerView,
    worker=st.just(0),
    pod_uid=st.sampled_from([None, "a", "b"]),
    state=st.sampled_from([None, "preparing", "ready", "started", "ended"]),
    report=st.sampled_from(
        [None, {"reason": "Signal", "message": "", "exit_code": 1, "ended_at": "x", "ranks": []}]
    ),
)
JOB = st.one_of(
    st.none(),
    st.builds(
        lambda conditions: {"metadata": {"uid": "j", "labels": LABELS}, "status": conditions},
        st.fixed_dictionaries({}, optional={"conditions": st.lists(CONDITION, max_size=3)}),
    ),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    JOB,
    st.lists(POD, max_size=4),
    st.lists(EVENT, max_size=3),
    st.lists(VIEW, max_size=3),
    st.integers(1, 3),
)
def test_any_sight_means_something(
    job: Any, pods: list[Any], events: list[Any], views: list[WorkerView], n_workers: int
) -> None:
    known = tuple(pod for raw in pods if (pod := parse_pod(raw, [PYTORCHJOB])))
    given_ = ClusterState(
        n_workers,
        parse_workload(job, PYTORCHJOB) if job else None,
        known,
        tuple(map(parse_event, events)),
        tuple(views),
    )
    seen = observe(given_)
    assert len(seen.workers) == len(seen.infos) == n_workers
    assert all(isinstance(info, WorkerInfo) for info in seen.infos)
    assert seen.blocker.reason in Reason
    for worker in seen.workers:
        assert worker.stage is not Stage.LOST or (
            worker.lost_because and worker.lost_reason is not Reason.COMPLETED
        )
    assert observe(given_) == seen  # pure
    assert taken_away(given_, "PyTorchJob train")[0] is not Reason.COMPLETED


def test_the_kubelets_word_for_a_memory_limit_completes_the_message_of_a_rank_that_failed() -> None:
    case = sight("running")
    ended = StatusReason("OOMKilled", exit_code=1)
    pod = replace(case.pods[0], worker=0, uid="uid", main=Container("pytorch", ended=ended))
    report: Any = {
        "reason": "ExitCode",
        "message": "rank 0 ended with exit code 1",
        "exit_code": 1,
        "ranks": [],
    }
    view = WorkerView(0, "uid", report=report)
    (worker,) = observe(replace(case, pods=(pod,), views=(view,))).workers
    assert worker.report is not None
    assert worker.report["reason"] == "OutOfMemory"
    assert worker.report["message"] == (
        "rank 0 ended with exit code 1; a process of its worker was killed because the memory "
        "limit was reached"
    )


def test_the_quiet_ranks_that_an_agent_tells_are_those_of_its_worker() -> None:
    views = (
        WorkerView(0, state="started", quiet=((0, 5.0),)),
        WorkerView(1, state="started", quiet=((1, 7.0),)),
    )
    workers = observe(ClusterState(2, None, views=views)).workers
    assert [worker.quiet for worker in workers] == [((0, 5.0),), ((1, 7.0),)]
