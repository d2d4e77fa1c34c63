"""The warm pool: a resident process that has imported the packages of jobs, and forks launchers.
Linux only.

A launcher forked from the pool runs the code of `client_lib.worker` and is the parent of its ranks,
so warm ranks have the guarantees of fresh ones (they die with it, their descendants are found, it
gets their exit statuses). One step of a start differs: a warm rank runs its script in the forked
process, where a fresh one execs the interpreter.

    pool      the process: imports packages, detects what must not be imported, then forks a
              launcher per request
    hidden    imports modules and hides them, with all that they change, until a rank imports them
    fit       decides which ranks may be warm: the table of variables that libraries read at
              import. Pure
    rank      makes a forked process like a fresh one, up to the script
"""

ROOM = "." * 4096
"""Filler in the pool's command line and environment, which a forked rank overwrites
with its own (rank.relabel).
"""
