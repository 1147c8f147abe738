"""Studies for reports."""

import math

from fedmos.core.history import History, Record
from fedmos.experiments.seed_statistics import MethodResult
from fedmos.experiments.table import ComparisonTable
from fedmos.report.checks import ReportSource
from fedmos.report.study import ReportStudy


def large_study(runs: int = 20, rounds: int = 5000) -> ReportStudy:
    """A made-up study of many long runs."""

    def history(seed: int) -> History:
        return History(
            [
                Record(
                    round=t,
                    cohort=[t % 100, (t * seed) % 100 if (t * seed) % 100 != t % 100 else (t + 1) % 100],
                    weights=[1.0, 1.0],
                    bytes_down=1000,
                    bytes_up=1000,
                    seconds=0.01,
                    clock=t * 0.5,
                    accuracy=1 - math.exp(-t / (500 + 50 * seed)),
                    test_loss=2 * math.exp(-t / 900),
                    train_loss=2 * math.exp(-t / (800 + seed)),
                )
                for t in range(1, rounds + 1)
            ]
        )

    info = {"clients": 100, "algorithm": "FedAvg(lr=0.1)", "selection": "Uniform(m=2)", "rounds": rounds}
    rows = [MethodResult(label=f"method {i}", lr=0.1, runs={0: history(i)}, infos={0: info}) for i in range(runs)]
    table = ComparisonTable(metric="accuracy", target=0.9, baseline="method 0", results=rows)
    source = ReportSource(folder="made up", results=rows, target=("accuracy", 0.9), data=None, text="")
    return ReportStudy("Many runs", "note", table, [source])
