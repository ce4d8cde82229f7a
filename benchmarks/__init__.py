"""Ours and theirs, measured side by side in one run: ``python -m benchmarks``."""
