"""Clients and servers that are killed in the middle of a round, with real processes: the model is the simulator's."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedmos as fm
from fedmos.flower.local.process_group import wait_until
from fedmos.flower.local.progress import DeploymentProgress
from fedmos.storage.toml import dumps
from helpers.deploy_methods import CLIENTS, configuration, simulated

EVERYONE = {"name": "Full"}
KILLS_AFTER = (1, 3, 5)

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
pytestmark = pytest.mark.deploy


class Saboteur:
    """Does harm in the rounds that follow those given; to be called at every look at a run."""

    def __init__(self, run: Path, harm):
        self.progress, self.harm = DeploymentProgress(run), harm
        self.done = []

    def __call__(self):
        for record in self.progress.new_records():
            if record["round"] in KILLS_AFTER and self.harm(len(self.done)):
                self.done.append(record["round"])


def check(run: Path, settings) -> None:
    expected, found = simulated(settings), fm.Result.load(run)
    assert found.history.to_dict()["cohort"] == expected.history.to_dict()["cohort"]
    assert not any(found.history.to_dict()["late"])
    assert torch.equal(found.params, expected.params)


def test_clients_that_are_killed_rejoin_with_their_state(deployment, app, tmp_path, monkeypatch):
    # Soon after the round began: a client that is killed while it sends its reply is late (docs/deploy/faults.md).
    monkeypatch.setattr("fedmos.flower.local.local_deployment._STATUS_INTERVAL", 0.05)
    settings = configuration("SCAFFOLD", rounds=8, selection=EVERYONE)

    def kill(time: int) -> bool:
        deployment.kill_node(time % len(deployment.nodes))
        return True

    saboteur = Saboteur(tmp_path / "run", kill)
    state = deployment.run(app(settings), tmp_path / "run", timeout=1200, on_poll=saboteur)
    assert state.completed, deployment.server_log(60)
    assert len(saboteur.done) == len(KILLS_AFTER)
    check(tmp_path / "run", settings)


def test_a_server_that_is_killed_goes_on_from_the_last_committed_round(deployment, app, tmp_path):
    settings = configuration("SCAFFOLD", rounds=8, selection=EVERYONE)
    saboteur = Saboteur(tmp_path / "run", lambda time: deployment.kill_server_app())
    state = deployment.run(app(settings), tmp_path / "run", timeout=1200, on_poll=saboteur)
    assert state.completed, deployment.server_log(60)
    assert len(saboteur.done) == len(KILLS_AFTER)
    check(tmp_path / "run", settings)


def mentioning(text: str) -> list[int]:
    """Processes with a text in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_command_and_the_command_continues(tmp_path, number):
    settings = configuration("SCAFFOLD", rounds=4)
    (tmp_path / "run.toml").write_text(dumps(settings.kept()))
    folder = tmp_path / "out"
    command = [
        sys.executable,
        "-P",
        "-m",
        "fedmos",
        "deploy",
        "local",
        str(tmp_path / "run.toml"),
        "--out",
        str(folder),
    ]

    def start() -> subprocess.Popen[str]:
        # A shell starts what it puts into the background deaf to Ctrl-C, and that is inherited.
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    with start() as first:
        said = []
        while not any(line.startswith("Round 1") for line in said):
            said.append(first.stdout.readline())
            assert said[-1], "".join(said)
        assert len(mentioning(str(folder))) > CLIENTS
        first.send_signal(number)
        first.wait(120)
    assert first.returncode == (130 if number == signal.SIGINT else -number)
    wait_until(lambda: not mentioning(str(folder)), 60, f"the end of {mentioning(str(folder))}")
    if number == signal.SIGINT:
        return  # one continuation will do
    with start() as second:
        said = second.communicate(timeout=1200)[0]
    assert second.returncode == 0, said
    assert not mentioning(str(folder))
    check(folder / "run", settings)
