"""Operators of our own, and what a run imports for them."""

from __future__ import annotations

import subprocess
import sys

import torch

from fedmos.kernels.operators import Operator

RUN = """
import sys
import torch
import fedmos as fm

x, y = torch.randn(20, 1, 28, 28), torch.randint(0, 4, (20,))
data = fm.FederatedData.from_arrays([(x, y)] * 4)
how = dict(rounds=5, local_steps=2, batch_size=8, engine="batched")
fm.run(fm.models.cnn_mnist(), data, fm.FedAvg(lr=0.1), fm.Full(), **how)
print("torch._dynamo" in sys.modules, "sympy" in sys.modules)
"""


@Operator("test_scaled")
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def test_an_operator_is_called_by_its_name() -> None:
    assert torch.ops.fedmos.test_scaled(torch.ones(2), 3.0).tolist() == [3.0, 3.0]


def test_a_vectorised_run_that_compiles_nothing_imports_neither_the_compiler_nor_sympy() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False False")
