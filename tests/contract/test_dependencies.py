"""The outputs that a job gets of those that it waited for."""

from client_lib.spec.states import State
from tests.contract.places import Place, ended
from tests.contract.test_promises import texts

WRITES = """
import os
os.makedirs("deep")
open("deep/model.pt", "w").write("weights")
open("run.sh", "w").write("#!/bin/sh")
os.chmod("run.sh", 0o755)
"""
SHOWS = """
import os
for place in range(3):
    folder = os.environ["CLIENT_LIB_AFTER_%d_OUTPUTS" % place]
    for parent, folders, names in sorted(os.walk(folder)):
        for name in sorted(names):
            path = os.path.join(parent, name)
            print(place, os.path.relpath(path, folder), open(path).read(), os.access(path, os.X_OK))
    print(place, os.path.isdir(folder), "CLIENT_LIB_AFTER_%d_OUTPUTS" % (place + 3) in os.environ)
"""


def test_every_rank_finds_the_outputs_of_the_jobs_before(place: Place) -> None:
    wrote, nothing = place.job(WRITES), place.job("print()", outputs=[])
    member = "import os; open('who', 'w').write(os.environ['CLIENT_LIB_JOB_NAME'])"
    for job in (wrote, nothing):
        job.submit()
    group = place.job(member).each(f"scan-{place.name}", {"seed": [1, 2]})
    last = place.run(SHOWS, after=[wrote, nothing, group], n_workers=2)
    assert last.state is State.SUCCEEDED, last.info().message
    found = [
        "0 run.sh #!/bin/sh True",
        "0 deep/model.pt weights False",
        "0 True False",
        "1 True False",
        f"2 {group.name}-0/who {group.name}-0 False",
        f"2 {group.name}-1/who {group.name}-1 False",
        "2 True False",
    ]
    for rank in (0, 1):
        assert texts(last, stream=["stdout"], rank=[rank]) == found


def test_a_deleted_job_left_nothing_and_what_a_job_writes_changes_no_original(place: Place) -> None:
    wrote, gone = place.run(WRITES), place.run(WRITES)
    slow = place.job("import time; time.sleep(2)")
    slow.submit()
    replaces = """
path = os.environ["CLIENT_LIB_AFTER_0_OUTPUTS"] + "/run.sh"
os.remove(path)
open(path, "w").write("changed")
"""
    last = place.job(SHOWS + replaces, after=[wrote, gone, slow])
    last.submit()
    gone.delete()
    assert ended(last).state is State.SUCCEEDED, last.info().message
    assert texts(last, stream=["stdout"])[2:] == ["0 True False", "1 True False", "2 True False"]
    assert (wrote.download(place.folder / "kept", pattern="run.sh")[0]).read_text() == "#!/bin/sh"
