"""`python -m client_lib.worker DIRECTORY`: run the worker whose plan is there. Also runs by path
and as a zipapp.

`pod [ROOT]` instead of a directory: run as the agent of a pod (pod/), with its files below ROOT.
`checkpoints VERB`: work on the checkpoints of a job (checkpoint_files).
"""

import os
import sys


def main(arguments: "list[str]") -> int:
    if arguments[:1] == ["pod"] and len(arguments) <= 2:
        from client_lib.worker.pod import agent, settings

        return agent.main(*arguments[1:] or [settings.ROOT])
    if arguments[:1] == ["checkpoints"] and len(arguments) == 2:
        from client_lib.worker import checkpoint_files

        return checkpoint_files.main(arguments[1])
    if len(arguments) != 1:
        sys.stderr.write(
            "usage: python -m client_lib.worker DIRECTORY | pod [ROOT] | checkpoints VERB\n"
        )
        return 2
    from client_lib.worker.launcher import run_worker

    return run_worker(arguments[0])


if __name__ == "__main__":
    if not __package__:  # run by path: import the installation of this file
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        # after the standard library in an interpreter without site (launcher_command): a backport
        # next to this package must not replace a standard module
        sys.path.insert(len(sys.path) if sys.flags.no_site else 0, root)
    code = main(sys.argv[1:])
    os._exit(code)  # nothing is left to tear down
