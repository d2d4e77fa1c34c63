"""Hostile values in every field of both APIs, through the real server with the real local runtime:
each is refused with the name of its field, or the job ends and gives back what it was given. The
server goes on, and starts again.
"""

import asyncio
import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st
from pydantic import BaseModel

from client_lib.spec import paths
from client_lib.spec.job import JobSpec
from client_lib.spec.request import (
    CodeInPlace,
    CodeSnapshot,
    FunctionCode,
    SharedFolderProof,
    Submitter,
)
from server_stub.http.api.public_v2.models import HealthParams, RestartRequest, RunJobRequest
from server_stub.runtimes.local import LocalOptions
from server_stub.runtimes.local.runtime import LocalRuntime
from server_stub.service import Service
from tests.http.conftest import Running
from tests.kit.examples import examples
from tests.mlspace.rest.conftest import COMMAND, JOBS

pytestmark = [pytest.mark.process, pytest.mark.smoke]

DEADLINE_S = 60.0
RAW = {"@digits@": "9" * 5000, "@deep@": "[" * 5000 + "]" * 5000, "@exponent@": "1e999"}
"""Values that `json.dumps` does not write: in the body each replaces the text in quotes."""
QUICK = settings(
    max_examples=examples(150),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

texts = st.text(st.sampled_from("\0\x01\x1b\t\n\x7f\x85\u2028\ud800é a1.-=~'\"$\\"), max_size=12)
scalars = st.one_of(
    texts,
    st.sampled_from(
        [
            "..",
            "../a",
            "a\0",
            "x" * 300,
            "x" * 5000,
            "x" * 200_000,
            "a\n" * 100,
            f"cpu.{'9' * 5000}C.1G",
        ]
    ),
    st.sampled_from(
        [-1, 0, 1, 2**31, 2**63, 10**10, 10**30, 10**400, 0.5, 1e308, float("nan"), float("inf")]
    ),
    st.sampled_from([None, True, *RAW]),
)
containers = st.one_of(
    st.lists(scalars, max_size=3),
    st.dictionaries(texts, scalars, max_size=3),
    st.sampled_from(
        [["x"] * 70_000, {str(number): "x" for number in range(70_000)}, [[[[]]]], {"a": {"b": {}}}]
    ),
)
hostile = st.one_of(scalars, scalars, containers)


def fields_of(model: type[BaseModel], *above: str) -> list[tuple[str, ...]]:
    return [(*above, name) for name in model.model_fields]


OURS = [
    *fields_of(JobSpec, "spec"),
    *(
        ("spec", "health_params", name)
        for name in ("log_period", "action", "sub_actions", "no_such_field")
    ),
    *fields_of(CodeInPlace, "code"),
    *fields_of(SharedFolderProof, "code", "proof"),
    *fields_of(CodeSnapshot, "code"),
    *fields_of(FunctionCode, "function"),
    *fields_of(Submitter, "submitter"),
    *(("submitter", "environment", name) for name in ("A", "", "A=", "A\0")),
    ("secret_values",),
    ("checkpoints_of",),
    ("no_such_field",),
]
PLATFORM = [
    *fields_of(RunJobRequest),
    *fields_of(HealthParams, "health_params"),
    *fields_of(RestartRequest),
]
ONLY_RENDERED = {"requirements", "function"}
"""An accepted one would take seconds: packages are looked for, an interpreter starts."""


class RealServer(Running):
    """With the runtime that starts processes."""

    def new_runtime(self) -> Any:
        return LocalRuntime(LocalOptions(self.settings))


class Target:
    """A server, a user, and what a right request needs."""

    def __init__(self, folder: Path) -> None:
        self.server = RealServer(folder / "state", warm=False)
        self.ann = self.server.as_user("ann")
        self.folder = folder / "home" / "below" / "work"
        self.folder.mkdir(parents=True)
        (self.folder / ".proof").write_text("n" * 32)
        self.sha256 = self._upload()
        self.free = self._free()

    def _upload(self) -> str:
        packed = io.BytesIO()
        tarfile.open(fileobj=packed, mode="w:gz").close()
        digest = hashlib.sha256(packed.getvalue()).hexdigest()
        assert self.ann("PUT", paths.snapshot(digest), data=packed.getvalue()).ok
        return digest

    def _free(self) -> Any:
        return self.ann("GET", paths.INSTANCE_TYPES).json()

    def our_body(self, field: tuple[str, ...], value: object) -> dict[str, Any]:
        body: dict[str, Any] = {
            "spec": {"script": "true", "type": "binary"},
            "code": {
                "mode": "in_place",
                "proof": {"path": str(self.folder / ".proof"), "nonce": "n" * 32},
            },
            "submitter": {
                "working_dir": str(self.folder),
                "environment": {"HOME": str(self.folder)},
            },
        }
        if field[0] == "code" and field[1] in CodeSnapshot.model_fields.keys() - {"mode"}:
            body["code"] = {"mode": "snapshot", "sha256": self.sha256, "root": "/a"}
        if field[0] == "function":
            body["spec"] = {"script": "f()"}
            body["function"] = {
                "sha256": self.sha256,
                "name": "f",
                "python": "3.11",
                "cloudpickle": "3",
            }
        return put(body, field, value)

    def send_ours(self, field: tuple[str, ...], value: object) -> requests.Response:
        path = paths.RENDER if ONLY_RENDERED.intersection(field) else paths.JOBS
        return self.ann("POST", path, data=written(self.our_body(field, value)))

    def send_platform(self, field: tuple[str, ...], value: object) -> requests.Response:
        restart = field == ("job_name",)
        body = put({} if restart else {**COMMAND, "script": "true"}, field, value)
        data, path = written(body), f"{JOBS}/restart" if restart else JOBS
        return self.ann("POST", path, data=data, headers={"content-type": "application/json"})

    def unfinished(self) -> list[str]:
        listed = [
            job for state in ("PENDING", "RUNNING", "RESTARTING") for job in self._jobs(state)
        ]
        return [
            f"{job['name']}: {job['state']} {job['message']} {str(job['spec'])[:2000]}"
            for job in listed
        ]

    def _jobs(self, state: str) -> Any:
        return self.ann("GET", paths.JOBS, params={"state": state}).json()["jobs"]

    def everything_ends(self) -> None:
        """Every job ends, and what they were given is free again."""
        deadline = time.monotonic() + DEADLINE_S
        while (
            self.unfinished()
            or self.server.call(self.server.parts.service.busy)
            or self._free() != self.free
        ):
            assert time.monotonic() < deadline, self.unfinished() or self._free()
            time.sleep(0.05)

    def starts_again(self) -> None:
        self.server.stop()
        asyncio.run(self._start_again())

    async def _start_again(self) -> None:
        service = Service(self.server.settings, self.server.new_runtime())
        await service.start()
        await service.close()


def put(body: dict[str, Any], field: tuple[str, ...], value: object) -> dict[str, Any]:
    holder = body
    for name in field[:-1]:
        holder = holder.setdefault(name, {})
    holder[field[-1]] = value
    return body


def written(body: object) -> bytes:
    text = json.dumps(body)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tmp_path_factory.mktemp("hostile"))
    yield made
    made.server.stop()


def check_answer(answer: requests.Response, field: tuple[str, ...]) -> None:
    """Accepted, or refused with a short text that names the field."""
    told = f"{field}: {answer.status_code} {answer.text[:500]}"
    assert answer.status_code < 500, told
    if answer.status_code >= 400:
        assert len(answer.text) < 30_000, told
        says = answer.text.replace("_", " ").replace("-", " ")
        whole = any(
            words in says
            for words in ("no JSON", "error parsing the body", "not shared", "not found")
        )
        assert whole or any(
            name.replace("_", " ").rstrip("s") in says for name in field if name.isidentifier()
        ), told


@QUICK
@given(field=st.sampled_from(OURS), value=hostile)
@example(field=("spec", "stop_timer"), value=10**10)
@example(field=("spec", "checkpoint_dir"), value="/a\0")
@example(field=("spec", "labels"), value={"a\0": "b\0"})
@example(field=("spec", "labels"), value={"\ud800": "x"})
@example(field=("submitter", "working_dir"), value="/a\0")
@example(field=("code", "proof", "path"), value="/a\0")
@example(field=("code", "working_dir"), value="..")
@example(field=("code", "working_dir"), value="/")
@example(field=("spec", "instance_type"), value="cpu." + "9" * 5000 + "C.1G")
@example(field=("spec", "env_variables"), value={"MASTER_PORT": "9" * 5000})
@example(field=("spec", "flags"), value={"lr": "@exponent@"})
@example(field=("spec",), value={str(number): 1 for number in range(70_000)})
def test_a_hostile_value_in_our_api_is_refused_by_name_or_harms_only_its_job(
    target: Target, field: tuple[str, ...], value: object
) -> None:
    check_answer(target.send_ours(field, value), field)


@QUICK
@given(field=st.sampled_from(PLATFORM), value=hostile)
@example(field=("stop_timer",), value=10**10)
@example(field=("checkpoint_dir",), value="/a\0")
@example(field=("env_variables",), value={"A": "b\0"})
@example(field=("instance_type",), value="a100." + "9" * 5000 + "gpu")
@example(field=("job_name",), value="a\0")
def test_a_hostile_value_in_the_platforms_api_is_refused_by_name_or_harms_only_its_job(
    target: Target, field: tuple[str, ...], value: object
) -> None:
    check_answer(target.send_platform(field, value), field)


def test_whatever_was_accepted_ends_and_the_server_starts_again(target: Target) -> None:
    target.everything_ends()
    target.starts_again()
