"""Transformations around any algorithm; `efl.algorithms.transform` says what one is."""
