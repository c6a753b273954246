"""Flower 1.41: its own federated averaging in its Ray simulation, one client a processor at a time."""

import os
import time

# Nothing is reported to anybody, and Ray's processes are not nicer than those of others.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import BATCH, CLIENTS, COHORT, ETA, STEPS, WARM_UP, arguments, clients, tell
from networks import network

NAME, ROUNDS = arguments()
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """As in Flower's quickstart, with slices for batches, which is quicker than PyTorch's loader."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*network(NAME))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=ETA)
    x, y = (torch.from_numpy(held) for held in clients()[context.node_config["partition-id"]])
    order = torch.randperm(len(y))[: STEPS * BATCH]
    for batch in order.split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(model(x[batch].permute(0, 3, 1, 2)), y[batch]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Rounds of training alone; what would evaluate the model notes the time."""
    ends: list[float] = []
    FedAvg(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS).start(
        grid,
        ArrayRecord(torch.nn.Sequential(*network(NAME)).state_dict()),
        num_rounds=WARM_UP + ROUNDS,
        evaluate_fn=lambda round_, arrays: ends.append(time.perf_counter()),
    )
    tell(np.diff(ends)[WARM_UP:].tolist())


run_simulation(
    server_app,
    client_app,
    CLIENTS,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}},
)
