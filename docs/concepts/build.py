"""Draw the figures of this folder into figures/, and write the numbers behind them to figures.json.

python docs/concepts/build.py [drift|momentum|selection|participation|privacy …]    # needs fedmos[plot,privacy]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedmos as fm

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, VIOLET, RED = "#2f7de1", "#e07b28", "#2f9e6e", "#9467e8", "#d64550"
INK, DARK_INK = "#3c4048", "#c9ccd4"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 11,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedmos",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
SEEDS = range(3)


def quadratics() -> fm.FederatedData:
    """Two clients whose losses are quadratic bowls of other shapes around other points."""
    shapes, centres = ((2.0, 0.35), (0.35, 2.0)), ((-1.0, 0.2), (1.0, 0.2))
    clients = []
    for shape, centre in zip(shapes, centres, strict=True):
        x = torch.diag(torch.tensor(shape)).sqrt()
        clients.append((x, x @ torch.tensor(centre)[:, None]))
    return fm.FederatedData.from_arrays(clients)


START, LR = (0.6, 1.9), 0.1


def path(
    algorithm: fm.Algorithm,
    rounds: int,
    steps: int,
    data: fm.FederatedData,
    selector: fm.Selector | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Return the server's model after each round, in which clients train with all their data."""
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([START]))
    found = [np.array(START)]

    def keep(record: fm.Record, model: torch.nn.Module) -> None:
        found.append(model.weight.detach().numpy().ravel().copy())

    options: dict[str, Any] = {"loss": "mse", "rounds": rounds, "local_steps": steps, "callbacks": [keep], "seed": seed}
    options |= {"eval_every": rounds, "engine": "batched", "progress": False, "device": "cpu", "metrics": {}}
    fm.run(model, data, algorithm, selector or fm.Full(), **options)
    return np.array(found)


def optimum() -> np.ndarray:
    """Return the minimiser of the mean loss."""
    data = quadratics()
    x, y = data.x.double().numpy(), data.y.double().numpy()
    return np.linalg.lstsq(x, y, rcond=None)[0].ravel()


def drift(left: Axes, right: Axes) -> dict[str, Any]:
    """Draw the local paths of two clients beside the error of FedAvg over rounds."""
    best, data = optimum(), quadratics()
    u, v = np.meshgrid(np.linspace(-2, 2, 120), np.linspace(-0.6, 2.4, 120))
    ends = []
    for i, (name, colour) in enumerate((("A", BLUE), ("B", ORANGE))):
        x, y = (part.numpy() for part in data.client(i))
        bowl = sum((a * u + b * v - t) ** 2 for (a, b), (t,) in zip(x, y, strict=True))
        left.contour(u, v, bowl, levels=(0.05, 0.3, 0.8), colors=colour, alpha=0.45, linewidths=1)
        local = path(fm.FedAvg(lr=LR), 15, 1, data.subset([i]))  # 15 local steps of this client
        left.plot(*local.T, "o-", color=colour, markersize=3, label=f"local steps of client {name}")
        ends.append(local[-1])
    left.plot(*np.array(ends).T, ":", color=INK)
    left.plot(*START, "s", color=INK, label="model of the server")
    left.plot(*np.mean(ends, axis=0), "D", color=VIOLET, label="their mean: the next model")
    left.plot(*best, "*", color=RED, markersize=13, label="minimum of the mean loss")
    left.set(xlabel="first parameter", ylabel="second parameter", aspect="equal", xlim=(-2, 2), ylim=(-0.6, 2.4))
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2)

    numbers = {}
    curves = [(f"FedAvg, {k} local steps", fm.FedAvg(lr=LR), k) for k in (1, 5, 25)]
    curves.append(("SCAFFOLD, 25 local steps", fm.Scaffold(lr=LR), 25))
    for (name, algorithm, steps), colour in zip(curves, (BLUE, GREEN, ORANGE, VIOLET), strict=True):
        error = np.linalg.norm(path(algorithm, 60, steps, data) - best, axis=1)
        right.semilogy(np.maximum(error, 1e-6), color=colour, label=name)
        numbers[name] = [float(f"{value:.3g}") for value in error[[5, 60]]]
    right.set(xlabel="round", ylabel="distance to the minimum", ylim=(5e-7, 5))
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2)
    return {"distance after 5 and 60 rounds": numbers}


def digits(seed: int, classes: int = 2) -> fm.FederatedData:
    """The split of the table of methods: two classes per client."""
    return fm.datasets.load("digits").partition(fm.partition.ByClass(classes=classes), clients=100, seed=seed)


def trained(algorithm: fm.Algorithm, m: int, rounds: int) -> list[fm.Result]:
    """Return the results of three seeds on digits."""
    return [
        fm.run(
            fm.models.cnn_digits(seed=seed), digits(seed), algorithm, fm.Uniform(m=m, weights="cohort"),
            rounds=rounds, local_steps=5, batch_size=8, seed=seed, device="cpu", progress=False, engine="batched",
        )
        for seed in SEEDS
    ]  # fmt: skip


def accuracy(results: list[fm.Result]) -> np.ndarray:
    """Return the mean accuracy over seeds, by round, averaged over five rounds."""
    values = np.mean([[record.accuracy for record in result.history] for result in results], axis=0)
    return np.convolve(np.pad(values, (2, 2), "edge"), np.ones(5) / 5, "valid")


def many_quadratics(clients: int = 50) -> fm.FederatedData:
    """Clients whose losses are quadratic bowls of random shapes around random points."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(clients):
        x = torch.from_numpy(np.diag(rng.uniform(0.5, 1.5, 2)) ** 0.5).float()
        found.append((x, x @ torch.from_numpy(rng.normal(0, 1, (2, 1))).float()))
    return fm.FederatedData.from_arrays(found)


MOMENTUM = {
    "FedAvg: none": (fm.FedAvg, INK),
    "FedAvgM: server": (fm.FedAvgM, BLUE),
    "FedCM: sent to clients": (fm.FedCM, GREEN),
    "FedHBM: kept by clients": (fm.FedHBM, ORANGE),
    "FedMoS: clients and server": (fm.FedMoS, VIOLET),
}


def momentum(left: Axes, right: Axes) -> dict[str, Any]:
    """Draw the error of methods with momentum at different places, at one step size and over step sizes."""
    data, rates, rounds = many_quadratics(), (0.01, 0.03, 0.1), 200
    x, y = data.x.double().numpy(), data.y.double().numpy()
    best = np.linalg.lstsq(x, y, rcond=None)[0].ravel()
    numbers = {}
    for name, (method, colour) in MOMENTUM.items():
        curves = {}
        for lr in rates:
            runs = [path(method(lr=lr), rounds, 5, data, fm.Uniform(m=5, weights="cohort"), seed) for seed in SEEDS]
            curves[lr] = np.mean([np.linalg.norm(run - best, axis=1) for run in runs], axis=0)
        last = {lr: float(curve[-50:].mean()) if np.isfinite(curve).all() else np.inf for lr, curve in curves.items()}
        smooth = np.convolve(np.pad(curves[0.03], (5, 5), "reflect"), np.ones(11) / 11, "valid")
        left.semilogy(smooth, color=colour, label=name)
        right.loglog(rates, [min(value, 10.0) for value in last.values()], "o-", color=colour, label=name)
        numbers[name.split(":")[0]] = [float(f"{value:.2g}") for value in last.values()]
    left.set(xlabel="round", ylabel="distance to the minimum", title="η = 0.03")
    right.set(xlabel="step size η", title="mean of the last 50 rounds")
    left.figure.legend(*left.get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncol=3)
    return {"distance over the last 50 of 200 rounds, by step size " + ", ".join(map(str, rates)): numbers}


def selection(left: Axes, right: Axes) -> dict[str, Any]:
    """Draw the bins of ACS beside the variance of clients' weights."""
    p = 1 / np.arange(1, 13)
    p /= p.sum()
    start, m = 0.0, 4
    for i, share in enumerate(p):
        left.barh(0, share, left=start, height=0.5, color=(BLUE, ORANGE, GREEN, VIOLET)[i % 4], alpha=0.75)
        if share > 0.03:
            left.text(start + share / 2, 0, str(i + 1), ha="center", va="center", color="white", fontsize=9)
        start += share
    for k in range(m + 1):
        left.plot([k / m, k / m], [-0.4, 0.4], "--", color=INK)
        if k < m:
            left.text((k + 0.5) / m, 0.45, f"bin {k + 1}", ha="center", color=INK)
    left.set(xlabel="importances of clients 1 to 12, side by side", yticks=[], ylim=(-0.8, 0.8), xlim=(-0.02, 1.02))
    left.spines["left"].set_visible(False)

    weights = 1 / torch.arange(1, 51, dtype=torch.float64)
    weights /= weights.sum()
    numbers = {}
    for selector, colour in ((fm.Uniform(m=10), INK), (fm.MD(m=10), BLUE), (fm.ACS(m=10), ORANGE)):
        found = fm.analysis.sampling_variance(selector, weights)
        name = type(selector).__name__
        right.loglog(range(1, 51), found.variance.clamp(min=1e-9), color=colour, label=name)
        numbers[name] = round(float(found.total), 4)
    right.set(xlabel="client, by importance", ylabel="variance of its weight", ylim=(1e-6, 1))
    right.legend(fontsize=9)
    return {"total variance": numbers}


def participation(left: Axes, right: Axes) -> dict[str, Any]:
    """Draw accuracy over rounds and over megabytes for cohorts of several sizes."""
    numbers = {}
    for m, colour in ((2, RED), (5, ORANGE), (20, GREEN), (100, BLUE)):
        results = trained(fm.FedAvg(lr=0.2), m, 60)
        values = accuracy(results)
        sent = np.cumsum([(r.bytes_up + r.bytes_down) / 1e6 for r in results[0].history])
        left.plot(values, color=colour, label=f"{m} of 100")
        right.semilogx(sent, values, color=colour)
        numbers[str(m)] = [round(float(values[-1]), 3), round(float(sent[-1]), 1)]
    left.set(xlabel="round", ylabel="accuracy", ylim=(0, 1))
    right.set(xlabel="megabytes, both directions", ylim=(0, 1))
    left.legend(fontsize=9, title="clients a round", loc="lower right")
    return {"accuracy and megabytes after 60 rounds": numbers}


def privacy(left: Axes, right: Axes) -> dict[str, Any]:
    """Draw what ε compares beside ε over rounds."""
    x = np.linspace(-4, 5, 400)
    for shift, name, colour in ((0, "without the client", BLUE), (1, "with the client", ORANGE)):
        left.plot(x, np.exp(-((x - shift) ** 2) / 2), color=colour, label=name)
    left.set(xlabel="noisy sum", ylabel="probability density", yticks=[], ylim=(0, 1.45))
    left.legend(fontsize=9, loc="upper right")
    rounds = [1, 5, 10, 25, 50, 100, 200, 300, 400, 500]
    numbers = {}
    cases = [("z = 1, 2 % of the clients, sampled", 1.0, fm.Bernoulli(rate=0.02), BLUE)]
    cases += [("z = 2, 2 %, sampled", 2.0, fm.Bernoulli(rate=0.02), GREEN)]
    cases += [("z = 1, 20 %, sampled", 1.0, fm.Bernoulli(rate=0.2), ORANGE)]
    cases += [("z = 1, 2 %, in turn", 1.0, fm.Cyclic(m=100), RED)]
    for name, z, selector, colour in cases:
        values = [fm.privacy.epsilon(z, rounds=t, delta=1e-5, selection=selector, clients=5000) for t in rounds]
        right.loglog(rounds, values, color=colour, label=name)
        numbers[name] = round(values[-1], 2)
    right.set(xlabel="round", ylabel="ε at δ = 10⁻⁵")
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2)
    return {"ε after 500 rounds": numbers}


def draw(function: Callable[[Axes, Axes], dict[str, Any]]) -> dict[str, Any]:
    """Write one figure of two panels and return its numbers."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.9), layout="constrained")
        numbers = function(*figure.subplots(1, 2))
        file = HERE / "figures" / f"{function.__name__}.svg"
        file.parent.mkdir(exist_ok=True)
        figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt" ', "", file.read_text("utf-8"), count=1)
    style = f"<style>@media (prefers-color-scheme: dark) {{ {dark_rules()} }}</style>"
    text = re.sub(r"(<svg[^>]*>)", rf"\1\n {style}", text, count=1)
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", text, flags=re.S)
    file.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
    return numbers


def dark_rules() -> str:
    """Return the style rules that draw light lines and letters where the page is dark."""
    return " ".join(f'[style*="{kind}: {INK}"] {{ {kind}: {DARK_INK} !important }}' for kind in ("fill", "stroke"))


def main() -> None:
    """Draw the figures that are named, or all."""
    file = HERE / "figures.json"
    numbers = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for function in (drift, momentum, selection, participation, privacy):
        if function.__name__ in (sys.argv[1:] or (function.__name__,)):
            numbers[function.__name__] = draw(function)
    file.write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
