"""Proves that a script resumes: runs it undisturbed, then with faults, and compares what came out.

    faults         which faults there are, and the moment of each
    records        what each step of an optimizer began with, as `probe` has written it
    restored       which parts of the state a resumed run got back, by the records
    values         the metrics of two runs, step by step
    judgement      the verdict about one fault
    report         the verdicts as a table, as sentences and as data
    probe          runs in each rank before its script, and writes the records
    tensors        runs in the job's Python, and compares two checkpoints
    saves          the checkpoints of a folder, as they come and go
    folders        the copies of the code, in which the runs take place
    runs           runs as ordinary jobs of this machine, and what is left of them
    disturbances   carries a fault out
    rehearsal      the sequence of all runs

The modules up to `report` decide; they touch no clock, process or network. Every run is a job of
its own in a folder of its own, so nothing of the user is touched.
"""

from client_lib.drill.faults import FAULTS, QUICK
from client_lib.drill.rehearsal import rehearse
from client_lib.drill.report import DrillReport

__all__ = ["FAULTS", "QUICK", "DrillReport", "rehearse"]
