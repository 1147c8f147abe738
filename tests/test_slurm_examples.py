"""The scripts of examples/slurm, with SLURM's variables and, in place of its commands, scripts of one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedmos.experiments.progress import last_record

SCRIPTS = Path(__file__).parents[1] / "examples" / "slurm"
CONFIGURATION = """\
rounds = 3
local_steps = 2
batch_size = 8
eval_every = 1
algorithm = { name = "FedAvg", lr = 0.05 }
selection = { name = "Uniform", m = 2 }
model = { name = "logistic", features = 64 }
data = { name = "digits", clients = 5, partition = { name = "Dirichlet", alpha = 1.0 } }
"""


def slurm(tmp_path: Path, script: str, *arguments: str, **variables: str) -> str:
    """Run a script as SLURM would; returns its output."""
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    for name, line in {
        "fedmos": f'exec {sys.executable} -m fedmos "$@"',
        "scontrol": "echo first; echo second",
        "srun": 'echo "$@"',
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"} | variables
    command = ["bash", str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.extended
def test_tasks_of_an_array_train_one_seed_each_and_once(tmp_path):
    (tmp_path / "c.toml").write_text(CONFIGURATION)
    arguments = ("seeds.sh", "c.toml", "runs", "--set", "local_steps=1")
    for seed in ("1", "2"):
        slurm(tmp_path, *arguments, SLURM_ARRAY_TASK_ID=seed)
    folders = sorted((tmp_path / "runs").iterdir())
    assert [path.name for path in folders] == ["seed-1", "seed-2"]
    last = [last_record(path) for path in folders]
    assert [record["round"] for record in last] == [3, 3]
    assert last[0]["train_loss"] != last[1]["train_loss"]
    slurm(tmp_path, *arguments, SLURM_ARRAY_TASK_ID="2")  # SLURM starts the last one again
    assert last_record(folders[1]) == last[1]  # also its seconds: it was not trained again


def test_a_comparison_starts_ray_on_the_nodes_of_the_job(tmp_path):
    given = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "8"}
    printed = slurm(tmp_path, "compare.sh", "c.toml", "runs/mine", "--set", "rounds=2", **given)
    assert printed.split(" -- ") == [
        "ray symmetric-run --address first:6379 --min-nodes 2 --num-cpus 8",
        "fedmos compare c.toml --out runs/mine --on ray --quiet --set rounds=2\n",
    ]
