"""Runs of a quadratic problem under a simulated clock."""

from __future__ import annotations

import hashlib

import torch

import fedmos as fm
from helpers.problems import Quadratic

RARE = 1e-4
"""What a χ² test refuses; z-tests refuse 4.5 sigma."""

SIGMA = 4.5


def digest(result: fm.Result) -> str:
    return hashlib.sha256(result.params.numpy().tobytes()).hexdigest()


SPEED = (10.0, 25.0, 40.0, 8.0, 100.0, 16.0, 5.0)
DOWN = (100.0, 300.0, 50.0, 1000.0, 200.0, 80.0, 640.0)
UP = (30.0, 60.0, 90.0, 20.0, 45.0, 70.0, 15.0)
PROFILES = {"speed": fm.Table(SPEED), "down": fm.Table(DOWN), "up": fm.Table(UP)}
B, K, D, ITEM = 4, 3, 5, 8


def run(problem: Quadratic, selection: fm.Selector, algorithm: fm.Algorithm, **changes) -> fm.Result:
    arguments = {"loss": problem.loss, "local_steps": K, "batch_size": B, "dtype": torch.float64, "device": "cpu"}
    arguments |= {"rounds": 3, "eval_every": 100}
    return fm.run(problem.model(), problem.data(), algorithm, selection, **arguments | changes)


def client_seconds(i: int, down: float, samples: float, up: float) -> float:
    """Numbers down, samples' gradients, numbers up."""
    return down * ITEM / DOWN[i] + samples / SPEED[i] + up * ITEM / UP[i]
