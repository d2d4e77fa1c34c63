"""A job that was submitted is submitted once more, with all that its submitter sent."""

import asyncio
import json

import pytest

from client_lib.errors import Forbidden, NotFound, NotShared
from client_lib.spec.request import CodeInPlace, SubmitRequest, Submitter
from client_lib.spec.wire import JobInfo
from server_stub.service import JobFilters
from server_stub.users import User
from tests.service.bench import ANN, Bench

ROOT, BEN = User("root", admin=True), User("ben")


def test_the_same_again_under_a_new_name(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            request = bench.request(
                name="first", secrets=["HF_TOKEN"], secret_values={"HF_TOKEN": "s"}, flags={"a": 1}
            )
            await bench.service.submits.submit(ANN, request, None)
            (bench.scripts / ".proof").unlink()
            again = JobInfo.model_validate_json(await bench.service.submits.resubmit(ANN, "first"))
            assert again.name != "first"
            given = bench.runtime.attempts[again.id]
            assert given.spec == request.spec.model_copy(update={"name": None})
            assert (given.submitter, given.secret_values) == (request.submitter, {"HF_TOKEN": "s"})

    asyncio.run(main())


def test_nobody_starts_another_s_job_again(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            await bench.submit(name="first")
            with pytest.raises(NotFound):
                await bench.service.submits.resubmit(BEN, "first")
            with pytest.raises(Forbidden):  # it would run with ann's secrets as root's
                await bench.service.submits.resubmit(ROOT, "first")

    asyncio.run(main())


def test_the_request_names_what_a_client_needs_to_submit_it_again(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            first = await bench.submit(name="first")
            asked = {"checkpoints_of": first.id}
            await bench.service.submits.submit(
                ANN, bench.request(name="second").model_copy(update=asked), None
            )
            sent = json.loads(await bench.service.request(ANN, "second"))
            assert sent["checkpoints_of"] == first.id
            assert "checkpoints_name" not in sent
            await bench.submit(name="third", observe=False)
            assert json.loads(await bench.service.request(ANN, "third"))["spec"]["observe"] is False

    asyncio.run(main())


def test_the_request_has_no_field_that_has_its_default(bench: Bench) -> None:
    """A client of the version before may not know it, and then can't run the job again."""

    async def main() -> None:
        async with bench.server():
            request = bench.request(name="first", n_workers=1, args=[], max_retry=2)
            await bench.service.submits.submit(ANN, request, None)
            sent = json.loads(await bench.service.request(ANN, "first"))
            assert sent.keys() == {"spec", "code"}
            assert sent["spec"].keys() == {"script", "name", "max_retry"}
            read = SubmitRequest.model_validate(sent)
            assert read.spec == request.spec
            assert sent["code"]["mode"] == "in_place"

    asyncio.run(main())


def test_a_command_in_a_folder_needs_a_proof_unless_the_caller_knows(bench: Bench) -> None:
    spec = bench.request(script="ls", type="binary").spec
    request = SubmitRequest(
        spec=spec, code=CodeInPlace(), submitter=Submitter(working_dir=str(bench.scripts))
    )

    async def main() -> None:
        async with bench.server():
            with pytest.raises(NotShared):
                await bench.service.submits.submit(ANN, request, None)
            _, created = await bench.service.submits.submit(ANN, request, None, shared=True)
            assert created

    asyncio.run(main())


def test_a_search_is_among_the_jobs_that_one_may_see(bench: Bench) -> None:
    async def count(user: User, *owners: str) -> int:
        found, _ = await bench.service.lookup.search(user, JobFilters(owners or None), 10, 0)
        return found

    async def main() -> None:
        async with bench.server():
            await bench.submit(name="of-ann")
            await bench.submit(BEN, name="of-ben")
            assert [await count(ANN), await count(ANN, "ben"), await count(ANN, "ann", "ben")] == [
                1,
                0,
                1,
            ]
            assert [
                await count(ROOT),
                await count(ROOT, "ben"),
                await count(ROOT, "ann", "ben"),
            ] == [0, 1, 2]

    asyncio.run(main())


def test_the_server_names_the_job_whose_checkpoints_are_copied_whatever_the_client_says(
    bench: Bench,
) -> None:
    """The name is a part of a path on a volume, also after a restart of the server."""

    async def main() -> None:
        async with bench.server():
            first = await bench.submit(name="first")
            asked = {"checkpoints_of": first.id, "checkpoints_name": "another"}
            request = bench.request(name="second").model_copy(update=asked)
            text, _ = await bench.service.submits.submit(ANN, request, None)
            second = JobInfo.model_validate_json(text).id
            assert bench.runtime.attempts.pop(second).checkpoints_name == "first"
            with pytest.raises(
                NotFound, match=r"no job .* of ben whose checkpoints could be copied"
            ):
                await bench.service.submits.submit(
                    BEN, bench.request().model_copy(update=asked), None
                )
        async with bench.server():
            assert bench.runtime.attempts[second].checkpoints_name == "first"

    asyncio.run(main())


def test_a_changed_job_starts_from_no_step_of_the_old_one(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            await bench.submit(name="first", checkpoint_params={"keep": 2, "from_step": 4})
            submits = bench.service.submits
            for changes, step in ((None, 4), ({"n_workers": 2}, None)):
                text = await submits.resubmit(ANN, "first", changes)
                again = JobInfo.model_validate_json(text).spec.checkpoint_params
                assert again is not None
                assert (again.keep, again.from_step) == (2, step)

    asyncio.run(main())
