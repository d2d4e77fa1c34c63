"""Messages made from texts of the cluster. Numbers in ports, digests and times are
not read as status codes.
"""

import pytest
from hypothesis import given, strategies as st

from server_stub.runtimes.kube.observe import messages
from server_stub.runtimes.kube.observe.messages import refusal

CODES = st.sampled_from([401, 403, 404, 408, 429, 500])
PORTS = st.one_of(
    CODES, CODES.map(lambda code: 10_000 + code), CODES.map(lambda code: code * 10 + 5)
)
NOISE = st.one_of(
    PORTS.map(lambda port: f"read udp 10.1.40.3:{port}->10.96.0.10:53"),
    PORTS.map(lambda port: f'Head "https://r.io:{port}/v2/forbidden/not-found/manifests/404"'),
    PORTS.map(lambda port: f"dial tcp 10.0.0.1:{port}"),
    CODES.map(lambda code: f"sha256:{code}denied{code}{'0' * 50}"),
    CODES.map(lambda code: f'reference "r.io/denied/not found:{code}"'),
    CODES.map(lambda code: f"2026-11-22T04:04:01.{code}Z"),
    CODES.map(lambda code: f"after {code}ms"),
    CODES.map(lambda code: f"within 1.{code}s"),
)
"""Parts of the cluster's texts with numbers and names that say nothing about the cause."""

NOT_FOUND, SECRET = "not found", "not found, or the registry wants a pull secret"
CAUSES = [
    ("r.io/x:y: not found", NOT_FOUND),
    ("unexpected status code [manifests y]: 404 Not Found", NOT_FOUND),
    ("manifest unknown", NOT_FOUND),
    ("received unexpected HTTP status: 404", NOT_FOUND),
    ("pull access denied, repository does not exist or may require authorization", SECRET),
    ("unexpected status code [manifests y]: 401 Unauthorized", "the registry refuses it ("),
    ("received unexpected HTTP status: 403.", "the registry refuses it ("),
    ("requested access to the resource is denied", "the registry refuses it ("),
    ("i/o timeout", ""),
    ("no such host", ""),
    ("connect: connection refused", ""),
    ("x509: certificate signed by unknown authority", ""),
]


@pytest.mark.parametrize(("cause", "why"), CAUSES)
@given(noise=NOISE)
def test_why_an_image_can_not_be_pulled_depends_on_words_alone(
    cause: str, why: str, noise: str
) -> None:
    said = messages.cannot_pull("x:y", f"failed to pull: {noise}: {cause}").removeprefix(
        "image 'x:y' can't be pulled: "
    )
    if why in (NOT_FOUND, SECRET):
        assert said == why
    elif why:
        assert said.startswith(why)
    else:
        assert said.endswith(cause)
        assert "the registry" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "exceeded quota: team, requested: cpu=1, used: cpu=4, limited: cpu=4",
            "quota 'team' allows 4 cores",
        ),
        (
            'violates PodSecurity "restricted:latest": why',
            "the namespace's Pod Security level 'restricted' refuses",
        ),
        (
            'admission webhook "w" denied the request: why',
            "admission webhook 'w' refuses the pods: why",
        ),
        (
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: why",
            "the cluster's policy 'p' refuses",
        ),
        ("etcdserver: request timed out", "the pods could not be made: "),
    ],
)
@given(noise=NOISE)
def test_why_pods_are_not_made_depends_on_words_alone(text: str, said: str, noise: str) -> None:
    assert messages.not_created(f"Error creating: {noise}: {text}", 2, 0).message.startswith(said)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (0, "does not answer", "the Kubernetes API does not answer"),
        (500, 'failed calling webhook "w": refused', "the webhook w does not answer"),
        (
            403,
            "exceeded quota: team, requested: cpu=1, used: cpu=4, limited: cpu=4",
            "quota 'team' allows 4 cores",
        ),
        (403, "forbidden", "this server may not make it: "),
        (404, "not found", "it can't be made: "),
        (401, "Unauthorized", "the Kubernetes API refuses this server's credentials: "),
        (
            422,
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: why",
            "the cluster's policy 'p' refuses",
        ),
        (400, "strict decoding error", "the cluster refuses it: "),
    ],
)
@given(noise=NOISE)
def test_a_refusal_depends_on_words_alone(status: int, text: str, said: str, noise: str) -> None:
    assert refusal(status, f"{noise}: {text}", "it", "operator").message.startswith(said)


@given(noise=NOISE)
def test_a_missing_claim_is_named_with_the_way_out(noise: str) -> None:
    text = f'0/3 nodes are available: persistentvolumeclaim "data" not found. preemption: {noise}'
    assert messages.unschedulable(text, {"cpu": "1"}, "2026-11-22T12:01:00Z") == (
        "the PersistentVolumeClaim 'data' does not exist: it starts when an administrator has "
        "created it; a volume of the server's catalogue names it; waits since 12:01 UTC"
    )
