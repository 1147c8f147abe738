"""A cohort's step on a GPU compared with a centralised step, and FedMoS evaluated in every round.

    python benchmarks/absolute.py lenet resnet20 --precision tf32
    python benchmarks/absolute.py mnist --evaluated --precision tf32

The centralised step trains one model on as many samples, which are on the device; with PyTorch's `nn.GroupNorm`,
captured as a CUDA graph, contiguous or channels last, whichever is faster. The cohort's step is a compiled round of
FedAvg divided by its number of steps, which includes the server's step and the drawing and gathering of samples.

Floors are lower bounds for a cohort's step: the time of its products at the throughput of an H200's tensor cores, and
of its memory traffic: outputs of convolutions and linear layers four times (written, read, read again for the gradient,
gradient written), parameters of every client four times (read, read again, and for the step read and written).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from engines import JOBS, Job, Ours, precision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedmos as fm

PRODUCTS = {"bf16": 790e12, "tf32": 395e12, None: 67e12}  # per second, of an H200
BYTES = 4.8e12
_CAPTURED = 4  # centralised steps in one graph


def cohort_step(job: Job, given: argparse.Namespace) -> float:
    """Return the milliseconds of a step of the whole cohort."""
    times, _ = Ours(job, "FedAvg", "cuda", "compiled", given.precision).times(given.warm, given.rounds)
    return 1e3 * statistics.median(times) / job.steps


def central_step(job: Job, arithmetic: str | None, layout: torch.memory_format) -> float:
    """Return the milliseconds of a step of one model on as many samples."""
    n = job.cohort * job.batch
    model = _library_norms(job.model()).cuda().to(memory_format=layout)
    parameters = list(model.parameters())
    x = torch.randn(n, *job.shape, device="cuda").contiguous(memory_format=layout)
    y = torch.randint(0, 10, (n,), device="cuda")

    def step() -> None:
        gradient = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        with torch.no_grad():
            torch._foreach_sub_(parameters, gradient, alpha=0.01)

    with precision(arithmetic):
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
        return _time_graph(step)


def floors(job: Job, arithmetic: str | None) -> tuple[float, float]:
    """Return the lower bounds of a cohort's step in milliseconds: for its products, for its memory traffic."""
    model = job.model()
    outputs: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda module, x, out: outputs.append(out.numel()))
    with FlopCounterMode(display=False) as counter:
        loss = F.cross_entropy(model(torch.randn(1, *job.shape)), torch.zeros(1, dtype=torch.long))
        torch.autograd.grad(loss, list(model.parameters()))
    samples = job.cohort * job.batch
    activations = samples * sum(outputs) * (2 if arithmetic == "bf16" else 4)
    parameters = job.cohort * sum(p.numel() for p in model.parameters()) * 4
    products = samples * counter.get_total_flops() / PRODUCTS[arithmetic]
    return 1e3 * products, 1e3 * 4 * (activations + parameters) / BYTES


def _library_norms(model: nn.Module) -> nn.Module:
    for name, module in list(model.named_modules()):
        if isinstance(module, fm.models.GroupNorm):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, nn.GroupNorm(module.num_groups, module.num_channels))
    return model


def _time_graph(step: Callable[[], None]) -> float:
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CAPTURED):
            step()
    times = []
    for _ in range(6):
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began) / _CAPTURED)
    return statistics.median(times[1:])


def evaluated(job: Job, arithmetic: str | None) -> str:
    """Time 500 rounds of FedMoS, each evaluated on 10,000 test samples and on all clients' data."""
    made = job.federation()
    more = torch.randint(0, 256, (10_000, *job.shape), dtype=torch.uint8), torch.randint(0, 10, (10_000,))
    data = fm.FederatedData.from_arrays([made.client(i) for i in range(job.clients)], test=more)
    data = data.declare(normalize=fm.Normalize(mean=0.5, std=0.5))
    marks: list[float] = []
    began = time.perf_counter()
    fm.run(
        model=job.model(),
        data=data,
        algorithm=fm.FedMoS(lr=0.01),
        selection=fm.Uniform(m=job.cohort),
        rounds=501,
        local_steps=job.steps,
        batch_size=job.batch,
        precision=arithmetic,
        callbacks=[lambda record: marks.append(time.perf_counter())],
    )
    median = 1e3 * statistics.median(b - a for a, b in pairwise(marks))
    return f"{marks[-1] - marks[0]:.2f} s for 500 rounds (median {median:.2f} ms), {marks[0] - began:.0f} s before them"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", help=f"any of {', '.join(JOBS)}")
    parser.add_argument("--precision", choices=["tf32", "bf16"])
    parser.add_argument("--evaluated", action="store_true", help="time FedMoS with evaluation instead")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm", type=int, default=3)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}; precision {given.precision}")
    for name in given.jobs:
        if given.evaluated:
            print(f"{name}, FedMoS: {evaluated(JOBS[name], given.precision)}", flush=True)
            continue
        ours = cohort_step(JOBS[name], given)
        layouts = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
        central = {label: central_step(JOBS[name], given.precision, layout) for label, layout in layouts.items()}
        times = ", ".join(f"{ms:.2f} {label}" for label, ms in central.items())
        ratio = ours / min(central.values())
        products, traffic = floors(JOBS[name], given.precision)
        print(f"{name}: {ours:.2f} ms a cohort step; centralised {times}: {ratio:.2f} ×", end="; ")
        print(f"floors {products:.3f} (products), {traffic:.3f} (bytes)", flush=True)


if __name__ == "__main__":
    main()
