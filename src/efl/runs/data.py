"""The data that an experiment names."""

from __future__ import annotations

from efl.config import CUSTOM, Experiment
from efl.errors import UserError
from efl.federation import Federation, load
from efl.federation.prepared import data_directory
from efl.federation.sources import find_source


def data_resolved(experiment: Experiment) -> Experiment:
    """With the partition, and the folder of the data, spelt out: a run is resumed from any folder."""
    section = experiment.federation
    if section.dataset == CUSTOM:
        raise UserError("this run trains on data of your own; pass them: efl.resume(DIR, federation=…)")
    source = find_source(section.dataset)
    values = {"partition": source.partition} if section.partition == "auto" else {}
    if source.read is not None:
        values["data_dir"] = str(data_directory(section.data_dir).absolute())
    return experiment.with_values(federation=values)


class DataCache:
    """The federations loaded last, so that several runs in one process load each data set once."""

    SIZE = 4

    def __init__(self) -> None:
        self._loaded: dict[object, Federation] = {}

    def load(self, experiment: Experiment) -> Federation:
        """The federation that a resolved experiment names."""
        section, seed = experiment.federation, experiment.training.seed
        if (section, seed) in self._loaded:
            return self._loaded[section, seed]
        federation = load(
            section.dataset,
            section.clients,
            section.partition,
            test_fraction=section.test_fraction,
            seed=seed,
            data_dir=section.data_dir,
        )
        if section.evaluate_on == "validation":
            federation = federation.for_tuning(section.test_fraction, seed)
        if len(self._loaded) == self.SIZE:
            del self._loaded[next(iter(self._loaded))]
        self._loaded[section, seed] = federation
        return federation
