"""Text and HTML about a job for people: its display in a notebook,
explanations, failure reports.
"""
