"""The search that looks into the texts of jobs, on SQLite and on PostgreSQL."""

import asyncio
import json
from datetime import timedelta
from typing import Any

from client_lib.spec.states import State
from server_stub.store import rows
from server_stub.store.rows import JobFilters
from tests.store.test_store import T0, added, opened, row


def test_a_search_finds_by_fields_of_the_spec_and_counts_all_pages(url: str) -> None:
    specs = [{"region": "SR006"}, {"region": None}, {"region": "SR003"}, {}, {"region": "SR006"}]

    async def main() -> None:
        async with opened(url) as store:
            for number, spec in enumerate(specs):
                info = json.dumps({"n": number, "spec": spec})
                new = row(number, info=info, created_at=T0 + timedelta(hours=number))
                await store.write(added, new)
            await store.write(added, row(9, owner="ben", info='{"n": 9, "spec": {}}'))

            async def found(
                limit: int = 10, offset: int = 0, **wanted: Any
            ) -> tuple[int, list[int]]:
                filters = JobFilters(**{"owners": ("ann",), **wanted})
                count, jobs = await store.read(rows.search, filters, limit, offset)
                return count, [json.loads(job.info)["n"] for job in jobs]

            assert await found() == (5, [4, 3, 2, 1, 0])
            assert await found(limit=2, offset=1) == (5, [3, 2])
            assert await found(fields=[("region", "SR006", False)]) == (2, [4, 0])
            assert await found(fields=[("region", "SR006", True)]) == (4, [4, 3, 1, 0])
            assert await found(since=T0 + timedelta(hours=3)) == (2, [4, 3])
            assert await found(since=T0, until=T0 + timedelta(hours=1)) == (2, [1, 0])
            assert await found(states={State.RUNNING}) == (0, [])
            assert await found(states={State.RUNNING, State.PENDING}, owners=("ben", "ann")) == (
                6,
                [9, 4, 3, 2, 1, 0],
            )
            assert await found(owners=()) == (0, [])

    asyncio.run(main())
