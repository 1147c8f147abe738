"""Ten thousand rounds: memory and open files stay as they are."""

import json
import os
from pathlib import Path

import pytest

import fedmos as fm
from helpers import jobs

pytestmark = pytest.mark.slow


def resident() -> float:
    """Megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_ten_thousand_rounds(tmp_path):
    def run() -> None:
        seen = []

        def watch(record) -> None:
            if record.round % 1000 == 0:
                seen.append((record.round, resident(), len(list(Path("/proc/self/fd").iterdir()))))

        result = jobs.train(
            "SCAFFOLD + MD",
            tmp_path / "run",
            model=fm.models.logistic(features=64),
            selection=fm.MD(m=2),
            local_steps=1,
            rounds=10_000,
            eval_every=1000,
            checkpoint_every=20,
            callbacks=[watch],
        )
        total = sum(record.seconds for record in result.history)
        (tmp_path / "seen").write_text(json.dumps([seen, result.info["checkpoints"], total]))

    jobs.in_fork(run)
    seen, cost, total = json.loads((tmp_path / "seen").read_text())
    growth = seen[-1][1] - seen[0][1]
    size = sum(p.stat().st_size for p in (tmp_path / "run").rglob("*") if p.is_file()) / 1e6
    print(
        f"\n10,000 rounds: {seen[0][1]:.0f} MB after the first 1000, {growth:+.1f} MB by the end; open files "
        f"{[files for *_, files in seen]}; {cost['count']} checkpoints in {cost['seconds']:.1f} s beside "
        f"{total:.0f} s of rounds; {size:.1f} MB on disk"
    )
    assert growth < 10
    assert len({files for *_, files in seen}) == 1
