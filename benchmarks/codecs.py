"""Time to encode and decode the uploads of a cohort, as a share of a round.

    python benchmarks/codecs.py mnist lenet --device cpu

The jobs are those of engines.py, and a round is one of FedAvg, vectorised (or compiled, `--engine`), without codecs.
With `--runs`, rounds of `fm.run` with `uplink=` are timed too. On a GPU, encoding and decoding are captured as a CUDA
graph, as in a run. Times are the least of several repetitions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from cuda_graphs import captured
from engines import JOBS, Ours, synchronise

from fedmos.codecs import Chain, Codec, ErrorFeedback, Float16, Quantize, RandomK, Rotate, Sign, TopK
from fedmos.engine.malloc import keep_memory

CODECS: dict[str, Codec] = {
    "Float16": Float16(),
    "Quantize(8)": Quantize(8),
    "Quantize(4)": Quantize(4),
    "Quantize(1)": Quantize(1),
    "Sign": Sign(),
    "TopK(0.01)": TopK(0.01),
    "TopK(0.1)": TopK(0.1),
    "RandomK(0.01)": RandomK(0.01),
    "Rotate, Quantize(4)": Chain([Rotate(), Quantize(4)]),
    "TopK(0.01), Quantize(4)": Chain([TopK(0.01), Quantize(4)]),
    "feedback: Rotate, Quantize(4)": ErrorFeedback([Rotate(), Quantize(4)]),
}


def least(work: Callable[[], Any], repeat: int) -> float:
    """Return the least time of several calls, in seconds."""
    if torch.cuda.is_available():
        work = captured(work)
    times = []
    for _ in range(repeat + 1):
        synchronise()
        began = time.perf_counter()
        work()
        synchronise()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def round_time(name: str, device: str, engine: str, uplink: Codec | None = None) -> float:
    """Return the least time of a round, in seconds."""
    ours = Ours(JOBS[name], "FedAvg", device, engine, None)
    if uplink is not None:
        ours.arguments["uplink"] = uplink
    return min(ours.times(3, 15)[0])


def coding_times(codec: Codec, v: torch.Tensor, repeat: int) -> tuple[float, float]:
    """Return the times to encode and to decode the vectors of a cohort, in seconds."""
    size, key = v.shape[-1], torch.arange(len(v), device=v.device).unsqueeze(-1)
    fields = codec.encode(v, key)
    return least(lambda: codec.encode(v, key), repeat), least(lambda: codec.decode(fields, size, key), repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=["mnist"], help=f"of {', '.join(JOBS)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", action="store_true", help="also time rounds of fm.run with the codec")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--engine", default="batched", choices=["batched", "compiled"])
    given = parser.parse_args()
    keep_memory()
    for name in given.jobs:
        job = JOBS[name]
        size = sum(p.numel() for p in job.model().parameters())
        alone = round_time(name, given.device, given.engine)
        print(f"{name}: {job.cohort} clients, {size:,} parameters, {1e3 * alone:.1f} ms a round on {given.device}")
        print(f"  {'codec':<30} {'bytes':>12} {'less':>7} {'encode':>9} {'decode':>9} {'of a round':>11}")
        v = torch.randn(job.cohort, size, generator=torch.Generator().manual_seed(0)).to(given.device)
        for title, codec in CODECS.items():
            sent = codec.nbytes(size)
            encode, decode = coding_times(codec, v, given.repeat)
            line = f"  {title:<30} {sent:>12,} {4 * size / sent:>6.1f}× {1e3 * encode:>6.2f} ms {1e3 * decode:>6.2f} ms"
            line += f" {100 * (encode + decode) / alone:>9.2f} %"
            if given.runs:
                line += f"   {1e3 * round_time(name, given.device, given.engine, codec):.1f} ms a round"
            print(line, flush=True)


if __name__ == "__main__":
    main()
