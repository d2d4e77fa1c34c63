"""Extra packages of a job: installed once per worker, into an environment that is kept for later workers.

    environment  where environments lie, which one a job has, who uses it, which go
    install      makes one: a process of its own
    failure      why that failed, in a sentence. Pure
    step         the launcher's end of it

An environment is a virtual one in front of the packages of the interpreter that the job has, also where that is a
virtual one itself: what is there already is not installed again, and stays as it is. Standard library only,
Python >= 3.8.
"""
