"""A second user sees nothing of the first one's jobs, as under /api/v1."""

import pytest

from tests.mlspace.rest.conftest import JOBS, Platform

ON_A_JOB = [
    ("GET", f"{JOBS}/NAME"),
    ("DELETE", f"{JOBS}/NAME?region=SR006"),
    ("GET", f"{JOBS}/NAME/logs?region=SR006"),
    ("GET", f"{JOBS}/NAME/params"),
    ("GET", f"{JOBS}/NAME/nodes"),
    ("GET", f"{JOBS}/NAME/preemptors"),
    ("GET", f"{JOBS}/elastic/NAME/pods"),
]


@pytest.mark.parametrize(("method", "path"), ON_A_JOB)
def test_a_job_of_another_is_answered_as_one_that_is_not_there(
    method: str, path: str, ann: Platform, ben: Platform
) -> None:
    name = ann.created()
    theirs, missing = (
        ben(method, path.replace("NAME", name)),
        ben(method, path.replace("NAME", "nowhere")),
    )
    said, expected = theirs.json(), missing.json()
    if "deleted_at" in said:
        del said["deleted_at"], expected["deleted_at"]
    assert theirs.status_code == missing.status_code
    assert said == expected | ({"job_name": name} if "job_name" in expected else {})
    assert ann.status(name)["status"] == "pending"


def test_lists_show_one_s_own_whoever_is_asked_for(
    ann: Platform, ben: Platform, root: Platform
) -> None:
    of_ann, of_ben = ann.created(), ben.created()
    assert ben.names() == [of_ben]
    assert ben.names(job_author="ann") == []
    assert ben.names(job_author=["ann", "ben"]) == [of_ben]
    assert root.names() == []
    assert root.names(job_author=["ann", "ben"]) == [of_ben, of_ann]
