"""Keeps files that ranks write to their working directory for download, while the ranks run and at their end.

patterns   matches paths with globs. Pure
collector  scans: finds new and changed files, keeps them, forgets removed ones, reports those that cannot be kept
store      keeps files in a directory of this machine, with a list, which the server reads, too
http_store keeps them on a remote server
"""
