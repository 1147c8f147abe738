"""Whether FL-Simulator's code and fedmos compute the same models, on a small problem.

    git clone https://github.com/woodenchild95/FL-Simulator
    python benchmarks/peers/fl_simulator_agreement.py FL-Simulator

Four rounds of all clients with full batches, so that nothing is random: a two-layer network in float64, without
augmentation, with the options of `benchmarks/fl_simulator.py`. Prints the distance between the models, relative to the
distance from the initial model.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from fl_simulator_job import provide_torchvision
from torch import Tensor, nn

import fedmos as fm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fl_simulator

CLIENTS, SAMPLES, ROUNDS, EPOCHS = 6, 8, 4, 3
METHODS = ("FedAvg", "SCAFFOLD", "FedCM", "MoFedSAM", "FedSpeed", "FedSMOO")


class Plain(torch.utils.data.Dataset):
    """In place of FL-Simulator's data set, which augments the images and converts them to float32."""

    def __init__(self, x: np.ndarray, y: np.ndarray, train: bool = False, dataset_name: str = "") -> None:
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 10))


def theirs(method: str, x: np.ndarray, y: np.ndarray, out: str) -> Tensor:
    args = SimpleNamespace(
        method=method, dataset="CIFAR10", non_iid=True, split_rule="Dirichlet", split_coef=0.6, total_client=CLIENTS,
        active_ratio=1.0, comm_rounds=ROUNDS, local_epochs=EPOCHS, batchsize=SAMPLES, weight_decay=1e-3, seed=20,
        local_learning_rate=0.1, global_learning_rate=1.0, lr_decay=0.998, alpha=0.1, lamb=0.1, rho=0.1,
        use_RI=False, save_model=False, out_file=out,
    )  # fmt: skip
    data = SimpleNamespace(client_x=x, client_y=y[..., None], test_x=x[0], test_y=y[0][:, None])
    model = network()
    parameters = import_module("utils").get_mdl_params(model)
    make = getattr(import_module("server"), method)
    with contextlib.redirect_stdout(io.StringIO()):
        server = make(torch.device("cpu"), network, model, parameters, data, method, args)
        server.train()
    result: Tensor = server.server_model_params_list
    return result


def ours(method: str, x: np.ndarray, y: np.ndarray) -> Tensor:
    clients = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(x, y, strict=True)]
    changed = {
        "model": network(),
        "selection": fm.Uniform(m=CLIENTS, weights="mean"),
        "local_epochs": EPOCHS,
        "batch_size": SAMPLES,
    }
    data = fm.FederatedData.from_arrays(clients, test=clients[0])
    return fm.run(data=data, rounds=ROUNDS, dtype=torch.float64, **fl_simulator.options(method) | changed).params


def main() -> None:
    provide_torchvision()
    sys.path.insert(0, str(Path(sys.argv[1]).resolve()))
    torch.set_default_dtype(torch.float64)
    import_module("client.client").Dataset = import_module("server.server").Dataset = Plain  # type: ignore[attr-defined]
    draw = np.random.default_rng(0)
    x = draw.normal(size=(CLIENTS, SAMPLES, 3, 32, 32))
    y = draw.integers(0, 10, (CLIENTS, SAMPLES))
    start = torch.nn.utils.parameters_to_vector(network().parameters()).detach()
    with tempfile.TemporaryDirectory() as out:
        for method in METHODS:
            a, b = theirs(method, x, y, out), ours(method, x, y)
            print(f"{method}: {float((a - b).norm() / (a - start).norm()):.1e}", flush=True)


if __name__ == "__main__":
    main()
