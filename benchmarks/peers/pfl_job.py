"""A job of engines.py in Apple's pfl, FedAvg: `python benchmarks/peers/pfl_job.py mnist`.

In memory, without privacy, and evaluated only in the first round, which is warm-up, as in pfl's documentation of
simulations. With two processes:
`python -m torch.distributed.run --nproc_per_node 2 benchmarks/peers/pfl_job.py mnist`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pfl
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from shared import JOBS, LR, Client, Marks, clients, device, model, parser, precision, report
from torch import Tensor, nn


class User(Dataset):
    """A client's batches, cut beforehand; pfl's own Dataset caches them likewise, but ends after one pass."""

    def __init__(self, client: Client, user_id: str) -> None:
        super().__init__(raw_data=(), user_id=user_id)
        self.client = client

    def __len__(self) -> int:
        return self.client.samples

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        return iter(self.client.batches)


class Module(nn.Module):
    """The interface that pfl requires: a loss, and metrics, which it always computes in its first round."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(F.cross_entropy(self.net(x), y, reduction="sum").item(), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        self.marks.mark()
        return False, Metrics()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--precision", choices=["tf32", "bf16"])
    given = arguments.parse_args()
    job, where = JOBS[given.job], device()
    users = [User(client, str(i)) for i, client in enumerate(clients(given.job, where))]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(job.clients))))
    net = Module(model(given.job)).to(where)
    marks = Marks()
    with precision(given.precision):
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=given.warm + given.rounds,
                evaluation_frequency=10**6,
                train_cohort_size=job.cohort,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
            model=PyTorchModel(
                net,
                local_optimizer_create=torch.optim.SGD,
                central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
            ),
            model_train_params=NNTrainHyperParams(
                local_num_epochs=None,
                local_num_steps=job.steps,
                local_learning_rate=LR,
                local_batch_size=job.batch,
            ),
            callbacks=[Clock(marks)],
            send_metrics_to_platform=False,
        )
    if pytorch_ops.distributed.global_rank == 0:
        processes = pytorch_ops.distributed.world_size
        name = "pfl" if processes == 1 else f"pfl, {processes} processes"
        report(name, given.job, where, marks.rounds(given.rounds), version=pfl.__version__)


if __name__ == "__main__":
    main()
