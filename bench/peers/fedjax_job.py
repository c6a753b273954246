"""FedJAX 0.0.17: its own federated averaging, networks in Haiku."""

import fedjax
import haiku as hk
import jax
import numpy as np
from fedjax.algorithms import fed_avg
from job import BATCH, CLASSES, COHORT, ETA, STEPS, arguments, clients, report

NETWORKS = {
    "linear": lambda: [hk.Flatten(), hk.Linear(CLASSES)],
    "mlp200": lambda: [hk.Flatten(), hk.Linear(200), jax.nn.relu, hk.Linear(200), jax.nn.relu, hk.Linear(CLASSES)],
    "cnn_large": lambda: [
        hk.Conv2D(32, 5), jax.nn.relu, hk.MaxPool(2, 2, "VALID"),
        hk.Conv2D(64, 5), jax.nn.relu, hk.MaxPool(2, 2, "VALID"),
        hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(CLASSES),
    ],
}  # fmt: skip


def main() -> None:
    """As in FedJAX's examples."""
    jax.tree_map = jax.tree.map  # what FedJAX still calls it
    network, rounds = arguments()
    forward = hk.transform(lambda batch: hk.Sequential(NETWORKS[network]())(batch["x"]))
    data = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in clients()]
    model = fedjax.create_model_from_haiku(
        transformed_forward_pass=forward,
        sample_batch={"x": np.zeros((1, 28, 28, 1), np.float32), "y": np.zeros(1, np.int64)},
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
        eval_metrics={},
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(ETA),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=None, num_steps=STEPS),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def play(round_: int) -> None:
        nonlocal state
        chosen = np.random.default_rng(round_).choice(len(data), COHORT, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(round_), COHORT)
        state, _ = algorithm.apply(state, [(c, data[c], key) for c, key in zip(chosen.tolist(), keys, strict=True)])
        jax.block_until_ready(state.params)

    report(play, rounds)


main()
