"""Rounds of FL-Simulator's own code, unchanged, on a split that `fl_simulator.py export` wrote.

    git clone https://github.com/woodenchild95/FL-Simulator
    python benchmarks/fl_simulator.py export dirichlet-0.6 FL-Simulator/Data
    python benchmarks/peers/fl_simulator_job.py FL-Simulator FedAvg FedSMOO --rounds 4

Prints a line of JSON per method with the seconds of every round by its own clock, and how many of them it evaluated the
model, on all training and test samples. Cohorts are of different sizes: each client takes part with probability 0.1.
Where torchvision is missing, the three things of it that FL-Simulator uses
(ResNet-18 with random weights, `Compose`, `ToTensor`) are those of this file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import runpy
import statistics
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Sequential | None = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """torchvision's ResNet-18 by the names of its layers, with its random initial weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    """For images that are floats already, which stay as they are."""

    def __call__(self, image: np.ndarray) -> Tensor:
        return torch.from_numpy(image.transpose((2, 0, 1))).contiguous()


def provide_torchvision() -> bool:
    """Make a stand-in for torchvision importable if it is missing; returns whether it is."""
    if find_spec("torchvision") is not None:
        return False
    package, models, transforms = (ModuleType(f"torchvision{end}") for end in ("", ".models", ".transforms"))
    package.models, package.transforms = models, transforms  # type: ignore[attr-defined]
    models.resnet18 = ResNet18  # type: ignore[attr-defined]
    transforms.Compose, transforms.ToTensor = Compose, ToTensor  # type: ignore[attr-defined]
    sys.modules |= {module.__name__: module for module in (package, models, transforms)}
    return True


def timed_evaluations() -> list[float]:
    """Return a list to which FL-Simulator's evaluations add their seconds."""
    server, seconds = import_module("server.server").Server, []
    evaluate = server._test_

    def timed(*given: Any) -> None:
        began = time.perf_counter()
        evaluate(*given)
        seconds.append(time.perf_counter() - began)

    server._test_ = timed
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    replaced = provide_torchvision()
    os.chdir(given.checkout)
    sys.path.insert(0, str(Path.cwd()))
    evaluations = timed_evaluations()
    for method in given.methods:
        evaluations.clear()
        sys.argv = ["train.py", "--non-iid", "--method", method, "--comm-rounds", str(given.rounds)]
        with contextlib.redirect_stdout(io.StringIO()):
            server = runpy.run_path("train.py", run_name="__main__")["_server"]
        times = [round(float(t), 4) for t in server.time]
        cohorts = [len(server._activate_clients_(t)) for t in range(given.rounds)]
        line = {"method": method, "rounds": times, "evaluations": [round(t, 4) for t in evaluations]}
        line |= {"clients": cohorts}
        median = {"seconds": statistics.median(times[1:]), "evaluation": statistics.median(evaluations[1:])}
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        del server  # several gigabytes
        print(json.dumps(line | median | {"device": where, "stand_in": replaced}), flush=True)


if __name__ == "__main__":
    main()
