"""Extra packages of a job: installed once per worker, into an environment that is kept for later workers.

    cache    the environments of this machine: found by key, locked while in use, removed when there are too many
    install  makes one, in a process of its own, and explains a failure of pip

An environment is a virtual one whose packages come before those of the job's interpreter (which may be a virtual one
itself): packages that the interpreter has are not installed again and stay unchanged.
"""
