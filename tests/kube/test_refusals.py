"""What a refusal of the Kubernetes API means, by the texts that a real one gives."""

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.states import Reason
from server_stub.runtimes.kube.observe.messages import refusal

WHAT = ("PyTorchJob train", "training operator")


@pytest.mark.parametrize(
    ("status", "message", "reason", "retry", "said"),
    [
        (
            0,
            "10.0.0.1 does not answer: refused",
            Reason.QUEUED,
            "always",
            "the Kubernetes API does not answer",
        ),
        (
            500,
            (
                'Internal error occurred: failed calling webhook "validator.pytorchjob": '
                "connection refused"
            ),
            Reason.QUEUED,
            "always",
            "the webhook validator.pytorchjob does not answer: does the training operator run?",
        ),
        (
            403,
            'admission webhook "validator.pytorchjob.x" denied the request: spec: Forbidden',
            Reason.START_FAILED,
            "never",
            "the cluster refuses PyTorchJob train: admission webhook",
        ),
        (
            403,
            'pytorchjobs.kubeflow.org is forbidden: User "x" cannot create resource "pytorchjobs"',
            Reason.QUEUED,
            "of server",
            "this server may not make PyTorchJob train: ",
        ),
        (
            403,
            'pytorchjobs "train" is forbidden: exceeded quota: team, '
            "requested: count/pytorchjobs.kubeflow.org=1, "
            "used: count/pytorchjobs.kubeflow.org=5, limited: count/pytorchjobs.kubeflow.org=5",
            Reason.UNSCHEDULABLE,
            "always",
            "quota 'team' allows 5 count/pytorchjobs.kubeflow.org, 5 are used",
        ),
        (
            403,
            'admission webhook "team.quota" denied the request: exceeded quota of the team',
            Reason.UNSCHEDULABLE,
            "always",
            "admission webhook 'team.quota' refuses the pods: exceeded quota of the team",
        ),
        (
            404,
            "the server could not find the requested resource",
            Reason.QUEUED,
            "of server",
            "is the training operator installed?",
        ),
        (
            404,
            'namespaces "vision" not found',
            Reason.QUEUED,
            "of server",
            "PyTorchJob train can't be made: the namespace 'vision' does not exist",
        ),
        (
            403,
            (
                'pytorchjobs.kubeflow.org "train" is forbidden: unable to create new content in '
                "namespace vision because it is being terminated"
            ),
            Reason.QUEUED,
            "of server",
            "PyTorchJob train can't be made: the namespace 'vision' is being deleted",
        ),
        (
            400,
            'strict decoding error: unknown field "spec.foo"',
            Reason.START_FAILED,
            "never",
            'the cluster refuses PyTorchJob train: strict decoding error: unknown field "spec.foo"',
        ),
        (
            422,
            "ValidatingAdmissionPolicy 'no-friday' with binding 'all' denied request: not today",
            Reason.START_FAILED,
            "never",
            "the cluster's policy 'no-friday' refuses PyTorchJob train: not today",
        ),
    ],
)
def test_a_refusal_says_what_is_wrong_and_whether_to_ask_again(
    status: int, message: str, reason: Reason, retry: str, said: str
) -> None:
    met = refusal(status, message, *WHAT)
    again = "never" if met.permanent else "of server" if met.of_server else "always"
    assert (met.reason, again) == (reason, retry)
    assert said in met.message


@given(st.integers(0, 599), st.text())
def test_any_refusal_means_something(status: int, message: str) -> None:
    met = refusal(status, message, *WHAT)
    assert met.message
    assert met.reason is not Reason.COMPLETED
