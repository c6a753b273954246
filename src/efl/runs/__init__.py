"""Runs: set-up, the loop over rounds, evaluation, checkpoints, the run directory, comparisons."""
