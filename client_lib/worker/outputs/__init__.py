"""What ranks leave in their working directory, kept for download: found, copied while they run, and at their end.

    patterns   which paths globs mean. Pure
    find       which files there are, and which are new
    index      the list of what is kept: an append-only file. Its readers are on the server, too
    store      where it is kept: what every transport promises, and the directory on this machine
    http_store the same promises, kept by a server elsewhere
    sync       one look: what is new is kept, what was removed is forgotten, what can't be kept is said
    collector  when: the launcher's end of it, in a thread of its own

Standard library only, Python >= 3.8.
"""
