"""A coordinator and its clients, for tests that play rounds themselves."""

from efl import EFL
from efl.config import parse
from efl.runs.setup import prepare


def assemble(federation, algorithm=None, fleet=None, **training):
    experiment = parse({"federation": {"clients": len(federation)}, "training": training})
    return prepare(experiment, federation, None, algorithm or EFL(density_up=0.05, density_down=0.05), fleet).assemble()
