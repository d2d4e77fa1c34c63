"""Other ways to do the same: functions that return when a job is over, programs for other
interpreters, and servers.

Nothing of ours is imported.
"""
