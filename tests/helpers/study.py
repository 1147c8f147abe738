"""A study of three hospitals with their own tables, and the installations of its machines as folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

STUDY = """\
rounds = 4
local_steps = 5
batch_size = 16
device = "cpu"

[data]
name = "clients"

[data.arguments]            # what all hospitals agree on
target = "outcome"
classes = ["no", "yes"]
categorical = { sex = ["f", "m"] }
scale = { age = [50.0, 15.0], pressure = [130.0, 15.0] }

[model]
name = "logistic"
features = 4
classes = 2

[algorithm]
name = "FedAvg"
lr = 0.5

[selection]
name = "Full"

[deploy]
clients = ["hospital-a", "hospital-b", "hospital-c"]
"""
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")


def write_table(path: Path, rows: int, seed: int) -> Path:
    """Write a table of patients."""
    g = np.random.default_rng(seed)
    age, pressure, sex = g.normal(50, 15, rows), g.normal(130, 15, rows), g.choice(["f", "m"], rows)
    ill = age / 15 + pressure / 30 + g.normal(0, 1, rows) > 7.6
    lines = [f"{a:.1f},{p:.1f},{s},{'yes' if i else 'no'}" for a, p, s, i in zip(age, pressure, sex, ill, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["age,pressure,sex,outcome", *lines]) + "\n", "utf-8")
    return path


def write_study(folder: Path) -> Path:
    """Write the configuration of the study."""
    path = folder / "study.toml"
    path.write_text(STUDY, "utf-8")
    return path
