"""Measured studies of the pages on codecs, privacy, robust aggregation, personal models and asynchronous rounds.

python benchmarks/studies.py list [STUDY …]                 # the names of jobs, in the order to start them
python benchmarks/studies.py train JOB … --out runs/studies # writes STUDY/JOB.json after each run
python docs/comparison/build_studies.py runs/studies        # the tables of the pages

A job is a method with one variant (a codec, an ε, a server that waits or does not). It finds a step size on seed 1000,
then trains the seeds of the study, `--processes` of them at once. A job whose file has some of its runs continues.
With `--until`, no run starts after that time, in seconds since 1970 (`date +%s`). Data sets are read from $FEDMOS_DATA.
FEDMOS_STUDY_ROUNDS limits the rounds of all runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import fedmos as fm

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import robust

TUNING_SEED = 1000
STEP_SIZES = (0.3, 0.1, 0.05, 0.02, 0.01)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The device of studies with CIFAR-10."""
HOPELESS = 0.3
"""Below this accuracy, a run for tuning ends early."""
METHODS = {
    "FedAvg": fm.FedAvg,
    "FedAvgM": fm.FedAvgM,
    "FedAvgM(β=0.5)": partial(fm.FedAvgM, beta=0.5),
    "FedMoS": fm.FedMoS,
    "FedHBM": fm.FedHBM,
    "FedCM": fm.FedCM,
    "SCAFFOLD": fm.Scaffold,
    "alone": fm.LocalOnly,
}
Settings = Mapping[str, Any]


class Curve(fm.Callback):
    """Test accuracy every few rounds, with megabytes and simulated seconds; ends the run at a target or a limit."""

    def __init__(self, study: Study, data: fm.FederatedData, rounds: int, tuning: bool, limit: float) -> None:
        self.test = (data.inputs(data.test[0]).to(study.device), data.test[1].to(study.device))
        self.every, self.target, self.unit = min(study.every, rounds), study.target, study.unit
        self.limit, self.trial = limit, 0.3 * study.rounds if tuning else float("inf")
        self.points: list[dict[str, float]] = []
        self.bytes, self.rounds = 0, 0

    @torch.no_grad()
    def on_round(self, record: fm.Record, model: torch.nn.Module) -> None:
        self.rounds, self.bytes = record.round, self.bytes + record.bytes_up + record.bytes_down
        if record.round % self.every == 0:
            (x, y), model = self.test, model.to(self.test[0].device)
            right = sum(
                int((model(x[i : i + 1000]).argmax(1) == y[i : i + 1000]).sum()) for i in range(0, len(x), 1000)
            )
            point = {"round": record.round, "accuracy": right / len(x), "mb": self.bytes / 1e6}
            self.points.append(point | ({} if record.clock is None else {"seconds": record.clock}))

    def should_stop(self, history: fm.History) -> bool:
        if not self.points:
            return False
        last = self.points[-1]
        if self.target is None:
            return False
        hopeless = last["round"] >= self.trial and last["accuracy"] < HOPELESS
        return last["accuracy"] >= self.target or last[self.unit] >= self.limit or hopeless


@dataclass(frozen=True)
class Study:
    """Which jobs there are, what a run is, and by what runs are tuned."""

    seeds: tuple[int, ...]
    rounds: int
    cost: Mapping[str, float]
    """By job, about how many processor seconds it takes, to start the longest first; 0 to start it last."""
    settings: Callable[[str, str, int, Settings], dict[str, Any]]
    """The arguments of `fm.run`, but for the algorithm, from method, variant, seed and tuned values."""
    grid: tuple[dict[str, float], ...] = ({},)
    """Values beside the step size; step sizes are tried from the largest down for each."""
    step_sizes: tuple[float, ...] = STEP_SIZES
    device: str = "cpu"
    """Where it is trained."""
    every: int = 5
    target: float | None = None
    unit: str = "round"
    """Tuned by the least of this to the target; without a target, by the largest score."""
    scores: Callable[[fm.Result], dict[str, float]] = field(default=lambda result: {})
    score: Callable[[str], str] = field(default=lambda variant: "accuracy")


# The studies ------------------------------------------------------------


@cache
def federation(name: str, clients: int, seed: int, classes: int, size: Any, unseen: bool = False) -> fm.FederatedData:
    scheme = fm.partition.ByClass(classes=classes, size=size)
    if not unseen:
        return fm.datasets.load(name).partition(scheme, clients=clients, seed=seed)
    return (
        fm.datasets.load(name).partition(scheme, clients=clients, seed=seed, holdout=0.25).split_clients(0.2, seed)[0]
    )


@cache
def images(clients: int, seed: int) -> fm.FederatedData:
    """Return CIFAR-10 with two classes per client."""
    normalize = fm.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    dataset = fm.datasets.load("cifar10").declare(normalize=normalize)
    return dataset.partition(fm.partition.ByClass(classes=2), clients=clients, seed=seed)


def codec_links() -> dict[str, dict[str, Any]]:
    c = fm.codecs
    rotated = [c.Rotate(), c.Quantize(4)]
    return {
        "plain": {},
        "16-bits": {"uplink": c.Float16(), "downlink": c.Float16()},
        "8-bits": {"uplink": c.Quantize(8), "downlink": c.Quantize(8)},
        "4-bits": {"uplink": c.Quantize(4), "downlink": c.Quantize(4)},
        "1-bit": {"uplink": c.ErrorFeedback(c.Sign()), "downlink": c.Quantize(4)},
        "top-1%": {"uplink": c.ErrorFeedback(c.TopK(0.01)), "downlink": c.Quantize(4)},
        "rotated-4-bits": {"uplink": c.ErrorFeedback(rotated), "downlink": rotated},
    }


def codecs(method: str, variant: str, seed: int, tuned: Settings) -> dict[str, Any]:
    return {
        "model": fm.models.cnn_mnist(seed=seed),
        "data": federation("mnist", 500, seed, 2, (10, 50)),
        "selection": fm.Uniform(m=50, weights="cohort"),
        "local_steps": 5,
        "batch_size": 10,
        **codec_links()[variant],
    }


def simulated_time(variant: str) -> dict[str, Any]:
    """Return the options of a server that waits for its cohort, or that buffers updates."""
    over, how = 1.3, {}
    if variant == "buffered":
        over, how = 1.0, {"buffer": fm.Buffer(size=10, concurrency=26, staleness=0.5)}
    return {
        "selection": fm.Uniform(m=20, weights="mean"),
        "system": fm.System(speed=fm.LogNormal(median=50.0, sigma=1.0), over_select=over, dropout=0.1),
        **how,
    }


def asynchronous(method: str, variant: str, seed: int, tuned: Settings) -> dict[str, Any]:
    return {
        "model": fm.models.cnn_mnist(seed=seed),
        "data": federation("mnist", 200, seed, 2, (10, 50)),
        "local_steps": 5,
        "batch_size": 10,
        **simulated_time(variant),
    }


def asynchronous_images(method: str, variant: str, seed: int, tuned: Settings) -> dict[str, Any]:
    return {
        "model": fm.models.cnn_cifar(seed=seed),
        "data": images(100, seed),
        "local_steps": 10,
        "batch_size": 20,
        **simulated_time(variant),
    }


PRIVATE_CLIENTS, PRIVATE_ROUNDS, PRIVATE_IMAGES_ROUNDS = 5000, 100, 300
DELTA = PRIVATE_CLIENTS**-1.1


@cache
def noise(epsilon: float, rounds: int) -> float:
    selection = fm.Bernoulli(rate=100 / PRIVATE_CLIENTS)
    how = {"rounds": rounds, "delta": DELTA, "selection": selection, "clients": PRIVATE_CLIENTS}
    return 0.0 if epsilon == float("inf") else fm.privacy.plan(epsilon, **how)


def private_training(tuned: Settings, epsilon: str, rounds: int) -> dict[str, Any]:
    """Return the cohorts, local steps and the mechanism of the private studies."""
    multiplier = noise(float(epsilon), rounds)
    return {
        "selection": fm.Bernoulli(rate=100 / PRIVATE_CLIENTS),
        "local_steps": 5,
        "batch_size": 10,
        "privacy": fm.privacy.Gaussian(clip=tuned["clip"], noise_multiplier=multiplier, delta=DELTA),
    }


def private(method: str, variant: str, seed: int, tuned: Settings) -> dict[str, Any]:
    model, data = fm.models.mlp(seed=seed), federation("mnist", PRIVATE_CLIENTS, seed, 2, None)
    return {"model": model, "data": data, **private_training(tuned, variant, PRIVATE_ROUNDS)}


def private_images(method: str, variant: str, seed: int, tuned: Settings) -> dict[str, Any]:
    model, data = fm.models.cnn_cifar(seed=seed), images(PRIVATE_CLIENTS, seed)
    return {"model": model, "data": data, **private_training(tuned, variant, PRIVATE_IMAGES_ROUNDS)}


def private_scores(result: fm.Result) -> dict[str, float]:
    return {} if result.history[-1].epsilon is None else {"epsilon": result.history[-1].epsilon}


def personal(method: str, variant: str, seed: int, tuned: Settings) -> dict[str, Any]:
    return {
        "model": fm.models.mlp(seed=seed),
        "data": federation("fmnist", 125, seed, 4, 120, unseen=True),
        "selection": fm.Full() if method == "alone" else fm.Uniform(m=10, weights="cohort"),
        "local_steps": 10,
        "batch_size": 20,
        "evaluate_clients": fm.EvaluateClients(every=10**6, finetune_steps=30),
        **({"personal": ["5.*"]} if variant == "head" else {}),
    }


def personal_scores(result: fm.Result) -> dict[str, float]:
    last = result.history[-1]
    fields = ("client_accuracy", "client_accuracy_worst", "personal_accuracy")
    others = {name: v for name, v in last.client_metrics.items() if name.endswith(("accuracy", "accuracy_worst"))}
    return {name: v for name in fields if (v := getattr(last, name)) is not None} | others


def personal_score(variant: str) -> str:
    return "client_accuracy" if variant == "global" else "personal_accuracy"


def jobs(methods: str, costs: Mapping[str, float], slow: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the seconds of every pair of a method and a variant."""
    return {f"{m}:{v}": s * (slow or {}).get(m, 1.0) for m in methods.split() for v, s in costs.items()}


STUDIES = {
    "codecs": Study(
        seeds=(0, 1, 2, 3, 4),
        rounds=120,
        cost=jobs("FedAvg FedMoS FedHBM SCAFFOLD", dict.fromkeys(codec_links(), 270.0), {"FedHBM": 0.7, "SCAFFOLD": 0}),
        settings=codecs,
        every=3,
        target=0.95,
    ),
    "asynchronous": Study(
        seeds=(0, 1, 2),
        rounds=400,
        cost=jobs(
            "FedAvg FedAvgM FedAvgM(β=0.5) FedMoS FedHBM", {"synchronous": 100.0, "buffered": 100.0}, {"FedMoS": 1.5}
        ),
        settings=asynchronous,
        every=2,
        target=0.9,
        unit="seconds",
    ),
    "private": Study(
        seeds=(0, 1, 2),
        rounds=PRIVATE_ROUNDS,
        cost=jobs("FedAvg FedAvgM FedMoS FedHBM SCAFFOLD", {"2": 130.0, "8": 130.0, "inf": 130.0}, {"FedMoS": 2.0}),
        settings=private,
        grid=({"clip": 0.1}, {"clip": 0.3}, {"clip": 1.0}),
        step_sizes=(0.3, 0.1, 0.03),
        every=10,
        scores=private_scores,
    ),
    "asynchronous-cifar10": Study(
        seeds=(0, 1, 2),
        rounds=1200,
        cost=jobs("FedAvg FedAvgM FedMoS FedHBM", {"synchronous": 100.0, "buffered": 100.0}),
        settings=asynchronous_images,
        step_sizes=(0.1, 0.05, 0.02, 0.01),
        device=DEVICE,
        every=10,
        target=0.5,
        unit="seconds",
    ),
    "private-cifar10": Study(
        seeds=(0, 1, 2),
        rounds=PRIVATE_IMAGES_ROUNDS,
        cost=jobs("FedAvg FedAvgM FedMoS FedHBM SCAFFOLD", {"2": 130.0, "8": 130.0, "inf": 130.0}),
        settings=private_images,
        grid=({"clip": 0.1}, {"clip": 0.3}, {"clip": 1.0}),
        step_sizes=(0.3, 0.1, 0.03),
        device=DEVICE,
        every=50,
        scores=private_scores,
    ),
    "personal": Study(
        seeds=(0, 1, 2, 3, 4),
        rounds=100,
        cost=jobs("FedAvg FedMoS FedHBM FedCM", {"global": 50.0, "head": 50.0}) | {"alone:own": 50.0},
        settings=personal,
        every=100,
        scores=personal_scores,
        score=personal_score,
    ),
}
ATTACKS = {"none, IID clients": None, **robust.ATTACKS}
ROBUST_SEEDS, ROBUST_ROUNDS = (0, 1, 2), 60


# Training ------------------------------------------------------------


def limited(rounds: int) -> int:
    return min(rounds, int(os.environ.get("FEDMOS_STUDY_ROUNDS", rounds)))


def one_run(
    study: Study, method: str, variant: str, seed: int, tuned: Settings, limit: float = float("inf")
) -> dict[str, Any]:
    """Train a run, and return its curve and scores."""
    started = time.process_time()
    settings = study.settings(method, variant, seed, tuned)
    rounds = limited(10 if method == "alone" else study.rounds)
    curve = Curve(study, settings["data"], rounds, seed == TUNING_SEED, limit)
    found: dict[str, Any] = {"seed": seed, **tuned}
    try:
        algorithm = METHODS[method](lr=tuned["lr"])
        precision = "tf32" if study.device == "cuda" else None
        common = {"rounds": rounds, "eval_every": 10**6, "seed": seed, "device": study.device, "engine": "batched"}
        result = fm.run(
            algorithm=algorithm, precision=precision, callbacks=[curve], progress=False, **common, **settings
        )
        found |= study.scores(result)
    except fm.DivergenceError:
        found["diverged"] = curve.rounds + 1
    points = curve.points
    reached = next((p for p in points if study.target is not None and p["accuracy"] >= study.target), None)
    found |= {"curve": points, "reached": reached, "accuracy": points[-1]["accuracy"] if points else 0.0}
    return found | {"processor_seconds": round(time.process_time() - started, 1)}


def key(study: Study, variant: str, run: Settings) -> tuple[float, float]:
    """Return what is larger for better runs: less to the target, then a larger score."""
    if "diverged" in run:
        return (-float("inf"), -1.0)
    least = run["reached"][study.unit] if run["reached"] else float("inf")
    return (-least, run[study.score(variant)])


def tune(study: Study, method: str, variant: str, before: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Try step sizes from the largest down, until one is worse than the one before, with each of the other values.

    That a step size is worse than one that does not train either says nothing about smaller ones. Runs that an
    interrupted job made `before` are not repeated.
    """
    made = iter(before)
    best: tuple[float, float] | None = None
    for values in study.grid:
        previous = None
        for lr in study.step_sizes:
            limit = float("inf") if best is None else -best[0]
            run = next(made, None) or one_run(study, method, variant, TUNING_SEED, {"lr": lr, **values}, limit)
            yield run
            now = key(study, variant, run)
            if previous is not None and now < previous:
                break
            previous = now if "diverged" not in run and run[study.score(variant)] >= HOPELESS else None
            best = now if best is None else max(best, now)


def train(name: str, out: Path, processes: int, until: float) -> None:
    """Train the runs of a job that its file lacks, and write the file after each; start none after `until`."""
    study_name, method, variant = name.split(":")
    study = STUDIES[study_name]
    file = out / study_name / f"{method}-{variant}.json"
    made: dict[str, Any] = {"study": study_name, "method": method, "variant": variant, "tried": [], "runs": []}
    made |= {"torch": torch.__version__, "rounds": limited(study.rounds), "target": study.target}
    if study_name.startswith("private"):
        made["noise_multiplier"] = noise(float(variant), study.rounds)
    if file.exists():
        made |= {k: v for k, v in json.loads(file.read_text("utf-8")).items() if k in ("tried", "tuned", "runs")}
    if "tuned" not in made:
        before, made["tried"] = made["tried"], []
        for run in tune(study, method, variant, before):
            made["tried"].append({k: v for k, v in run.items() if k != "curve"})
            write(file, made)
            if time.time() > until:
                return
        best = max(made["tried"], key=lambda run: key(study, variant, run))
        made["tuned"] = {"lr": best["lr"], **{k: best[k] for k in study.grid[0]}}
    seeds = [seed for seed in study.seeds if seed not in [run["seed"] for run in made["runs"]]]
    for run in seed_runs(seeds, processes, until, study_name, method, variant, made["tuned"]):
        made["runs"] = sorted([*made["runs"], run], key=lambda run: study.seeds.index(run["seed"]))
        write(file, made)
    if len(made["runs"]) == len(study.seeds):
        write(file, made | {"complete": True})


def seed_runs(seeds: list[int], processes: int, until: float, *job: Any) -> Iterator[dict[str, Any]]:
    """Train seeds one after another, or several processes at once; start none after `until`."""
    if processes == 1:
        yield from filter(None, (seed_run(seed, until, *job) for seed in seeds))
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = [pool.submit(seed_run, seed, until, *job) for seed in seeds]
        yield from filter(None, (future.result() for future in as_completed(futures)))


def seed_run(seed: int, until: float, study: str, method: str, variant: str, tuned: Settings) -> dict[str, Any] | None:
    return one_run(STUDIES[study], method, variant, seed, tuned) if time.time() <= until else None


def train_robust(attack_name: str, out: Path) -> None:
    """Train a row of the table of attacks and rules."""
    attack, rounds = ATTACKS[attack_name], limited(ROBUST_ROUNDS)
    made: dict[str, Any] = {"study": "robust", "attack": attack_name, "rounds": rounds, "runs": []}
    file = out / "robust" / f"{''.join(c if c.isalnum() else '-' for c in attack_name)}.json"
    for seed in ROBUST_SEEDS:
        for rule_name, rule in robust.RULES.items():
            started = time.process_time()
            data = federation("mnist", 100, seed, 2, (50, 150)) if "IID" not in attack_name else iid(seed)
            found = {"seed": seed, "rule": rule_name, **attacked(data, rule, attack, seed, rounds)}
            made["runs"].append(found | {"processor_seconds": round(time.process_time() - started, 1)})
            write(file, made)
    write(file, made | {"complete": True})


def attacked(data: fm.FederatedData, rule: Any, attack: Any, seed: int, rounds: int) -> dict[str, Any]:
    """Return the accuracy with a rule under an attack, and how often a backdoor succeeds."""
    how = {"model": lambda seed, s=seed: fm.models.mlp(seed=s), "seed": seed, "device": "cpu", "engine": "batched"}
    try:
        result = robust.train(data, rule, attack, rounds, **how)
    except fm.DivergenceError:
        return {"diverged": True}
    found = {"accuracy": robust.accuracy(result)}
    if isinstance(attack, fm.attacks.BackdoorPixel):
        found["backdoor"] = robust.backdoor_success(result, data, attack)
    return found


@cache
def iid(seed: int) -> fm.FederatedData:
    return fm.datasets.load("mnist").partition(fm.partition.IID(), clients=600, seed=seed).subset(range(100))


def write(file: Path, made: Settings) -> None:
    """Replace the file at once, so that what is there is always complete JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(made), "utf-8")
    part.replace(file)


def all_jobs(studies: list[str]) -> list[str]:
    """Return the names of jobs in the order to start them."""
    cost = {f"{s}:{job}": c for s, study in STUDIES.items() for job, c in study.cost.items()}
    cost |= {f"robust:{attack}": 60.0 for attack in ATTACKS}
    chosen = [name for name in cost if not studies or name.split(":")[0] in studies]
    return sorted(chosen, key=lambda name: -cost[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "train"])
    parser.add_argument("names", nargs="*", help="studies to list, or jobs to train")
    parser.add_argument("--out", type=Path, default=Path("runs/studies"))
    parser.add_argument("--processes", type=int, default=1, help="seeds to train at once")
    parser.add_argument("--until", type=float, default=float("inf"), help="start no run after this time")
    given = parser.parse_args()
    if given.command == "list":
        if unknown := set(given.names) - {*STUDIES, "robust"}:
            parser.error(f"there is no study {', '.join(sorted(unknown))}; use {', '.join([*STUDIES, 'robust'])}")
        print("\n".join(all_jobs(given.names)))
        return
    torch.set_num_threads(1)
    for name in given.names:
        train_robust(name.split(":", 1)[1], given.out) if name.startswith("robust:") else train(
            name, given.out, given.processes, given.until
        )


if __name__ == "__main__":
    main()
