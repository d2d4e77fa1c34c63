"""What runs inside a worker, local or pod: standard library only, Python >= 3.8."""
