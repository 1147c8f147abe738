"""Two runs for one folder: exactly one proceeds."""

import os
import time

import pytest

from helpers import jobs

pytestmark = pytest.mark.slow


def test_twenty_races(tmp_path):
    sentences = set()
    for race in range(20):
        out, start = tmp_path / f"run-{race}", time.monotonic() + 0.3

        def run(number: int, out=out, start=start, race=race) -> None:
            while time.monotonic() < start:
                pass
            note = out.with_suffix(f".{number}")
            try:
                jobs.train("FedMoS + ACS", out, resume=race % 2 == 1, rounds=20)
                note.write_text("")
            except OSError as error:
                note.write_text(str(error).replace(str(out), "RUN"))

        children = [jobs.fork(lambda number=number: run(number)) for number in range(2)]
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)
        outcomes = [out.with_suffix(f".{number}").read_text() for number in range(2)]
        assert sorted(map(bool, outcomes)) == [False, True], outcomes
        sentences |= {text.split("(")[0] for text in outcomes if text}
        assert jobs.rounds_saved(out) == jobs.rounds_recorded(out) == 20
    print(f"\n20 of 20 races: exactly one proceeded; the other was told: {sentences}")
