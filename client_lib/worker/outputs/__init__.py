"""Keeps files that ranks write to their working directory for download, while the ranks run and at their end.

patterns   matches paths with globs. Pure
find       finds new and changed files
index      the append-only list of kept files, which the server reads, too
store      keeps files in a directory of this machine
http_store keeps them on a remote server
collector  scans: keeps new files, forgets removed ones, reports those that cannot be kept
"""
