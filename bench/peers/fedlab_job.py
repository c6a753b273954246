"""FedLab 1.3: its own federated averaging, clients one after another in one process that has all threads."""

# ruff: noqa: E402
import logging
import sys
from types import ModuleType

# FedLab imports torchvision, whose operators are missing beside a PyTorch without CUDA, and which is not used here.
sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")

import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from job import BATCH, CLIENTS, COHORT, ETA, STEPS, WARM_UP, arguments, clients, report
from networks import network


class Held:
    """What the clients hold, as FedLab wants it; batches are slices, which is quicker than PyTorch's loader."""

    def __init__(self):
        self.data = [(torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y)) for x, y in clients()]

    def get_dataloader(self, client, batch_size):
        """An epoch of one client: as many batches as the job has steps."""
        x, y = self.data[client]
        order = torch.randperm(len(y))[: STEPS * batch_size]
        return ((x[batch], y[batch]) for batch in order.split(batch_size))


def main() -> None:
    """The loop of FedLab's standalone pipeline, without evaluation."""
    logging.disable()
    name, rounds = arguments()
    model = torch.nn.Sequential(*network(name))
    server = FedAvgServerHandler(model, global_round=WARM_UP + rounds, sample_ratio=COHORT / CLIENTS)
    server.num_clients = CLIENTS
    trainer = FedAvgSerialClientTrainer(model, num_clients=CLIENTS)
    trainer.setup_dataset(Held())
    trainer.setup_optim(epochs=1, batch_size=BATCH, lr=ETA)

    def play(round_: int) -> None:
        trainer.local_process(server.downlink_package, server.sample_clients())
        for upload in trainer.uplink_package:
            server.load(upload)

    report(play, rounds)


main()
