"""Time per FedAvg round of fedmos and of other simulators on identical jobs: `make bench-peers`.

For each job, in turn and repeatedly, each in its own process:

    lean      the plain loop over clients of engines.py
    auto      fedmos, engine="auto", which chooses a plan in every process
    compiled  fedmos, compiled, as in a run that is long enough
    pfl       Apple's pfl, in .venv-pfl or .carry/pfl; on a CPU also as one process for every core
    Flower    Flower's simulation, a worker for every core, in .venv-flower; on a CPU only
    BlazeFL   one client after another, or a thread for every core, in .venv-blazefl or, for a comparison with the same
              PyTorch, with this interpreter; BlazeFL 3 needs Python 3.14 or newer

Models, clients, cohort, steps and batches are those of engines.py, without evaluation. The other simulators get batches
that are cut and normalised on the device beforehand; fedmos draws a batch in every step. Times are medians over all
counted rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
JOBS = ["mnist", "pfl-cifar", "lenet"]
WAYS = ["lean", "auto", "compiled", "pfl", "pfl-processes", "flower", "blazefl", "blazefl-threads"]
PEERS = {"pfl": "pfl", "flower": "flwr", "blazefl": "blazefl"}  # the module of each simulator


def interpreter(peer: str, module: str) -> tuple[str, list[str]] | None:
    """Return the Python interpreter that has the other simulator, and additional import folders; None if none has."""
    own, carried = ROOT / f".venv-{peer}" / "bin" / "python", ROOT / ".carry" / peer
    if own.exists():
        return str(own), []
    if carried.is_dir():
        return sys.executable, [str(carried)]
    if importlib.util.find_spec(module) is not None:
        return sys.executable, []
    return None


def command(way: str) -> tuple[list[str], list[str]] | str:
    """Return the command without the job's name and additional import folders, or the reason why there is none."""
    here = ROOT / "benchmarks" / "peers"
    if way in ("lean", "auto", "compiled"):
        return [sys.executable, str(here / "ours_job.py"), "--way", way], []
    if torch.cuda.is_available() and way in ("pfl-processes", "flower", "blazefl-threads"):
        return "CPU only"
    peer, _, variant = way.partition("-")
    found = interpreter(peer, PEERS[peer])
    if found is None:
        hint = "install BlazeFL with Python ≥ 3.14" if peer == "blazefl" else "`make bench-peers` creates it"
        return f"no .venv-{peer}; {hint}"
    python, folders = found
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={os.cpu_count()}"] if variant == "processes" else []
    options = ["--how", variant or "serial"] if peer == "blazefl" else []
    return [python, *launcher, str(here / f"{peer}_job.py"), *options], folders


def measure(way: str, job: str, given: argparse.Namespace) -> dict[str, Any] | str:
    """Run one pass; return the values it prints, or an error message."""
    how = command(way)
    if isinstance(how, str):
        return how
    arguments, folders = how
    arguments = [*arguments, job, "--rounds", str(given.rounds), "--warm", str(given.warm)]
    if given.precision and PEERS.get(way.partition("-")[0]) in (None, "pfl"):
        arguments += ["--precision", given.precision]
    with tempfile.TemporaryDirectory() as empty:  # without cached measurements
        path = os.pathsep.join([str(ROOT / "src"), *folders])
        environment = os.environ | {"PYTHONPATH": path, "FEDMOS_CACHE": empty, "OMP_NUM_THREADS": threads(way)}
        try:
            done = subprocess.run(
                arguments, env=environment, capture_output=True, text=True, timeout=given.timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not done in {given.timeout} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        return f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    out: dict[str, Any] = json.loads(lines[-1])
    return out


def threads(way: str) -> str:
    return "1" if way in ("pfl-processes", "flower", "blazefl-threads") else str(torch.get_num_threads())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=JOBS, help=f"jobs of engines.py, default {', '.join(JOBS)}")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[way for way in WAYS if way != "compiled"])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one pass of one way")
    parser.add_argument("--precision", choices=["tf32", "bf16"], help="for all but Flower and BlazeFL")
    given = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    counted = f"median of {given.passes} × {given.rounds} rounds, range of the medians of a pass"
    print(f"torch {torch.__version__}, {where}; FedAvg, precision {given.precision}; {counted}\n")
    headings = ("job", "way", "ms a round", "range", "fedmos is × faster", "")
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|", flush=True)
    for job in given.jobs:
        passes: dict[str, list[dict[str, Any]]] = {way: [] for way in given.ways}
        missing: dict[str, str] = {}
        for _ in range(given.passes):
            for way in [way for way in given.ways if way not in missing]:
                line = measure(way, job, given)
                if isinstance(line, str):
                    missing[way] = line
                else:
                    passes[way].append(line)
        median = {
            way: statistics.median(t for line in lines for t in line["times"])
            for way, lines in passes.items()
            if lines and way not in missing
        }
        for way in given.ways:
            if way not in median:
                print(f"| {job} | {way} | | | | {missing[way]} |", flush=True)
                continue
            lines = passes[way]
            each = [1e3 * line["seconds"] for line in lines]
            ours = median.get("compiled", median.get("auto"))
            ratio = f"{median[way] / ours:.2f}" if ours and way not in ("auto", "compiled") else ""
            notes = [lines[0]["peer"] + f" {lines[0]['version']}".rstrip()]
            notes += [f"torch {lines[0]['torch']}"] if lines[0]["torch"] != torch.__version__ else []
            notes += [" / ".join(dict.fromkeys(line["how"] for line in lines))] if lines[0].get("how") else []
            print(
                f"| {job} | {way} | {1e3 * median[way]:.1f} | {min(each):.1f} to {max(each):.1f} | {ratio} | "
                f"{'; '.join(notes)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
