"""The launcher: prepares a worker, runs its ranks and reports their end, on this machine and in a
pod.

    launcher    one worker, from its plan to its report; control: the socket that it is controlled by
    preparation, archive, requirements   the conditions of a start
    observer, stacks, metrics        what is seen of running ranks, and what they report
    session                          commands of the user in a running worker
    ranks, loop, system              processes, events, the operating system
    worker_log, stamp, format        from the ranks' pipes and files to the log
    outcome, report                  the end of a worker
    plan, directory, disk            shared with the runtimes: what to do, what each rank sees, files
    server_connection                HTTP to a server on another machine
    rank_runner, function_runner, preflight, system    run by path with the interpreter of the job
    zipapp_build                     packs all modules but the warm pool into one file, for pods
    outputs, warm, pod see their packages

Every module here uses the standard library alone and runs on Python >= 3.8.
"""
