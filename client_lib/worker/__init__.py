"""The program of a worker: prepares it, runs its ranks and reports their end, on this machine and
in a pod.

    launcher                    one worker, from its plan to its report
    preparation, requirements   the conditions of a start
    rank_watch                  watches the running ranks; begins what the next three lines name
    usage, quiet_ranks, stillness, lone_groups
                                what the ranks use, which of them do nothing, and which train alone
    line_metrics, metric_files, event_files, trainer_status
                                metrics that scripts print, write and post
    stacks                      the stacks of the ranks, on request
    session                     commands of the user in a running worker
    ranks, loop, system         processes, events, left-over processes
    memory                      memory of the machine and of the container
    worker_log, stamp           from the ranks' pipes and files to the log
    rank_end                    how a rank ended
    server_connection           HTTP to a server on another machine
    programs                    paths of files of this package that are run
    rank_runner                 runs the script of a rank; joined into one file by `joining`
    function_runner, preflight, hardware
                                files that the interpreter of the job runs by their paths
    zipapp_build                packs the launcher into one file, for pods
    outputs, warm, pod          see their packages

The formats that the launcher shares with the server are in `client_lib.launcher_protocol`. Every
module here uses the standard library alone and runs on Python >= 3.8.
"""
