"""Tests of the tool itself. Those with the marker `cluster` start real
clusters: `make test-cluster`.
"""
