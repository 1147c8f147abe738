"""The runs of private_pfl.py in Apple's pfl: `python benchmarks/peers/pfl_private_job.py iid --seeds 0`.

It follows benchmarks/image_classification/pytorch/train.py of pfl, with the same arguments, users and files as
`private_pfl.py`, and needs `requirements-pfl.txt`. Evaluations come after rounds 50, 100, …; pfl's own callback makes
them a round later and leaves out the last. FedAvgM is pfl's central optimiser with a momentum of 0.9.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import precision
from private_pfl import (
    BATCH,
    CLIP,
    COHORT,
    DELTA,
    LOCAL_LR,
    NOISE_COHORT,
    POPULATION,
    Curve,
    cohort_size,
    federation,
    network,
    parsed,
    parser,
)

import fedmos as fm

MOMENTUM = {"FedAvg": 0.0, "FedAvgM": 0.9}
EVALUATED = 10_000
"""Images of a batch in an evaluation."""


class Module(nn.Module):
    """The interface that pfl requires."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.train().net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        outputs = self.eval().net(x)
        loss = F.cross_entropy(outputs, y, reduction="sum").item()
        return {
            "loss": Weighted(loss, len(y)),
            "accuracy": Weighted((outputs.argmax(-1) == y).float().sum().item(), len(y)),
        }


class Watch(TrainingProcessCallback):
    """Adds evaluations on the test images to a curve, and ends the run at the time limit."""

    def __init__(self, curve: Curve, test: Dataset, every: int, rounds: int) -> None:
        self.curve, self.test, self.every, self.rounds = curve, test, every, rounds

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        done = central_iteration + 1
        if done % self.every == 0 or done == self.rounds:
            found = dict(model.evaluate(self.test, str, NNEvalHyperParams(local_batch_size=EVALUATED)))
            self.curve.add(done, found["accuracy"].overall_value)
        return self.curve.is_late(), Metrics()


def accountant(given: argparse.Namespace, cohort: int) -> PLDPrivacyAccountant:
    return PLDPrivacyAccountant(
        num_compositions=given.rounds,
        sampling_probability=NOISE_COHORT / POPULATION,
        mechanism="gaussian",
        epsilon=given.epsilon,
        delta=DELTA,
        noise_scale=cohort / NOISE_COHORT,
    )


def users(data: fm.FederatedData, where: str) -> FederatedDataset:
    slices = {}
    for i in range(len(data)):
        x, y = data.client(i)
        slices[i] = [data.inputs(x).to(where), y.to(where)]
    return FederatedDataset.from_slices(slices, get_user_sampler("random", range(len(data))))


def train(given: argparse.Namespace, seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - pfl draws users from it
    where = "cuda" if torch.cuda.is_available() else "cpu"
    data = federation(given, seed)
    cohort, training = cohort_size(data), users(data, where)
    x, y = data.test
    net = Module(network(seed)).to(where)
    postprocessors: list[Any] = [WeightByUser()]
    noise = None
    if given.private:
        found = accountant(given, cohort)
        mechanism = GaussianMechanism.from_privacy_accountant(accountant=found, clipping_bound=CLIP)
        postprocessors.append(CentrallyAppliedPrivacyMechanism(mechanism))
        noise = found.noise_parameter
    curve = Curve("pfl", given, seed, noise, "pld")
    central = torch.optim.SGD(net.parameters(), lr=1.0, momentum=MOMENTUM[given.method])
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=given.rounds,
            evaluation_frequency=given.eval_every,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=training, val_data=training, postprocessors=postprocessors),
        model=PyTorchModel(net, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LOCAL_LR, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=EVALUATED),
        callbacks=[Watch(curve, Dataset([data.inputs(x).to(where), y.to(where)]), given.eval_every, given.rounds)],
        send_metrics_to_platform=False,
    )


def main() -> None:
    given = parsed(parser(__doc__, list(MOMENTUM)))
    if given.noise_only:
        found = accountant(given, COHORT)
        print(json.dumps({"code": "pfl", "rounds": given.rounds, "pld": found.noise_parameter}))
        return
    with precision(None if given.precision == "float32" else given.precision):
        for seed in given.seeds:
            train(given, seed)


if __name__ == "__main__":
    main()
