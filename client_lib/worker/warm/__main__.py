"""`python client_lib/worker/warm/__main__.py DESCRIPTOR CONFIG ROOM`: the pool's process. See
pool.py.

Run by path with the interpreter of the jobs, which may lack this package, and without flags, as
ranks are.
"""

import sys

_AT_START = frozenset(sys.modules)  # first: what follows imports more


def main() -> None:
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        del sys.path[0]
    root = __file__.replace("\\", "/").rsplit("/", 4)[0]
    sys.path.insert(0, root)
    from client_lib.worker.rank_runner.hooks import hook_imports
    from client_lib.worker.warm.hidden import Hidden

    hook_imports()  # before Hidden: it hides a later hook as the effect of an import
    hidden = Hidden(_AT_START)
    from client_lib.worker.warm import pool

    # the first one: an installation of this package may follow later in the list
    sys.path.remove(root)
    pool.main(sys.argv, hidden)


if __name__ == "__main__":
    main()
