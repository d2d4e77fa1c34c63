"""Turns the texts and refusals of Kubernetes into short messages for users, with the important
numbers. Pure.

The texts have no fixed form and may change with a release, so an unknown text is passed on
unchanged. `reasons` has the words that are for machines.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from client_lib.spec.states import Reason

_NODES = re.compile(r"^(\d+/\d+) nodes are available: (.*)$", re.DOTALL)
_WHY_NOT = re.compile(r"(\d+) (.+)$", re.DOTALL)
_LACKS = re.compile(r"^(?:Insufficient|Too many) (\S+)$")
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>\S+), requested: (?P<requested>\S+), used: (?P<used>\S+), limited: "
    r"(?P<hard>\S+)"
)
_WEBHOOK_AWAY = re.compile(r"failed calling webhook \"(?P<name>[^\"]+)\"")
_POLICY = re.compile(
    r"ValidatingAdmissionPolicy '(?P<name>[^']+)'[^:]*denied request: (?P<why>.*)", re.DOTALL
)
_REFUSALS = {
    "the namespace's Pod Security level": re.compile(
        r"violates PodSecurity \"(?P<name>[^\":]+)[^\"]*\": (?P<why>.*)", re.DOTALL
    ),
    "admission webhook": re.compile(
        r"admission webhook \"(?P<name>[^\"]+)\" denied the request: (?P<why>.*)", re.DOTALL
    ),
    "the cluster's policy": _POLICY,
}
"""Texts about refused pods, by what refuses them."""
_REFERENCE = re.compile(r"\"[^\"]*\"|https?://\S+")  # names in them are no causes
# a status code, not a part of a port, a digest or a time
_HTTP_STATUS = r"(?<![\w.:/-]){}(?![\w/-]|[.:]\d)"
_NOT_FOUND = re.compile(
    rf"\b(not found|manifest unknown|does not exist)\b|{_HTTP_STATUS.format('404')}", re.IGNORECASE
)
_DENIED = re.compile(
    rf"\b(unauthorized|denied|forbidden)\b|{_HTTP_STATUS.format('40[13]')}", re.IGNORECASE
)
_NO_CLAIM = re.compile(r"persistentvolumeclaim \"(?P<name>[^\"]+)\" not found", re.IGNORECASE)
_NO_NAMESPACE = re.compile(r"namespaces \"(?P<name>[^\"]+)\" not found")
_NAMESPACE_ENDS = re.compile(r"in namespace (?P<name>\S+) because it is being terminated")
_SECRETS = re.compile(r"image pull secrets \(([^)]+)\)")
_NO_PROGRAM = re.compile(
    r"exec: \"?([^\s\":]+)\"?: (?:executable file not found|stat .*no such file)"
)
_DISK_LIMIT = re.compile(  # pkg/kubelet/eviction/helpers.go
    r"(?:Usage of EmptyDir volume \"(?P<volume>[^\"]+)\""
    r"|Pod ephemeral local storage usage|Container \S+) "
    r"exceed(?:s|ed) (?:the limit|the total limit of containers|its local ephemeral storage limit) "
    r"\"?(?P<limit>[^\s\"]+?)\"?\. "
)
_QUANTITY = re.compile(r"^([+-]?[\d.]+)(m|[kMGTPE]|[KMGTPE]i|e\d+|E\d+)?$")
_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    prefix + "i": 1024.0**power for power, prefix in enumerate("KMGTPE", start=1)
}
_GIB = 2.0**30
_LONGEST = 500


class Blocker(NamedTuple):
    """The reason why an attempt does not run yet, or never will."""

    reason: Reason
    message: str
    permanent: bool = False
    of_server: bool = False
    """The server lacks a right, its namespace or an operator: no fault of the job, which waits."""
    counts_toward_timeout: bool = True
    """False while an image is pulled or the job waits in a queue: the gang
    then holds no place in vain.
    """


def quantity(text: str) -> float | None:
    """The number in a Kubernetes quantity: `500m` is 0.5, `1Gi` 2^30.
    None: the text is no quantity.
    """
    found = _QUANTITY.match(text)
    if found is None:
        return None
    number, suffix = found.groups(default="")
    return float(number + suffix) if suffix[1:].isdigit() else float(number) * _FACTORS[suffix]


def amount(resource: str, quantity_: float) -> str:
    """An amount with its unit: `4 GPUs`, `96 GiB of memory`, `2 cores`."""
    unit = resource.removeprefix("requests.").removeprefix("limits.")
    if unit in ("memory", "ephemeral-storage") or unit.startswith("hugepages-"):
        quantity_ = quantity_ / _GIB
        unit = f"GiB of {unit}"
    elif unit == "cpu":
        unit = "cores"
    elif unit.endswith("/gpu"):
        unit = "GPUs"
    return f"{_number(quantity_)} {unit}"


def unschedulable(text: str, requests: Mapping[str, str], since: str) -> str:
    """`0/3 nodes have 8 nvidia.com/gpu free; waits since 12:01`, from the scheduler's
    text and the pod's requests.
    """
    waits = waits_since(since)
    if no_claim := _NO_CLAIM.search(text):
        return (
            f"the PersistentVolumeClaim '{no_claim['name']}' does not exist: it starts when an "
            f"administrator has created it; a volume of the server's catalogue names it{waits}"
        )
    known = text
    # the scheduler adds them to its reasons
    for remark in (" preemption:", " no new claims to deallocate"):
        known = known.partition(remark)[0]
    found = _NODES.match(known.rstrip(" .,"))
    if found is None:
        return shortened(text) + waits
    nodes, reasons = found.groups()
    # `3 Insufficient cpu, 1 node(s) had untolerated taint {a: b, c}`: split at each comma before a
    # number
    each_reason = [each.strip(" .,") for each in re.split(r", (?=\d+ )", reasons)]
    counted = [match.groups() for each in each_reason if (match := _WHY_NOT.match(each))]
    lacks = [match[1] for _, why in counted if (match := _LACKS.match(why))]
    others = [f"{count} {why}" for count, why in counted if not _LACKS.match(why)]
    if lacks:
        wanted = " and ".join(f"{requests.get(each, 'enough')} {each}" for each in lacks)
        return shortened("; ".join([f"{nodes} nodes have {wanted} free", *others])) + waits
    return shortened(f"{nodes} nodes can take it: " + "; ".join(others) if others else text) + waits


def waits_since(at: str) -> str:
    """`; waits since 12:01 UTC`; empty without a time."""
    time = moment(at)
    return f"; waits since {time:%H:%M} UTC" if time else ""


def moment(text: str) -> datetime | None:
    """An RFC 3339 time with its time zone; None: the text is no time."""
    try:
        read = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=timezone.utc)


def cannot_pull(image: str, text: str, of_secrets: str = "") -> str:
    """`image 'x:y' can't be pulled: not found`. `of_secrets` is the kubelet's message
    about missing pull secrets.
    """
    if "pull policy of Never" in text:
        return (
            f"image '{image}' can't be pulled: it is not on the node, and its pull policy is Never"
        )
    # the cause is in the last two clauses of `failed to x: failed to y: dial tcp: no such host`
    why = shortened(": ".join(text.rstrip(". ").split(": ")[-2:]))
    said = _REFERENCE.sub("", text)
    # registries report both cases alike, to hide which images they have
    if "pull access denied" in text:
        why = "not found, or the registry wants a pull secret"
    elif _NOT_FOUND.search(said):
        why = "not found"
    elif _DENIED.search(said):
        why = f"the registry refuses it ({why})"
    missing = _SECRETS.search(of_secrets)
    also = f"; there is no pull secret {missing[1]}" if missing else ""
    return f"image '{image}' can't be pulled{': ' if why else ''}{why}{also}"


def not_created(text: str, workers: int, created: int) -> Blocker:
    """The blocker of a job whose operator could not create a pod or service. `created` of
    its `workers` pods exist.
    """
    if quota := _QUOTA.search(text):
        return Blocker(Reason.UNSCHEDULABLE, _over_quota(quota, workers, created))
    for by, pattern in _REFUSALS.items():
        if refused := pattern.search(text):
            said = shortened(f"{by} '{refused['name']}' refuses the pods: {refused['why']}")
            return Blocker(Reason.START_FAILED, said, permanent=True)
    said = shortened(f"the pods could not be made: {text.removeprefix('Error creating: ')}")
    return Blocker(Reason.UNSCHEDULABLE, said)


def _over_quota(quota: re.Match[str], workers: int, created: int) -> str:
    requested, used, limits = (
        {
            name: quantity(value) or 0.0
            for name, _, value in (each.partition("=") for each in quota[part].split(","))
        }
        for part in ("requested", "used", "hard")
    )
    for resource, limit in limits.items():
        one = requested.get(resource, 0.0)
        now = used.get(resource, 0.0)
        if now + one > limit:
            allows = amount(resource, limit)
            wants = amount(resource, workers * one)
            others = _number(max(now - created * one, 0.0) / (_GIB if "memory" in resource else 1))
            return (
                f"quota '{quota['name']}' allows {allows}, {others} are used, this job wants "
                f"{wants}"
            )
    return f"quota '{quota['name']}' is used up: {quota[0]}"


def no_program(text: str, image: str) -> str | None:
    """Message about a container whose program is missing; None: it failed for another reason."""
    found = _NO_PROGRAM.search(text)
    return (
        f"image '{image}' has no {found[1]}, which starts the worker: take an image with Python 3"
        if found
        else None
    )


def out_of_memory(worker: int, limit: str | None) -> str:
    """`worker 1 was killed for using more than its 96 GiB of memory`."""
    bytes_ = quantity(limit or "")
    than = f"its {amount('memory', bytes_)}" if bytes_ else "the memory of its node"
    return f"worker {worker} was killed for using more than {than}"


def disk_excess(text: str, folders: Mapping[str, str]) -> str | None:
    """`it wrote more than 100Gi to /client-lib/home`, from the kubelet's text about an evicted pod;
    None: the pod was evicted for another reason. `folders` has the path of each emptyDir."""
    found = _DISK_LIMIT.match(f"{text.strip()} ")
    if found is None:
        return None
    where = folders.get(found["volume"] or "", "its own disk")
    way_out = "put large files on a volume, or in /tmp with a large enough tmp_storage"
    if where == "/dev/shm":
        way_out = "take a larger shm_size_class, or fewer workers of the DataLoader"
    return f"it wrote more than {found['limit']} to {where}; {way_out}"


def lost_lines(lost: Mapping[int, int], of: int) -> str:
    """One message about the lost lines, by worker; empty without any.
    `of`: number of all workers.
    """
    workers = [worker for worker, lines in lost.items() if lines]
    count = sum(lost.values())
    lines = "1 line of {} is lost" if count == 1 else "{count} lines of {} are lost"
    return lines.format(listed(workers, of), count=count) if workers else ""


def silent(workers: Sequence[int], of: int, limit_s: float) -> str:
    """Message about workers whose agents this server has not heard of for
    `limit_s`; empty without any.
    """
    if not workers:
        return ""
    verb, whose = (
        ("have", "their nodes or agents hang")
        if len(workers) > 1
        else ("has", "its node or agent hangs")
    )
    which = listed(workers, of)
    return (
        f"{which} {verb} been silent for more than {limit_s / 60:.3g} min: {whose}, or can't "
        "reach this server"
    )


def listed(workers: Sequence[int], of: int) -> str:
    """A list of workers: `worker 1`, `workers 1, 2`, `all 4 workers`."""
    if len(workers) == of and of > 1:
        return f"all {of} workers"
    shown = ", ".join(map(str, workers[:5])) + (
        f" and {len(workers) - 5} more" if len(workers) > 5 else ""
    )
    return f"worker{'s' if len(workers) > 1 else ''} {shown}"


def shortened(text: str) -> str:
    """The text on one line, of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


# --- refusals of a request to create an object


def _lack_of_server(status: int, message: str, what: str, operator: str) -> str | None:
    """Name the thing that this server lacks in the cluster. None: the refusal is about the
    object.
    """
    said = shortened(message)
    if message.startswith('admission webhook "'):
        return None
    if ending := _NAMESPACE_ENDS.search(message):
        return (
            f"{what} can't be made: the namespace '{ending['name']}' is being deleted; an "
            "administrator has to create it again"
        )
    if missing := _NO_NAMESPACE.search(message):
        return (
            f"{what} can't be made: the namespace '{missing['name']}' does not exist; an "
            "administrator has to create it"
        )
    if status == 403:
        return (
            f"this server may not make {what}: {said}; `client-lib doctor` lists the rights that "
            "are missing"
        )
    return f"{what} can't be made: {said}; is the {operator} installed?"


def refusal(status: int, message: str, what: str, operator: str) -> Blocker:
    """Interpret an ApiError. `what` is the object, such as `PyTorchJob train`."""
    said = shortened(message)
    if status == 429:
        return Blocker(Reason.QUEUED, f"the Kubernetes API has too many requests: {said}")
    if status in (0, 408) or status >= 500:
        text = f"the Kubernetes API does not answer: {said}"
        if webhook := _WEBHOOK_AWAY.search(message):
            text = f"the webhook {webhook['name']} does not answer: does the {operator} run?"
        return Blocker(Reason.QUEUED, text)
    if policy := _POLICY.search(message):  # status 422, or the status that the policy chooses
        text = f"the cluster's policy '{policy['name']}' refuses {what}: {shortened(policy['why'])}"
        return Blocker(Reason.START_FAILED, text, permanent=True)
    if status == 401:
        return Blocker(
            Reason.QUEUED, f"the Kubernetes API refuses this server's credentials: {message}"
        )
    if status == 403 and "exceeded quota" in message:
        return not_created(message, 1, 0)._replace(reason=Reason.UNSCHEDULABLE, permanent=False)
    if status in (403, 404) and (lack := _lack_of_server(status, message, what, operator)):
        return Blocker(Reason.QUEUED, lack, of_server=True)
    return Blocker(Reason.START_FAILED, f"the cluster refuses {what}: {said}", permanent=True)
