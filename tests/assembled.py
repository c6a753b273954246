"""A coordinator and its clients, for tests that run rounds themselves."""

from efl import EFL
from efl.config import parse
from efl.runs.setup import build
from efl.transport.base import TrainRequests


def assemble(federation, algorithm=None, fleet=None, **training):
    experiment = parse({"federation": {"clients": len(federation)}, "training": training})
    setup = build(experiment, federation, None, algorithm or EFL(density_up=0.05, density_down=0.05), fleet)
    return assembled(setup)


def assembled(setup):
    """The coordinator of a setup, and the host of its clients."""
    coordinator = setup.coordinator()
    return coordinator, coordinator.transport.host


def intercept(transport, change):
    """Have ``change(requests, replies)`` take the place of what comes back of training requests."""
    send, collect, sent = transport.send, transport.collect, []

    def sending(requests):
        sent.append(requests)
        send(requests)

    def collecting(until):
        requests, replies = sent.pop(), collect(until)
        return change(requests, replies) if isinstance(requests, TrainRequests) else replies

    transport.send, transport.collect = sending, collecting
