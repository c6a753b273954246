"""Processes that make runs: each knows the plug-ins of this one, keeps the data it has loaded, and ends with it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from efl.plugins import load_plugin, loaded_plugins
from efl.processes import end_with_parent
from efl.runs.data import DataCache

PROCESS_DATA = DataCache()  # of the process at hand


@contextmanager
def run_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes; if what is done with them fails, runs that have not begun are given up."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawning, initializer=_start, initargs=(loaded_plugins(),)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start(plugins: Iterable[Path]) -> None:
    end_with_parent()
    for file in plugins:
        load_plugin(file)
