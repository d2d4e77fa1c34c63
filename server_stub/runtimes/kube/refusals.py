"""What it means that the Kubernetes API refused to make an object, or did not answer. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from client_lib.spec.states import Reason
from server_stub.runtimes.kube import sentences

_WEBHOOK_AWAY = re.compile(r"failed calling webhook \"(?P<name>[^\"]+)\"")
_DENIED = re.compile(r"^admission webhook \"")
_POLICY = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'[^:]*denied request: (?P<why>.*)", re.DOTALL)


class Patience(Enum):
    """How often to ask again."""

    EVER = auto()
    FEW = auto()
    """A valid user is refused for a moment after the API server was started."""
    NONE = auto()


class Refusal(NamedTuple):
    """Why the objects of an attempt are not there yet, or never will be."""

    reason: Reason
    message: str
    patience: Patience


def refusal(status: int, message: str, what: str) -> Refusal:
    """`status` 0: there was no answer. `what`: the object, `PyTorchJob train`."""
    if status in (0, 408, 429) or status >= 500:
        return _away(message)
    policy = _POLICY.search(message)
    if policy:  # a 422, or what the policy says
        text = f"the cluster's policy '{policy.group('name')}' refuses {what}: {_short(policy.group('why'))}"
        return Refusal(Reason.START_FAILED, text, Patience.NONE)
    if status == 403:
        return _forbidden(message, what)
    if status == 401:
        return Refusal(Reason.QUEUED, f"the Kubernetes API refuses this server's credentials: {message}", Patience.EVER)
    if status == 404:
        text = f"{what} can't be made: {_short(message)}; is the training operator installed, and the namespace there?"
        return Refusal(Reason.START_FAILED, text, Patience.FEW)
    return Refusal(Reason.START_FAILED, f"the cluster refuses {what}: {_short(message)}", Patience.NONE)


def _away(message: str) -> Refusal:
    webhook = _WEBHOOK_AWAY.search(message)
    if webhook:
        text = f"the webhook {webhook.group('name')} does not answer: does the training operator run?"
        return Refusal(Reason.QUEUED, text, Patience.EVER)
    return Refusal(Reason.QUEUED, f"the Kubernetes API does not answer: {_short(message)}", Patience.EVER)


def _forbidden(message: str, what: str) -> Refusal:
    """A 403 is a quota, a webhook, or a missing right: only the text tells."""
    if "exceeded quota" in message:
        return Refusal(Reason.UNSCHEDULABLE, sentences.not_created(message, 1, 0)[0], Patience.EVER)
    if _DENIED.search(message):
        return Refusal(Reason.START_FAILED, f"the cluster refuses {what}: {_short(message)}", Patience.NONE)
    text = f"this server may not make {what}: {_short(message)}; `client-lib doctor` lists the rights that are missing"
    return Refusal(Reason.START_FAILED, text, Patience.FEW)


def _short(message: str) -> str:
    return sentences.shortened(message)
