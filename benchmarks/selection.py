"""Selecting 1,000 clients a round among 1, 10 and 100 million: `python benchmarks/selection.py`.

For each selector and number of clients, in its own process: seconds to set up (the first draw, with its sort or sums),
microseconds a round after that, and the peak resident memory beyond the interpreter's, in multiples of the
importance vector (which is included).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

M = 1_000


def measure(name: str, N: int, rounds: int) -> dict[str, float]:
    """Measure one selector in this process."""
    import torch

    import fedmos as fm

    torch.set_num_threads(1)
    selector = {
        "ACS": fm.ACS(m=M),
        "MD": fm.MD(m=M),
        "Uniform": fm.Uniform(m=M),
        "PowerOfChoice(reported)": fm.PowerOfChoice(m=M, d=2 * M, loss="reported"),
    }[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(N, dtype=torch.float64, generator=generator).add_(0.1)
    p.div_(p.sum())
    reported = (
        {} if not selector.reports else {"loss": torch.rand(N, dtype=torch.float32, generator=generator).double()}
    )
    view = fm.View(seed=0, round=0, p=p, n=torch.empty(0), reported=reported)
    start = time.perf_counter()
    selector.select(view)
    setup = time.perf_counter() - start
    start = time.perf_counter()
    for view.round in range(1, rounds + 1):
        ids, _ = selector.select(view)
    each = (time.perf_counter() - start) / rounds
    assert len(ids) == M
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {"setup_s": setup, "round_us": each * 1e6, "peak_gb": peak / 1e9, "peak_times_p": peak / (8 * N)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--one", nargs=2, metavar=("SELECTOR", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]), arguments.rounds)))
        return
    print("| clients | selector | set-up, s | a round, µs | peak memory, GB | times the importance vector |")
    print("|---:|---|---:|---:|---:|---:|")
    for N in arguments.clients:
        for name in ("Uniform", "MD", "ACS", "PowerOfChoice(reported)"):
            command = [sys.executable, __file__, "--one", name, str(N), "--rounds", str(arguments.rounds)]
            r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells = f"{r['setup_s']:.2f} | {r['round_us']:.0f} | {r['peak_gb']:.2f} | {r['peak_times_p']:.1f}"
            print(f"| {N:,} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
