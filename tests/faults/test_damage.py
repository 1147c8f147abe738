"""Checkpoints that are cut short or have a bit flipped: none is taken for good."""

import random

import pytest

from fedmos.storage.checkpoint import Checkpoints
from helpers import jobs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    out = tmp_path_factory.mktemp("damage") / "run"
    jobs.in_fork(lambda: jobs.train("SCAFFOLD + MD", out, rounds=30, checkpoint_every=3))
    return out / "checkpoints"


def falls_back(checkpoints) -> bool:
    """Whether the newest is noticed to be damaged and the one before is taken."""
    found = Checkpoints(checkpoints)
    snapshot = found.load_newest()
    return snapshot is not None and len(snapshot.history) == 27 and len(found.damage) == 1


def test_cut_short_at_every_kilobyte(checkpoints):
    cuts = 0
    files = sorted(max(checkpoints.iterdir()).iterdir())
    for file in files:
        good = file.read_bytes()
        for length in range(0, len(good), 1024):
            file.write_bytes(good[:length])
            assert falls_back(checkpoints), (file.name, length)
            cuts += 1
        file.unlink()
        assert falls_back(checkpoints), file.name
        file.write_bytes(good)
    assert not falls_back(checkpoints)
    print(f"\n{cuts} of {cuts} cuts over {', '.join(f.name for f in files)}: all fell back")


def test_a_thousand_flipped_bits(checkpoints):
    files = sorted(max(checkpoints.iterdir()).iterdir())
    draw = random.Random(0)
    for number in range(1000):
        # Half of the flips by size, half evenly over the files, so that small ones have their share.
        sizes = [f.stat().st_size if number % 2 else 1 for f in files]
        (file,) = draw.choices(files, sizes)
        good = file.read_bytes()
        place = draw.randrange(8 * len(good))
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        file.write_bytes(bad)
        assert falls_back(checkpoints), (file.name, place)
        file.write_bytes(good)
    assert not falls_back(checkpoints)
    print("\n1000 of 1000 flipped bits: all fell back")


def test_flipped_bits_in_what_checkpoints_share(checkpoints):
    """There is nothing to fall back on, but it is noticed."""
    newest = max(checkpoints.iterdir())
    files = sorted(p for p in checkpoints.glob("*/*") if p.parent != newest)
    named = newest.joinpath("manifest.json").read_text()
    shared = [f for f in files if f"{f.parent.name}/{f.name}" in named]
    assert shared
    draw = random.Random(1)
    for _ in range(200):
        file = draw.choice(shared)
        good = file.read_bytes()
        place = draw.randrange(8 * len(good))
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        file.write_bytes(bad)
        found = Checkpoints(checkpoints)
        snapshot = found.load_newest()
        assert found.damage
        assert snapshot is None or len(snapshot.history) < 30
        file.write_bytes(good)
    print(f"\n200 of 200 flipped bits in {len(shared)} shared files: noticed")
