"""The warm pool: a resident process that has the packages of jobs imported, and forks launchers. Linux only.

A launcher that comes out of the pool is the launcher of `client_lib.worker`, and the real parent of its ranks: what
holds for fresh ranks (they die with it, their descendants are found, their exit statuses are its own) holds for warm
ones by the same code. The one thing that differs is the last step of a start: a warm rank runs its script where a fresh
one would exec the interpreter.

    pool      the process: preloads, then forks a launcher per request
    preload   imports packages, and sees which must not be imported before a fork
    interpreter  what of the interpreter an import must not change
    at_exit   keeps what packages register with atexit apart
    hidden    keeps the imported packages out of a rank's sys.modules until it imports them
    fit       which ranks may be warm: the table of variables that are read at import. Pure
    rank      what a forked process does to be as a fresh one, up to the script
    threads   thread counts of the libraries that are loaded already
    title     what ps and /proc/<pid>/environ show
    packages  what is installed, and whether it changed

Standard library only, Python >= 3.8.
"""
