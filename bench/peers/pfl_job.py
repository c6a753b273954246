"""pfl-research 0.6: its own federated averaging on PyTorch; run by torchrun it shares a cohort among processes."""

import os
import time

import torch
import torch.nn.functional as F
from job import BATCH, COHORT, ETA, STEPS, WARM_UP, arguments, clients, tell
from networks import network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class WithLoss(torch.nn.Sequential):
    """A network as pfl wants it."""

    def loss(self, x, y, eval=False):  # noqa: A002  pfl's name
        """What is minimised."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y, eval=False):  # noqa: A002
        """Nothing is measured here, but pfl wants something."""
        return {"loss": Weighted(0.0, 1)}


class Clock(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self):
        self.ends = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """One more."""
        self.ends.append(time.perf_counter())
        return False, type(aggregate_metrics)()


def main() -> None:
    """As in pfl's tutorials."""
    torch.set_num_threads(1)
    name, rounds = arguments()
    data = [(torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y)) for x, y in clients()]
    users = get_user_sampler("random", list(range(len(data))))
    federated = FederatedDataset(lambda user: Dataset(data[user], user_id=user), users)
    model = WithLoss(*network(name))
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=WARM_UP + rounds + 1,
            evaluation_frequency=10**6,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=federated, val_data=None),
        model=wrapped,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None, local_num_steps=STEPS, local_learning_rate=ETA, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[clock],
    )
    if int(os.environ.get("RANK", "0")) == 0:
        tell([b - a for a, b in zip(clock.ends[WARM_UP:], clock.ends[WARM_UP + 1 :], strict=False)])


main()
