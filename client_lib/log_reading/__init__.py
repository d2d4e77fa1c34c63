"""Reads a job's log from the server and prints it: frames, records, terminals, notebook cells."""
