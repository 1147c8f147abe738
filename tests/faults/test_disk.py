"""Disks that are full or broken: a sentence, and the earlier checkpoint is intact."""

import errno
import os
import shutil
import subprocess

import pytest

from fedmos.storage import lock
from helpers import jobs

pytestmark = pytest.mark.slow
JOB = "SCAFFOLD + MD"


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("disk") / "whole"
    jobs.in_fork(lambda: jobs.train(JOB, out, rounds=6))
    return jobs.digest(out)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def check_and_resume(out, before: int, expected: str) -> None:
    """What is there is whole, not less than `before` rounds, and goes on to the same bits."""
    assert not jobs.half_written(out)
    assert jobs.rounds_saved(out) >= before
    for line in (out / "metrics.jsonl").read_text().splitlines() if (out / "metrics.jsonl").exists() else []:
        assert line.startswith('{"round": ')
        assert line.endswith("}")
    jobs.in_fork(lambda: jobs.train(JOB, out, rounds=6))
    assert jobs.digest(out) == expected


def test_a_full_disk_at_twenty_offsets(small_disk, tmp_path, expected):
    full, earlier = 0, []
    for offset in range(20):
        out, ballast = small_disk / "run", small_disk / "ballast"
        shutil.rmtree(out, ignore_errors=True)
        ballast.write_bytes(bytes(2 * 2**20 - (120 + 26 * offset) * 1024))
        sentence = jobs.sentence_of(lambda out=out: jobs.train(JOB, out, rounds=6, checkpoint_every=1), tmp_path / "n")
        ballast.unlink()
        if sentence:
            full += 1
            assert "StorageError: Cannot " in sentence
            assert "No space left on device" in sentence
        earlier.append(jobs.rounds_saved(out))
        check_and_resume(out, 0 if sentence else 6, expected)
    assert full >= 15
    print(f"\nfull at {full} of 20 offsets, all resumed to the same bits; rounds saved by then: {earlier}")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_every_single_call_fails_once(tmp_path, expected, call, code):
    """The run's first write fails, then its second, …, then its last."""

    def train(nth: int, out, saved) -> None:
        calls = [0]

        def failing(plain):
            def maybe(*arguments):
                calls[0] += 1
                if calls[0] == nth:
                    saved.write_text(str(jobs.rounds_saved(out)))
                    raise OSError(code, os.strerror(code))
                return plain(*arguments)

            return maybe

        for name in ("rename", "replace") if call == "rename" else (call,):
            setattr(os, name, failing(getattr(os, name)))
        jobs.train(JOB, out, rounds=6, checkpoint_every=2)

    nth, stopped = 0, 0
    while True:
        nth += 1
        out, saved = tmp_path / "run", tmp_path / "saved"
        saved.unlink(missing_ok=True)
        sentence = jobs.sentence_of(lambda nth=nth, out=out, saved=saved: train(nth, out, saved), tmp_path / "n")
        if not saved.exists():
            break
        stopped += bool(sentence)
        assert not sentence or (sentence.startswith("StorageError: Cannot ") and os.strerror(code) in sentence)
        check_and_resume(out, int(saved.read_text()), expected)
        shutil.rmtree(out)
    assert nth > 5
    print(
        f"\n{errno.errorcode[code]} in {call}: {nth - 1} calls failed in turn, {stopped} ended the run; earlier "
        "checkpoint intact and same bits every time"
    )


def test_a_lock_needs_no_room(tmp_path, monkeypatch):
    """Where nothing can be written into a lock, it is not left behind as taken."""

    def full(file, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        lock.FolderLock(tmp_path / "lock")
    monkeypatch.undo()
    lock.FolderLock(tmp_path / "lock").release()
