"""Show that two source trees of fedmos produce the same bits.

    python tools/same_bits.py OLD_TREE NEW_TREE [--only PATTERN]

Each tree plays a fixed set of small runs in processes of its own, through public names only. The hashes of model,
server's, clients' and selection's state and of every round's record are compared; run folders that OLD has begun are
continued by NEW. PATTERN is a regular expression that is searched for in the names of runs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

ENGINES = ("loop", "batched")
RANKED = [f"{method}, {engine}" for method, engine in product(("FedAvg", "Scaffold"), ENGINES)]
SIZES = (3, 17, 8, 5, 12, 4, 9, 21, 6, 14, 7, 10)
RECORD = {
    "cohort": ("round", "cohort", "weights", "available", "short", "late", "abandoned", "clock"),
    "bytes": ("bytes_down", "bytes_up", "probed"),
    "metrics": ("train_loss", "train_accuracy", "test_loss", "accuracy", "diagnostics"),
}
OTHER: dict[str, Any] = {"first": "shared", "option": 1, "scale": "elapsed", "start": "x0", "variant": "released"}
OTHER |= {"a": 0.3, "alpha": 0.3, "beta": 0.6, "beta1": 0.5, "beta2": 0.8, "beta_local": 0.3, "mu": 0.3}
OTHER |= {"server_lr": 0.7, "tau": 2}
"""Values that are not the defaults, for algorithms with a field of that name."""


class Cases:
    """The runs of one process by name, each a function that gives its results."""

    def __init__(self, fm: Any, side: str, shared: Path) -> None:
        """`side` says whether the run folders in `shared` are begun ("old") or continued ("new")."""
        import numpy as np
        import torch
        from torch.nn import Dropout, Linear, Sequential, Tanh

        self.fm, self.side, self.shared = fm, side, shared
        self.found: dict[str, Callable[[], list[Any]]] = {}
        rng = np.random.default_rng(0)
        pairs = [(rng.normal(size=(n, 10)).astype("f4"), rng.integers(0, 4, n)) for n in (*SIZES, 40)]
        self.data = fm.FederatedData.from_arrays(pairs[:-1], test=pairs[-1])
        pairs[2] = pairs[2][0] * np.float32(1e30), pairs[2][1]
        self.poisoned = fm.FederatedData.from_arrays(pairs[:-1], test=pairs[-1])
        torch.manual_seed(0)
        self.net = Sequential(Linear(10, 12), Tanh(), Dropout(0.3), Linear(12, 4))
        speeds = fm.Table([20.0 * (i + 1) for i in range(len(SIZES))])
        self.clock = fm.System(speed=speeds, deadline=0.25, over_select=1.5)

    def job(self, **changes: Any) -> dict[str, Any]:
        """Arguments of `fm.run` that take a moment."""
        fm, work = self.fm, {} if "local_epochs" in changes else {"local_steps": 3}
        parts = {"model": self.net, "data": self.data, "algorithm": fm.FedAvg(lr=0.1), "selection": fm.Uniform(m=5)}
        return parts | work | {"rounds": 3, "batch_size": 4, "device": "cpu"} | changes

    def add(self, name: str, shows: Callable[[Any], bool] = lambda result: True, **changes: Any) -> None:
        """A run with each engine; `shows` tells whether it came to what it is there for."""

        def play(given: dict[str, Any]) -> list[Any]:
            result = self.fm.run(**given)
            assert shows(result), "the run does not show what it is there for"
            return [result]

        for engine in ENGINES:
            self.found[f"{name}, {engine}"] = partial(play, self.job(engine=engine, **changes))

    def algorithms(self) -> None:
        """With defaults and local steps, and with other values and local epochs."""
        for name, kind in self.fm.algorithms().items():
            needed = {f.name: OTHER[f.name] for f in fields(kind) if f.default is MISSING and f.name != "lr"}
            other = {f.name: OTHER[f.name] for f in fields(kind) if f.name in OTHER}
            self.add(f"algorithm {name}", algorithm=kind(lr=0.1, **needed))
            self.add(f"algorithm {name} by epochs", algorithm=kind(lr=0.1, **other), local_epochs=2, seed=1)
        self.add("algorithm FedMoS, first batch", algorithm=self.fm.FedMoS(lr=0.1, first_batch=2))

    def selectors(self) -> None:
        fm = self.fm
        kinds = {name: kind(m=4) for name, kind in fm.selectors().items() if name in ("ACS", "ActiveFL", "MD", "Oort")}
        kinds |= {"Bernoulli": fm.Bernoulli(rate=0.3), "Cyclic": fm.Cyclic(m=5), "Full": fm.Full()}
        kinds |= {f"PowerOfChoice {how}": fm.PowerOfChoice(m=3, d=6, loss=how) for how in ("full", "batch", "reported")}
        kinds |= {f"Uniform {weights}": fm.Uniform(m=4, weights=weights) for weights in ("cohort", "mean")}
        kinds["FixedCohorts"] = fm.FixedCohorts([[1, 7, 3], [0], [5, 5]], [[0.2, 0.5, 0.1], [0.9], [0.1, 0.3]])
        for name, selection in kinds.items():
            self.add(f"selector {name}", selection=selection, rounds=4)
        clustered = fm.CACS(m=4, warmup=1)
        self.add("selector CACS", lambda r: r.history[1].probed == sum(SIZES), selection=clustered, rounds=4)

    def circumstances(self) -> None:
        """Clients that are away, late or send nonsense; other data, networks and settings."""
        fm, float64 = self.fm, importlib.import_module("torch").float64
        self.add("availability, groups", lambda r: r.short_rounds > 0, availability=fm.Alternating(groups=3, drop=0.3))
        self.add("availability, random", availability=fm.RandomAvailability(0.5), selection=fm.ACS(m=3))
        drawn = fm.System(speed=fm.LogNormal(median=50), up=fm.Constant(1e5), deadline=0.25, quorum=0.5)
        for name, system, algorithm in (("table", self.clock, fm.FedDyn), ("drawn", drawn, fm.Mime)):
            given = {"system": system, "algorithm": algorithm(lr=0.1), "selection": fm.Oort(m=4), "rounds": 4}
            self.add(f"clock, {name}", lambda r: any(record.late for record in r.history), **given)
        for name in ("FedAvg", "Scaffold", "Mime"):
            given = {"data": self.poisoned, "selection": fm.Full(), "on_bad_update": "drop"}
            given |= {"model": fm.models.logistic(features=10, classes=4), "algorithm": fm.algorithms()[name](lr=0.1)}
            self.add(f"bad update, {name}", lambda r: [i for i, t in enumerate(r.last) if t < 0] == [2], **given)
        split = fm.partition.ByClass(classes=2, size=(4, 16))
        digits = fm.datasets.load("digits").partition(split, clients=12, seed=0).declare(augment=fm.Augment(crop=1))
        self.add("digits", data=digits, model=fm.models.cnn_digits(dropout=True), algorithm=fm.FedMoS(lr=0.1))
        synthetic = {"data": fm.datasets.synthetic(clients=8), "model": fm.models.logistic(features=60)}
        self.add("synthetic, full batches", batch_size=None, **synthetic)
        self.add("float64, clip, decays", dtype=float64, clip=0.5, weight_decay=0.01, lr_decay=0.9, eval_every=2)
        self.add("bf16", precision="bf16", lr_decay={1: 0.5}, algorithm=fm.Scaffold(lr=0.1))
        self.add("diagnostics", callbacks=[fm.Diagnostics(every=1)], algorithm=fm.FedCM(lr=0.1))

    def many(self) -> None:
        for name, selection in (("Scaffold", self.fm.Uniform(m=5)), ("FedMoS", self.fm.Bernoulli(rate=0.4))):
            given = self.job(engine="batched", algorithm=self.fm.algorithms()[name](lr=0.1), selection=selection)
            runs = [given | {"seed": seed} for seed in range(3)]
            self.found[f"run_many, three seeds, {name}"] = partial(self.fm.run_many, runs)

    def resumed(self) -> None:
        fm = self.fm
        kinds = {"Scaffold, CACS": {"algorithm": fm.Scaffold(lr=0.1), "selection": fm.CACS(m=4, warmup=1)}}
        kinds["FedMoS, ACS"] = {"algorithm": fm.FedMoS(lr=0.1), "selection": fm.ACS(m=4), "local_epochs": 1}
        kinds["FedHBM, Oort"] = {"algorithm": fm.FedHBM(lr=0.1), "selection": fm.Oort(m=4)}
        kinds["FedHBM, Oort, table"] = kinds["FedHBM, Oort"] | {"system": self.clock}
        for (kind, changes), engine in product(kinds.items(), ENGINES):
            name, given = f"{kind}, {engine}", self.job(engine=engine, **changes) | {"rounds": 4}
            self.found[f"resumed, {name}"] = partial(self._continued, given, Path(name), begin=True)
            self.found[f"OLD resumed by NEW, {name}"] = partial(self._handed_over, given, self.shared / name)

    def _handed_over(self, given: dict[str, Any], out: Path) -> list[Any]:
        """OLD plays all rounds at once, and two of them into a folder; NEW continues from there."""
        if self.side == "new":
            return self._continued(given, out)
        self.fm.run(**given | {"rounds": 2}, out=out)
        return [self.fm.run(**given)] * 2

    def _continued(self, given: dict[str, Any], out: Path, begin: bool = False) -> list[Any]:
        """The result of a run in two parts as it is returned, and as it is saved."""
        if begin:
            self.fm.run(**given | {"rounds": 2}, out=out)
        played: list[Any] = []
        result = self.fm.run(**given, out=out, resume=True, callbacks=[played.append])
        assert len(played) == 2, "the run began anew"
        return [result, self.fm.Result.load(out)]

    def ranks(self) -> None:
        """What the first of several ranks has saved for all."""

        def play(given: dict[str, Any], out: Path) -> list[Any]:
            self.fm.run(**given, out=out)
            return [self.fm.Result.load(out)] if os.environ["RANK"] == "0" else []

        for which in RANKED:
            method, engine = which.split(", ")
            given = self.job(engine=engine, algorithm=self.fm.algorithms()[method](lr=0.1))
            self.found[f"ranks {os.environ['WORLD_SIZE']}, {which}"] = partial(play, given, Path(which))


def sha(named: Mapping[str, Any]) -> str:
    """Of tensors by name, with their types and shapes."""
    parts = [f"{k} {v.dtype} {tuple(v.shape)}:".encode() + v.numpy().tobytes() for k, v in sorted(named.items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def digests(results: Iterable[Any]) -> dict[str, str]:
    """A hash of each part of the results of a case."""
    found: dict[str, str] = {}
    for number, result in enumerate(results):
        parts = {"params": sha({"": result.params}), "last": sha({"": result.last})}
        parts |= {"server_state": sha(result.server_state), "selection": sha(result.selection)}
        parts |= {f"state of client {i}": sha(result.client_state(i)) for i in range(len(result.last))}
        for record, (kind, names) in product(result.history, RECORD.items()):
            text = json.dumps([getattr(record, name) for name in names])
            parts[f"{kind} of round {record.round}"] = hashlib.sha256(text.encode()).hexdigest()
        found |= {f"{part} [{number}]" if number else part: value for part, value in parts.items()}
    return found


def child(tree: str, side: str, shared: str, report: str, only: str) -> None:
    """Play the cases in the tree that PYTHONPATH names, and write their hashes."""
    fm: Any = importlib.import_module("fedmos")  # before torch is used, because it sets what MKL reads then
    assert Path(fm.__file__).is_relative_to(Path(tree) / "src"), fm.__file__
    cases, in_ranks, found = Cases(fm, side, Path(shared)), "RANK" in os.environ, dict[str, Any]()
    alone = (cases.algorithms, cases.selectors, cases.circumstances, cases.many, cases.resumed)
    for fill in (cases.ranks,) if in_ranks else alone:
        fill()
    for name, play in cases.found.items():
        try:
            found |= {name: digests(play())} if re.search(only, name) else {}
        except Exception as error:  # the other cases are of interest all the same
            if in_ranks:
                raise
            found[name] = f"{type(error).__name__}: {error}"
    if os.environ.get("RANK", "0") == "0":
        Path(report).write_text(json.dumps(found))
    distributed = importlib.import_module("torch.distributed")
    if distributed.is_initialized():
        distributed.destroy_process_group()


def play_tree(tree: Path, side: str, folder: Path, only: str) -> dict[str, Any]:
    """The hashes of all cases in a tree."""
    began, found = perf_counter(), dict[str, Any]()
    for size in (0, 1, 2):
        if size and not any(re.search(only, f"ranks {size}, {which}") for which in RANKED):
            continue
        here = folder / f"{side}-{size}"
        here.mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FEDMOS_", "MKL_CBWR"))}
        environment |= {"PYTHONPATH": f"{tree / 'src'}", "FEDMOS_CACHE": f"{here / 'cache'}", "OMP_NUM_THREADS": "1"}
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", size] if size else []
        arguments = [Path(__file__).resolve(), "--child", tree, side, folder / "shared", here / "report.json", only]
        command = [str(word) for word in (sys.executable, *launcher, *arguments)]
        done = subprocess.run(command, env=environment, cwd=here, capture_output=True, text=True, timeout=600)
        if done.returncode:
            print(done.stderr[-4000:])
            found[f"process for {size} ranks" if size else "process"] = f"exit status {done.returncode}, see above"
        else:
            found |= json.loads((here / "report.json").read_text())
    print(f"{side.upper()} {tree}: {len(found)} runs in {perf_counter() - began:.0f} s", flush=True)
    return found


def verdict(old: Any, new: Any) -> str:
    if failed := [f"{side}: {given}" for side, given in (("OLD", old), ("NEW", new)) if isinstance(given, str)]:
        return f"FAILED in {'; '.join(failed)}"
    if new is None:
        return "DIFFERENT: only in OLD"
    parts = [part for part in old | new if old.get(part) != new.get(part)]
    return f"DIFFERENT: {', '.join(parts[:4])}{', …' * (len(parts) > 4)}" if parts else "equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", metavar="PATTERN")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="same-bits-") as name:
        old, new = (play_tree(getattr(given, s).resolve(), s, Path(name), given.only) for s in ("old", "new"))
    added = [name for name in new if name not in old]
    if added:
        print(f"{len(added)} runs are of algorithms or selectors that OLD does not have")
    verdicts = {name: verdict(given, new.get(name)) for name, given in old.items()}
    for name, said in verdicts.items():
        print(f"{name:<{max(map(len, verdicts))}}  {said}")
    equal = list(verdicts.values()).count("equal")
    print(f"{equal} of {len(verdicts)} runs are equal")
    sys.exit(not verdicts or equal < len(verdicts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
