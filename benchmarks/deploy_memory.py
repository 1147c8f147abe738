"""Seconds a round, peak memory and CPU time of every process of a deployment on loopback, by size of the model.

    python benchmarks/deploy_memory.py [--clients 2] [--megabytes 1 50 500] [--rounds 3] [--flower] [--plain]

All clients take part in every round, with one step on one sample. `--flower` runs Flower's own FedAvg strategy and a
client app without fedmos, with the same model. `--plain` uses Flower's own SuperNode and SuperExec.

The peak of a process is VmHWM of /proc/PID/status, and of all processes of a kind the largest. "× model" is that peak
minus the peak of the same kind of process with a model of 1 kB, divided by the size of the model.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from deploy import width, write_overhead_app
from flower_apps import run_app, write_app

from fedmos.flower.local.local_deployment import LocalDeployment
from fedmos.run.result import Result

_FLOWER_APPS = """\
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

CLIENTS, WIDTH, ROUNDS = {clients}, {width}, {rounds}


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, WIDTH), torch.nn.Linear(WIDTH, 2))


server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    out = Path(context.run_config["out"])
    out.mkdir(parents=True)
    times = [time.monotonic()]

    def evaluate(round, arrays):
        if round:
            times.append(time.monotonic())
        else:
            times[0] = time.monotonic()

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    arrays = ArrayRecord(model().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, evaluate_fn=evaluate)
    (out / "seconds.txt").write_text(" ".join(str(b - a) for a, b in zip(times, times[1:])))


@client.train()
def train(message, context):
    network = model()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = torch.nn.functional.cross_entropy(network(torch.randn(1, 8)), torch.zeros(1, dtype=torch.int64))
    loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.1 * parameter.grad
    content = {{"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({{"num-examples": 1}})}}
    return Message(RecordDict(content), reply_to=message)
"""

SUPERLINK, SUPERNODE, SERVER, CLIENT = "SuperLink", "SuperNode", "server app", "client app"
_KINDS = (SUPERLINK, SUPERNODE, SERVER, CLIENT)


@dataclass
class Sampler:
    """Samples the processes of a deployment until it is stopped: the peak of each kind, in bytes."""

    deployment: LocalDeployment
    every: float = 0.02
    peaks: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sampler:
        self._cpu = self._cpu_seconds()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu = {kind: seconds - self._cpu.get(kind, 0.0) for kind, seconds in self._cpu_seconds().items()}

    def _sample(self) -> None:
        while not self._stop.wait(self.every):
            for pid, kind in self._processes():
                self.peaks[kind] = max(self.peaks.get(kind, 0), _peak(pid))

    def _cpu_seconds(self) -> dict[str, float]:
        """CPU seconds by kind, with those of processes that have ended."""
        found: dict[str, float] = {}
        for pid, kind in self._processes(every=True):
            found[kind] = found.get(kind, 0.0) + _cpu(pid)
        return found

    def _processes(self, every: bool = False) -> Iterator[tuple[int, str]]:
        """All processes of interest, with their kind; with `every`, those that start apps too."""
        port = self.deployment.address.split(":")[1]
        for pid in _descendants(os.getpid()):
            command, log = _command(pid), _log_of(pid)
            starts_apps = "superexec" in command and not _is_app(pid, command)
            if "flower-superlink" in command:
                yield pid, SUPERLINK
            elif "supernode.py" in command or "flower-supernode" in command:
                yield pid, SUPERNODE
            elif "serverapp" in command or "clientapp" in command:
                yield pid, SERVER if "serverapp" in command else CLIENT
            elif "superexec" in command and (every or not starts_apps):
                yield pid, SERVER if f"-{port}/" in log else CLIENT


def _is_app(pid: int, command: str) -> bool:
    """Whether a process is a fork that runs an app: its parent serves the same endpoint, and has the same log."""
    parent = _parent(pid)
    return command == _command(parent) and _log_of(pid).endswith("apps.log") and _log_of(pid) == _log_of(parent)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            children.setdefault(_parent(int(path.name)), []).append(int(path.name))
    found, todo = [], [root]
    while todo:
        todo += (new := children.get(todo.pop(), []))
        found += new
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> int:
    try:
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _log_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def write_flower_app(folder: Path, clients: int, megabytes: float, rounds: int) -> Path:
    code = _FLOWER_APPS.format(clients=clients, width=width(megabytes), rounds=rounds)
    return write_app(folder, {"apps": code})


def measure(given: argparse.Namespace, megabytes: float, poll: float | None) -> tuple[list[float], Sampler]:
    """Run one deployment; returns the seconds of rounds after the first, and what was sampled."""
    with tempfile.TemporaryDirectory(prefix="fedmos-memory-") as scratch:
        folder, names = Path(scratch), [str(i) for i in range(given.clients)]
        write = write_flower_app if given.flower else write_overhead_app
        app = write(folder / "app", given.clients, megabytes, given.rounds)
        deployed = LocalDeployment(folder / "deployment", names, poll, plain=given.plain)
        with deployed as deployment, Sampler(deployment) as sampler:
            run_app(deployment, app, folder / "run", given.timeout)
        if given.flower:
            seconds = [float(text) for text in (folder / "run" / "seconds.txt").read_text().split()]
        else:
            seconds = [record.seconds for record in Result.load(folder / "run").history]
        return seconds[1:] or seconds, sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 50, 500])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--poll", type=float)
    parser.add_argument("--timeout", type=float, default=3600.0)
    parser.add_argument("--flower", action="store_true")
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    app = "Flower's FedAvg" if given.flower else "fedmos"
    programs = "Flower's own SuperNode and SuperExec" if given.plain else "those of fedmos"
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before; app: {app}; "
          f"programs: {programs}; {given.clients} clients\n")  # fmt: skip
    _, base = measure(given, 0.001, given.poll)
    print(f"| model, MB | s a round | CPU s a client and round | {' | '.join(_KINDS)} |")
    print("|---:|---:|---:|" + "---:|" * len(_KINDS))
    for megabytes in given.megabytes:
        began = time.monotonic()
        seconds, found = measure(given, megabytes, given.poll)
        cells = []
        for kind in _KINDS:
            peak, small = found.peaks.get(kind, 0), base.peaks.get(kind, 0)
            cells.append(f"{peak / 1e6:.0f} MB, {max(0, peak - small) / 1e6 / megabytes:.1f} ×")
        cpu = sum(found.cpu.values()) / given.clients / given.rounds
        row = f"| {megabytes:g} | {statistics.median(seconds):.2f} | {cpu:.2f} | {' | '.join(cells)} |"
        print(row, f" <!-- {time.monotonic() - began:.0f} s -->", flush=True)
    spent = ", ".join(f"{kind} {seconds / given.rounds:.2f} s" for kind, seconds in found.cpu.items())
    print(f"\nCPU time a round of the last row, by kind, with the start of the run: {spent}")


if __name__ == "__main__":
    main()
