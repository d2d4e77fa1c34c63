"""Interprets a failed request to create an object: its reason, message, and how often to repeat it. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from client_lib.spec.states import Reason
from server_stub.runtimes.kube.observe import messages as messages

_WEBHOOK_AWAY = re.compile(r"failed calling webhook \"(?P<name>[^\"]+)\"")
_DENIED = re.compile(r"^admission webhook \"")
_POLICY = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'[^:]*denied request: (?P<why>.*)", re.DOTALL)


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
    policy = _POLICY.search(message)
    if policy:  # status 422, or the status that the policy chooses
        text = f"the cluster's policy '{policy.group('name')}' refuses {what}: {_short(policy.group('why'))}"
        return Refusal(Reason.START_FAILED, text, Retry.NEVER)
    if status == 403:
        return _forbidden(message, what)
    if status == 401:
        return Refusal(Reason.QUEUED, f"the Kubernetes API refuses this server's credentials: {message}", Retry.ALWAYS)
    if status == 404:
        text = f"{what} can't be made: {_short(message)}; is the {operator} installed, and the namespace there?"
        return Refusal(Reason.START_FAILED, text, Retry.BRIEFLY)
    return Refusal(Reason.START_FAILED, f"the cluster refuses {what}: {_short(message)}", Retry.NEVER)


def _away(message: str, operator: str) -> Refusal:
    webhook = _WEBHOOK_AWAY.search(message)
    if webhook:
        text = f"the webhook {webhook.group('name')} does not answer: does the {operator} run?"
        return Refusal(Reason.QUEUED, text, Retry.ALWAYS)
    return Refusal(Reason.QUEUED, f"the Kubernetes API does not answer: {_short(message)}", Retry.ALWAYS)


def _forbidden(message: str, what: str) -> Refusal:
    """Interpret a 403, which is a quota, a webhook or a missing right, by its text."""
    if "exceeded quota" in message:
        return Refusal(Reason.UNSCHEDULABLE, messages.not_created(message, 1, 0)[0], Retry.ALWAYS)
    if _DENIED.search(message):
        return Refusal(Reason.START_FAILED, f"the cluster refuses {what}: {_short(message)}", Retry.NEVER)
    text = f"this server may not make {what}: {_short(message)}; `client-lib doctor` lists the rights that are missing"
    return Refusal(Reason.START_FAILED, text, Retry.BRIEFLY)


def _short(message: str) -> str:
    return messages.shortened(message)
