"""A job of engines.py as a hand-written loop or in fedmos: `python benchmarks/peers/ours_job.py mnist --way auto`."""

from __future__ import annotations

from shared import JOBS, Lean, Ours, by_hand, device, keep_memory, parser, precision, report

import fedmos


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--way", choices=["lean", "loop", "batched", "compiled", "auto"], default="auto")
    arguments.add_argument("--precision", choices=["tf32", "bf16"])
    given = arguments.parse_args()
    where, how = device(), ""
    keep_memory()
    if given.way == "lean":
        with precision(given.precision):
            times = by_hand(Lean(JOBS[given.job], "FedAvg", where), given.warm, given.rounds)
    else:
        ours = Ours(JOBS[given.job], "FedAvg", where, given.way, given.precision)
        times, how = ours.times(given.warm, given.rounds)
    version = "" if given.way == "lean" else fedmos.__version__
    report(given.way, given.job, where, times, version=version, how=how)


if __name__ == "__main__":
    main()
