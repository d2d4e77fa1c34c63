"""Run a distributed PyTorch job with one call; see the README."""
