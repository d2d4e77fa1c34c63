"""What is accepted, what is refused, what is shown, and to whom."""

import asyncio
import json
import stat
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_lib.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    KeyReused,
    NeverFits,
    NotFound,
    NotShared,
    StorageFull,
    TooLarge,
)
from client_lib.spec.replace import replaced
from client_lib.spec.request import (
    CodeInPlace,
    CodeSnapshot,
    FunctionCode,
    GroupMember,
    GroupRequest,
    SharedFolderProof,
    SubmitRequest,
)
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo, JobPage
from server_stub.service import JobFilters, Service, admission
from server_stub.service.admission import fingerprint
from server_stub.users import User
from tests.kit.bounds import Bounds
from tests.kit.waiting import eventually
from tests.service.bench import ANN, Bench
from tests.service.test_jobs import in_server, upload

BEN, ROOT = User("ben"), User("root", admin=True)


def test_the_same_key_and_spec_is_the_same_job(bench: Bench) -> None:
    async def run(service: Service) -> None:
        first, created = await service.submits.submit(ANN, bench.request(), "k1")
        again, created_again = await service.submits.submit(ANN, bench.request(), "k1")
        assert (created, created_again) == (True, False)
        assert json.loads(first)["id"] == json.loads(again)["id"]
        assert len(bench.runtime.started) == 1
        other, created = await service.submits.submit(BEN, bench.request(), "k1")
        assert created
        assert json.loads(other)["id"] != json.loads(first)["id"]

    in_server(bench, run)


def test_the_answer_is_written_as_the_model_writes_it(bench: Bench) -> None:
    async def run(service: Service) -> None:
        snapshot = CodeSnapshot(
            sha256=await upload(bench, b"archive"), root="/rööt", script="train.py"
        )
        function = FunctionCode(
            sha256=snapshot.sha256, size=3, name="f", python="3.11", cloudpickle="3.1"
        )
        plain = bench.request(
            labels={"a": '"b"'}, env_variables={"MY_TOKEN": "t"}, args=["ü"], base_image='im"ä"ge'
        )
        requests = [
            plain,
            plain.model_copy(update={"code": CodeInPlace(sha256="0" * 64, proof=plain.code.proof)}),  # type: ignore[union-attr]
            plain.model_copy(update={"code": snapshot, "function": function}),
        ]
        for request in requests:
            text, _ = await service.submits.submit(ANN, request, None, shared=True)
            assert text.decode() == JobInfo.model_validate_json(text).model_dump_json()

    in_server(bench, run)


def test_what_was_sent_is_kept_without_its_proof(bench: Bench) -> None:
    async def run(service: Service) -> None:
        request = bench.request(name="one", secrets=["HF_TOKEN"], secret_values={"HF_TOKEN": "v"})
        await service.submits.submit(ANN, request, None)
        sent = request.model_dump_json(exclude={"code": {"proof"}}).encode()
        files = [path.read_bytes().rstrip(b"\0") for path in (bench.folder).rglob("*.jsonl")]
        assert [file.partition(b"\n")[2] for file in files] == [sent + b"\n"], "below its heading"
        asked = SubmitRequest.model_validate_json(await service.request(ANN, "one"))
        assert asked.code == CodeInPlace()
        assert asked.spec == request.spec
        assert service._files.request_of(service._jobs.by_name["ann", "one"].row).secret_values == {
            "HF_TOKEN": "v"
        }

    in_server(bench, run)


def test_a_runtime_can_have_an_attempt_once_more(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one", secrets=["HF_TOKEN"], secret_values={"HF_TOKEN": "v"})
        attempt = bench.runtime.attempts[job.id]
        assert attempt.reload
        again = attempt.reload()
        assert again == replace(attempt, code=CodeInPlace(), never_started=False)
        assert again.secret_values == {"HF_TOKEN": "v"}

    in_server(bench, run)


def test_a_hundred_repeats_at_once_are_one_job(bench: Bench) -> None:
    async def run(service: Service) -> None:
        answers = await asyncio.gather(
            *(service.submits.submit(ANN, bench.request(), "k1") for _ in range(100))
        )
        assert sum(created for _, created in answers) == 1
        assert len({json.loads(text)["id"] for text, _ in answers}) == 1
        assert len(bench.runtime.started) == 1

    in_server(bench, run)


def test_the_same_key_with_another_spec_is_refused(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await service.submits.submit(ANN, bench.request(), "k1")
        with pytest.raises(KeyReused):
            await service.submits.submit(ANN, bench.request(n_workers=2), "k1")

    in_server(bench, run)


def test_a_repeat_is_answered_though_it_would_be_refused_by_now(bench: Bench) -> None:
    async def run(service: Service) -> None:
        request = bench.request(name="one")
        first, _ = await service.submits.submit(ANN, request, "k1")
        (bench.scripts / ".proof").unlink()
        bench.free = 0
        bench.clock.pass_time(1)
        again, created = await service.submits.submit(ANN, request, "k1")
        assert not created
        assert again == first
        with pytest.raises(KeyReused):
            await service.submits.submit(ANN, bench.request(name="two"), "k1")

    in_server(bench, run)


def test_the_key_of_a_refused_submit_is_free(bench: Bench) -> None:
    async def run(service: Service) -> None:
        wrong = bench.request().model_copy(update={"code": CodeInPlace()})
        with pytest.raises(NotShared):
            await service.submits.submit(ANN, wrong, "k1")
        digest = await upload(bench, b"archive")
        code = CodeSnapshot(sha256=digest, root="/r", script="train.py")
        _, created = await service.submits.submit(
            ANN, wrong.model_copy(update={"code": code}), "k1"
        )
        assert created

    in_server(bench, run)


def test_the_key_of_a_deleted_job_is_not_a_new_job(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await service.submits.submit(ANN, bench.request(name="one"), "k1")
        await service.cancel(ANN, "one")
        await bench.until("one", State.CANCELLED)
        await service.delete(ANN, "one")
        with pytest.raises(Conflict, match="was deleted"):
            await service.submits.submit(ANN, bench.request(name="one"), "k1")

    in_server(bench, run)


def test_the_fingerprint_follows_the_meaning_not_the_order_of_keys(bench: Bench) -> None:
    one = bench.request(env_variables={"A": 1, "B": 2})
    two = bench.request(env_variables={"B": 2, "A": 1})
    assert fingerprint(one) == fingerprint(two)
    assert fingerprint(one) != fingerprint(bench.request(env_variables={"A": "1", "B": 2}))
    without_proof = one.model_copy(update={"code": CodeInPlace()})
    assert fingerprint(one) == fingerprint(without_proof)


def test_a_taken_name_is_refused_and_a_missing_one_is_drawn(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="one")
        with pytest.raises(Conflict, match="the name one is taken"):
            await bench.submit(name="one")
        await bench.submit(BEN, name="one")
        drawn = await bench.submit()
        assert drawn.name.startswith("train-")
        assert len(drawn.name) == len("train-") + 5
        assert (await bench.submit(region="SR003")).name.startswith("lm-mpi-job-")

    in_server(bench, run)


def test_a_drawn_name_that_is_taken_is_drawn_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # base32 of the last: bbbbbbbb
    drawn = iter([b"\0\0\0\0\0", b"\0\0\0\0\0", b"\x08\x42\x10\x84\x21"])
    # base32 of the last: bbbbbbbb
    monkeypatch.setattr("secrets.token_bytes", lambda _: next(drawn))

    async def run(service: Service) -> None:
        names = [(await bench.submit()).name for _ in range(2)]
        assert names == ["train-aaaaa", "train-bbbbb"]

    in_server(bench, run)


# --- code


def test_a_folder_is_shared_only_where_the_nonce_proves_it(bench: Bench, tmp_path: Path) -> None:
    proof = bench.scripts / ".proof"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".proof").write_text(bench.nonce)
    (bench.scripts / "link").symlink_to(elsewhere / ".proof")

    def with_proof(path: Path, nonce: str) -> SubmitRequest:
        code = CodeInPlace(proof=SharedFolderProof(path=str(path), nonce=nonce))
        return bench.request().model_copy(update={"code": code})

    async def run(service: Service) -> None:
        for request in (
            with_proof(proof, "f" * 32),
            with_proof(bench.scripts / "missing", bench.nonce),
            with_proof(elsewhere / ".proof", bench.nonce),
            with_proof(bench.scripts / "link", bench.nonce),
            with_proof(bench.scripts, bench.nonce),
            with_proof(proof, ""),
        ):
            with pytest.raises(NotShared):
                await service.submits.submit(ANN, request, None)
        await service.submits.submit(ANN, with_proof(proof, bench.nonce), None)

    in_server(bench, run)


def test_the_folder_above_the_target_of_a_link_is_proven_where_it_is(
    bench: Bench, tmp_path: Path
) -> None:
    real = tmp_path / "real"
    (real / "sub").mkdir(parents=True)
    (real / "train.py").touch()
    (real / ".proof").write_text(bench.nonce)
    (bench.scripts / "link").symlink_to(real / "sub")
    code = CodeInPlace(proof=SharedFolderProof(path=str(real / ".proof"), nonce=bench.nonce))
    request = bench.request(script=f"{bench.scripts}/link/../train.py").model_copy(
        update={"code": code}
    )

    async def run(service: Service) -> None:
        await service.submits.submit(ANN, request, None)

    in_server(bench, run)


def test_a_file_system_that_is_mounted_while_the_server_runs_is_read_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file server may not answer, which must not stop other requests. No test has
    one, so the list is made up.
    """
    mounted, threads, now = [("/", "ext4")], list[threading.Thread](), [1000.0]
    prove = admission._proves

    def note(proof: SharedFolderProof, folders: list[str | None]) -> bool:
        threads.append(threading.current_thread())
        return prove(proof, folders)

    # the mounts of the machine, and the seconds for which they are remembered; and threads show in
    # no answer
    monkeypatch.setattr(admission, "mounts", lambda: list(mounted))
    monkeypatch.setattr(admission, "_proves", note)
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def act(service: Service) -> None:
        await service.submits.submit(ANN, bench.request(), None)
        mounted.append((str(bench.scripts), "nfs4"))
        now[0] += 10.0
        await service.submits.submit(ANN, bench.request(), None)

    in_server(bench, act)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_resubmit_of_what_ran_in_place_needs_no_proof(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="one")
        source = SubmitRequest.model_validate_json(await service.request(ANN, "one"))
        again = source.model_copy(update={"spec": source.spec.model_copy(update={"name": "two"})})
        _, created = await service.submits.submit(ANN, again, None)
        assert created
        with pytest.raises(NotShared):
            await service.submits.submit(BEN, again, None)

    in_server(bench, run)


def test_a_snapshot_belongs_to_its_uploader(bench: Bench) -> None:
    async def run(service: Service) -> None:
        code = CodeSnapshot(sha256=await upload(bench, b"archive"), root="/r", script="train.py")
        request = bench.request().model_copy(update={"code": code})
        with pytest.raises(NotFound, match="no snapshot"):
            await service.submits.submit(BEN, request, None)
        await service.submits.submit(ANN, request, None)

    in_server(bench, run)


# --- bounds


def test_what_never_fits_is_refused_at_submit(bench: Bench) -> None:
    async def run(service: Service) -> None:
        with pytest.raises(NeverFits):
            await bench.submit(n_workers=65)
        assert await service.lookup.counts() == {}

    in_server(bench, run)


def test_a_watchdog_that_can_not_restart_is_named(bench: Bench) -> None:
    async def run(service: Service) -> None:
        watchdog = {"log_period": 30, "action": "restart"}
        said = "health_params with action='restart' needs max_retry"
        assert said in (await bench.submit(health_params=watchdog)).notices[0]
        assert (await bench.submit(health_params=watchdog, max_retry=1)).notices == []
        assert (await bench.submit(health_params={**watchdog, "action": "delete"})).notices == []

    in_server(bench, run)


def test_a_spec_over_its_bound_is_too_large(bench: Bench) -> None:
    async def run(service: Service) -> None:
        with pytest.raises(TooLarge, match="at most 1048576"):
            await bench.submit(args=["x" * 2**16] * 17)

    in_server(bench, run)


def test_a_full_disk_refuses_submits_and_running_jobs_go_on(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        bench.free = 100
        bench.clock.pass_time(1)
        with pytest.raises(StorageFull):
            await bench.submit(name="two")
        assert not next(
            check for check in (await service.doctor()).checks if check.name == "disk"
        ).ok
        bench.runtime.runs(job.id)
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)

    in_server(bench, run)


def test_a_database_that_is_full_for_a_while_loses_no_transition(bench: Bench) -> None:
    async def pages(service: Service, limit: int) -> None:
        await service._store.write(
            lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {limit}") and None
        )

    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        await pages(service, 1)
        with pytest.raises(StorageFull):
            await asyncio.gather(
                *(bench.submit(name=f"filler-{n}", args=["x" * 20_000]) for n in range(50))
            )
        bench.runtime.runs(job.id)
        bench.runtime.end(job.id, Reason.EXIT_CODE, "x" * 100_000)
        await asyncio.sleep(0.1)
        assert (await bench.info("one")).state is not State.FAILED
        await pages(service, 10**6)
        assert (await bench.until("one", State.FAILED)).message == "x" * 100_000

    in_server(bench, run)


def test_too_many_jobs_that_are_not_final_are_refused(bench: Bench, bounds: Bounds) -> None:
    # 100 000 jobs would take minutes
    bounds("server_stub.service.submit", MAX_UNFINISHED_JOBS=2)

    async def run(service: Service) -> None:
        await bench.submit(name="one")
        await bench.submit(name="two")
        with pytest.raises(StorageFull, match="limit of this server"):
            await bench.submit(name="three")
        await service.cancel(ANN, "one")
        await bench.until("one", State.CANCELLED)
        await bench.submit(name="three")

    in_server(bench, run)


# --- secrets


def test_the_value_of_a_secret_is_in_one_private_file_and_nowhere_else(bench: Bench) -> None:
    value, token = "s3cr3t-value-of-the-user", "t0ken-in-a-variable"

    async def run(service: Service) -> None:
        request = bench.request(
            name="one",
            secrets=["HF_TOKEN"],
            env_variables={"MY_TOKEN": token},
            secret_values={"HF_TOKEN": value},
        )
        text, _ = await service.submits.submit(ANN, request, "k")
        job = JobInfo.model_validate_json(text)
        attempt = bench.runtime.attempts[job.id]
        assert attempt.secret_values == {"HF_TOKEN": value}
        assert attempt.spec.env_variables == {"MY_TOKEN": token}
        shown = [
            text,
            (await service.manifest(ANN, "one")).model_dump_json().encode(),
            (await service.render(ANN, request)).model_dump_json().encode(),
            await service.lookup.events(ANN, "one"),
            await service.page(ANN, JobFilters(), 10, None),
            await service.request(ROOT, "one", "ann"),
        ]
        assert not [text for text in shown if value.encode() in text]
        assert not [text for text in shown[:1] + shown[3:] if token.encode() in text]
        to_owner = await service.request(ANN, "one")
        assert token.encode() in to_owner
        assert value.encode() not in to_owner

    in_server(bench, run)
    holding = [path for path in files_below(bench.folder) if value.encode() in path.read_bytes()]
    assert [path.parent.name for path in holding] == ["submissions"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(holding[0].parent.stat().st_mode) == 0o700


IN_THE_OPEN: dict[str, Any] = {
    "script": "train.py --password pa55word-1",
    "args": ["--hf_token", "pa55word-2", "--api-key=pa55word-3", "--lr", "0.1"],
    "flags": {"db_passwd": "pa55word-4"},
    "env_variables": {"DATABASE": "postgresql://ann:pa55word-5@host/db"},
    "setup": "curl -H 'Authorization: Bearer pa55word-6' https://host/data",
}


def test_secrets_in_a_command_line_are_shown_nowhere_and_run_as_they_are(bench: Bench) -> None:
    async def run(service: Service) -> None:
        request = bench.request(name="one", **IN_THE_OPEN)
        text, _ = await service.submits.submit(ANN, request, None)
        members = [GroupMember(args=IN_THE_OPEN["args"], values={"hf_token": "pa55word-2"})]
        order = GroupRequest(name="many", request=request, members=members)
        group, _ = await service.submits.submit_group(ANN, order, None)
        shown = [
            text,
            group.model_dump_json().encode(),
            (await service.manifest(ANN, "one")).model_dump_json(exclude={"environment"}).encode(),
            (await service.render(ANN, request)).model_dump_json().encode(),
            await service.lookup.events(ANN, "one"),
            await service.page(ANN, JobFilters(), 10, None),
            await service.request(ROOT, "one", "ann"),
        ]
        # without its environment: the runtime of these tests shows it
        for number in (1, 2, 3, 4, 6):
            assert not [text for text in shown if b"pa55word-%d" % number in text]
        assert b"--lr" in text
        job = JobInfo.model_validate_json(text)
        assert bench.runtime.attempts[job.id].spec.args == IN_THE_OPEN["args"]

    in_server(bench, run)


def test_a_resubmit_with_other_arguments_keeps_the_secrets_among_them(bench: Bench) -> None:
    async def run(service: Service) -> None:
        text, _ = await service.submits.submit(ANN, bench.request(name="one", **IN_THE_OPEN), None)
        args = JobInfo.model_validate_json(text).spec.args
        changed = [*args[:-1], "0.2"]
        again = JobInfo.model_validate_json(
            await service.submits.resubmit(ANN, "one", {"args": changed})
        )
        ran = bench.runtime.attempts[again.id].spec
        assert ran.args == [*IN_THE_OPEN["args"][:-1], "0.2"]
        assert again.spec.args == changed

    in_server(bench, run)


@pytest.mark.parametrize("field", IN_THE_OPEN)
def test_a_spec_with_a_mask_in_place_of_a_secret_is_refused(bench: Bench, field: str) -> None:
    async def run(service: Service) -> None:
        shown = bench.request(name="one", **{"script": "a.py", field: IN_THE_OPEN[field]})
        request = replaced(shown, spec=shown.spec.masked())
        with pytest.raises(InvalidRequest, match=rf"^{field}.* holds \*\*\*"):
            await service.submits.submit(ANN, request, None)
        assert await service.lookup.counts() == {}

    in_server(bench, run)


def files_below(folder: Path) -> Iterable[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_deleted_job_leaves_no_secret_on_the_disk(bench: Bench) -> None:
    async def run(service: Service) -> None:
        request = bench.request(
            name="one", secrets=["HF_TOKEN"], secret_values={"HF_TOKEN": "s3cr3t"}
        )
        for _ in range(2):  # a repeat leaves none either
            await service.submits.submit(ANN, request, "key")
        with pytest.raises(Conflict):
            await service.submits.submit(ANN, request, None)
        await service.cancel(ANN, "one")
        await bench.until("one", State.CANCELLED)
        await service.delete(ANN, "one")

    in_server(bench, run)
    assert not [path for path in files_below(bench.folder) if b"s3cr3t" in path.read_bytes()]


def test_a_secret_without_a_value_comes_from_the_server_or_is_named(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "secrets.toml").write_text('WANDB_API_KEY = "w"\n')

    async def run(service: Service) -> None:
        job = await bench.submit(secrets=["WANDB_API_KEY"])
        assert bench.runtime.attempts[job.id].secret_values == {"WANDB_API_KEY": "w"}
        with pytest.raises(InvalidRequest, match="HF_TOKEN"):
            await bench.submit(secrets=["HF_TOKEN"])
        with pytest.raises(InvalidRequest, match="OTHER"):
            await bench.submit(secret_values={"OTHER": "x"})

    in_server(bench, run, secrets_file=tmp_path / "secrets.toml")


# --- users


def test_the_jobs_of_others_do_not_exist(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="one")
        for owner in (None, "ann"):
            calls: list[Any] = [
                service.get(BEN, "one", owner),
                service.lookup.wait(BEN, "one", 0, 1, owner),
                service.lookup.events(BEN, "one", owner),
                service.manifest(BEN, "one", owner),
                service.request(BEN, "one", owner),
                service.cancel(BEN, "one", owner),
                service.delete(BEN, "one", owner, force=True),
                service.lookup.find_logs(BEN, "one", owner),
            ]
            for call in calls:
                with pytest.raises(NotFound, match="no job named one"):
                    await call
        assert (
            JobPage.model_validate_json(await service.page(BEN, JobFilters(), 10, None)).jobs == []
        )
        for owner in ("ann", "*"):
            with pytest.raises(Forbidden):
                await service.page(BEN, JobFilters((owner,)), 10, None)
        assert (await bench.info("one")).state is State.PENDING

    in_server(bench, run)


def test_an_admin_sees_and_cancels_all(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="one")
        assert (await bench.info("one", ROOT, "ann")).owner == "ann"
        assert (await bench.info("one", ROOT)).owner == "ann", (
            "without an owner, where only one has that name"
        )
        await bench.submit(BEN, name="one")
        with pytest.raises(InvalidRequest, match="more than one user"):
            await bench.info("one", ROOT)
        listed = JobPage.model_validate_json(await service.page(ROOT, JobFilters(("*",)), 10, None))
        assert [job.owner for job in listed.jobs] == ["ben", "ann"]
        await service.cancel(ROOT, "one", "ann")
        assert (await bench.until("one", State.CANCELLED)).message == "cancelled by root"

    in_server(bench, run)


def test_a_server_that_shares_shows_the_jobs_of_others(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="one")
        assert (await bench.info("one", BEN, "ann")).owner == "ann"
        assert JobPage.model_validate_json(
            await service.page(BEN, JobFilters(("*",)), 10, None)
        ).jobs

    in_server(bench, run, share_jobs=True)


def test_an_unknown_name_tells_the_nearest(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="train-1")
        with pytest.raises(NotFound) as caught:
            await service.get(ANN, "trian-1")
        assert caught.value.hint == "did you mean train-1?"

    in_server(bench, run)


def test_pages_follow_the_cursor_and_a_foreign_one_is_refused(bench: Bench) -> None:
    async def run(service: Service) -> None:
        for number in range(5):
            await bench.submit(name=f"n{number}", labels={"even": str(number % 2 == 0)})
        names, cursor = [], None
        while True:
            page = JobPage.model_validate_json(await service.page(ANN, JobFilters(), 2, cursor))
            names += [job.name for job in page.jobs]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert names == ["n4", "n3", "n2", "n1", "n0"]
        even = await service.page(ANN, JobFilters(labels={"even": "True"}), 10, None)
        assert [job.name for job in JobPage.model_validate_json(even).jobs] == ["n4", "n2", "n0"]
        with pytest.raises(InvalidRequest):
            await service.page(ANN, JobFilters(), 2, "x")

    in_server(bench, run)


def test_render_creates_nothing_and_answers_the_same_twice(bench: Bench) -> None:
    async def run(service: Service) -> None:
        request = bench.request()
        before = request.model_dump_json()
        assert await service.render(ANN, request) == await service.render(ANN, request)
        assert request.model_dump_json() == before
        assert await service.lookup.counts() == {}
        assert bench.runtime.given == []

    in_server(bench, run)


def test_the_doctor_shows_the_retention(bench: Bench) -> None:
    async def run(service: Service) -> None:
        shown = {check.name: check.message for check in (await service.doctor()).checks}
        assert shown["retention"] == (
            "finished jobs are kept 30 days after their end, at most 20 GB of them; the log of a "
            "job at most 10.7 GB"
        )
        assert "fake" in shown
        await eventually(lambda: True)

    in_server(bench, run)
