"""Run folders: what is in them, who may use them, and what survives."""

import errno
import json
import os
import signal
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmos as fm
from fedmos.storage import RunFolder, lock, toml
from fedmos.storage import checkpoint_schedule as pace
from fedmos.storage.checkpoint import Checkpoints
from fedmos.storage.files import AppendOnlyFile, StorageError
from fedmos.storage.segments import plan_clients, plan_history
from helpers.configs import RUN
from helpers.federations import poisoned


def stopping(after: int):
    """A callback that presses Ctrl-C."""

    def stop(record):
        if record.round == after:
            raise KeyboardInterrupt

    return stop


def own_files(run: Path) -> list[Path]:
    """The files that the newest checkpoint shares with no other."""
    return sorted(max((run / "checkpoints").iterdir()).iterdir())


def test_files_of_a_finished_run(quick, tmp_path):
    seen = []

    def read(record):
        seen.append([json.loads(line)["round"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()])

    result = quick(out=tmp_path / "run", callbacks=[read], checkpoint_every=2)
    assert seen == [[1], [1, 2], [1, 2, 3]]  # readable as the run goes
    config = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert config["from_python"] is True
    assert config["algorithm"] == repr(fm.FedAvg(lr=0.1))
    (start,) = json.loads((tmp_path / "run/environment.json").read_text())["starts"]
    assert start["versions"]["torch"] == torch.__version__
    assert start["command"] == sys.argv
    log = (tmp_path / "run/log.txt").read_text()
    assert "Begins" in log
    assert "Checkpoint after round 2" in log
    assert (tmp_path / "run/lock").read_text() == ""
    assert result.info["checkpoints"]["count"] == 2
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".pkl", ".pt", ".partial")]


def test_warnings_go_to_the_log_of_the_run(quick, tmp_path):
    def warn(record):
        import logging

        logging.getLogger("fedmos").warning("look at round %d", record.round)

    quick(out=tmp_path / "run", callbacks=[warn])
    quick(callbacks=[warn])
    assert (tmp_path / "run/log.txt").read_text().count("look at round") == 3


@pytest.mark.parametrize("every", [1, "0.001s", None])
@pytest.mark.parametrize("algorithm", [fm.Scaffold(lr=0.1), fm.FedMoS(lr=0.05)])
def test_a_run_that_is_cut_off_three_times_ends_the_same(quick, tmp_path, algorithm, every):
    whole = quick(algorithm=algorithm, rounds=9)
    how = {"algorithm": algorithm, "rounds": 9, "out": tmp_path / "run", "resume": True, "checkpoint_every": every}
    for after in (2, 3, 7):
        assert quick(**how, callbacks=[stopping(after)]).interrupted
    resumed = quick(**how)
    assert torch.equal(resumed.params, whole.params)
    loaded = fm.Result.load(tmp_path / "run")
    for result in (resumed, loaded):
        assert not result.interrupted
        assert [r.cohort for r in result.history] == [r.cohort for r in whole.history]
        assert list(result.clients) == list(whole.clients)
        for i in whole.clients:
            assert torch.equal(result.client_state(i)["c_i"], whole.client_state(i)["c_i"])
    metrics = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in metrics] == list(range(1, 10))
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["starts"]) == 4


def test_a_diverging_run_is_kept_as_far_as_it_got(quick, digits, tmp_path):
    cohorts = fm.FixedCohorts([[0, 1], [1, 2]])
    with pytest.raises(fm.DivergenceError):
        quick(data=poisoned(digits, client=2), selection=cohorts, out=tmp_path / "run")
    loaded = fm.Result.load(tmp_path / "run")
    assert loaded.interrupted
    assert len(loaded.history) == 1


# Locks


def test_two_runs_cannot_share_a_folder(quick, tmp_path):
    def intrude(record):
        with pytest.raises(StorageError, match=rf"another run is in it \(process {os.getpid()} on .* since"):
            quick(out=tmp_path / "run", resume=True)
        with pytest.raises(StorageError, match="another run is in it"):
            result.save(tmp_path / "run")

    result = quick()
    quick(out=tmp_path / "run", callbacks=[intrude])
    quick(out=tmp_path / "run", resume=True)  # it let go


def test_a_run_releases_its_lock_however_it_ends(quick, tmp_path):
    def fail(record):
        raise RuntimeError("an accident")

    with pytest.raises(RuntimeError, match="an accident"):
        quick(out=tmp_path / "run", callbacks=[fail])
    with pytest.raises(ValueError, match="Cannot over-select"):
        quick(out=tmp_path / "b", selection=fm.FixedCohorts([[1]]), system=fm.System(over_select=2))
    quick(out=tmp_path / "run", resume=True)
    runs = [{"out": tmp_path / "b", "seed": 0}, {"out": tmp_path / "run"}]
    arguments = {"model": fm.models.logistic(features=64), "data": None, "algorithm": fm.FedAvg(lr=0.1)}
    with pytest.raises(ValueError, match="'data' must be"):
        fm.run_many(runs, **arguments, selection=fm.Uniform(m=2), rounds=1, local_steps=1)
    quick(out=tmp_path / "b")


@pytest.mark.parametrize("flock", [True, False])
def test_a_stale_lock_is_recognised(quick, tmp_path, monkeypatch, flock):
    if not flock:
        monkeypatch.setattr(lock, "fcntl", None)
    quick(out=tmp_path / "run")
    me = lock._this_process()
    for holder in (me | {"pid": 2**22 + 1}, me | {"process": "another boot 12"}):
        (tmp_path / "run/lock").write_text(json.dumps(holder))
        quick(out=tmp_path / "run", resume=True)
        assert f"ended from outside (process {holder['pid']}" in (tmp_path / "run/log.txt").read_text()
    if not flock:
        for holder in (me, me | {"host": "elsewhere"}):
            (tmp_path / "run/lock").write_text(json.dumps(holder))
            with pytest.raises(StorageError, match=f"process {holder['pid']} on {holder['host']}"):
                quick(out=tmp_path / "run", resume=True)


# Damage


def test_a_damaged_checkpoint_is_passed_over(quick, tmp_path, caplog):
    how = {"algorithm": fm.Scaffold(lr=0.1), "rounds": 6, "out": tmp_path / "run", "resume": True}
    whole = quick(**how, checkpoint_every=2)
    for file in own_files(tmp_path / "run"):
        good = file.read_bytes()
        file.write_bytes(good[: len(good) // 2])
        loaded = fm.Result.load(tmp_path / "run")
        assert len(loaded.history) == 4
        assert "damage" in caplog.text or "is not what was written" in caplog.text
        caplog.clear()
        file.write_bytes(good)
    file.write_bytes(good[:-1] + b"\0")
    resumed = quick(**how)
    assert torch.equal(resumed.params, whole.params)
    assert "round 4, because of damage to" in resumed.info["recovered"]
    assert "continues from round 4" in caplog.text
    assert "continues from round 4" in (tmp_path / "run/log.txt").read_text()


def test_no_checkpoint_is_intact(quick, tmp_path):
    quick(out=tmp_path / "run", checkpoint_every=1)
    for file in (tmp_path / "run/checkpoints").rglob("state.safetensors"):
        file.unlink()
    with pytest.raises(
        ValueError, match=r"Cannot resume the run in .* because none of its checkpoints is intact: 0000"
    ):
        quick(out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="its files are damaged"):
        fm.Result.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["../../secret.jsonl", "/etc/passwd", "000001/../../a.jsonl"])
def test_a_manifest_cannot_name_files_elsewhere(quick, tmp_path, name):
    from fedmos.storage.checkpoint_format import seal, unseal

    quick(out=tmp_path / "run")
    (manifest,) = tmp_path.rglob("manifest.json")
    content = unseal(manifest.read_bytes())
    content["history"][0][0][0] = name
    manifest.write_bytes(seal(content))
    with pytest.raises(ValueError, match="its manifest names a file"):
        fm.Result.load(tmp_path / "run")


# Disks


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_leaves_the_earlier_checkpoint(quick, tmp_path, monkeypatch, call, code):
    how = {"algorithm": fm.Scaffold(lr=0.1), "rounds": 4, "out": tmp_path / "run", "resume": True}
    whole = quick(**how | {"out": None, "resume": False})
    plain = getattr(os, call)

    def fail(*arguments):
        if (tmp_path / "run/checkpoints/000002").exists():
            raise OSError(code, os.strerror(code))
        return plain(*arguments)

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StorageError, match=f"Cannot write .* because of an error: {os.strerror(code)}; earlier") as e:
        quick(**how, checkpoint_every=1)
    assert "\n" not in str(e.value)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.partial"))
    assert len(fm.Result.load(tmp_path / "run").history) == 2
    assert torch.equal(quick(**how).params, whole.params)


def test_a_line_that_does_not_fit_is_taken_back(tmp_path, monkeypatch):
    lines, plain = AppendOnlyFile(tmp_path / "metrics.jsonl"), os.write
    lines.append("one")
    left = [2]

    def scarce(file, content):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room, left[0] = left[0], 0
        return plain(file, content[:room])

    monkeypatch.setattr(os, "write", scarce)
    with pytest.raises(OSError, match="No space"):
        lines.append("two")
    monkeypatch.undo()
    lines.append("three")
    lines.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "one\nthree\n"


def test_what_a_killed_run_left_half_written_is_removed(quick, tmp_path):
    quick(out=tmp_path / "run", rounds=2)
    half = tmp_path / "run/checkpoints/.000002.partial"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    (tmp_path / "run/.config.toml.partial").write_text("rou")
    (tmp_path / "run/fedmos-clients-x").mkdir()
    assert len(fm.Result.load(tmp_path / "run").history) == 2
    quick(out=tmp_path / "run", resume=True)
    assert not [p for p in (tmp_path / "run").rglob("*") if "partial" in p.name or "clients-x" in p.name]


def test_ctrl_c_inside_a_checkpoint(quick, tmp_path, monkeypatch):
    how = {"algorithm": fm.Scaffold(lr=0.1), "rounds": 5, "out": tmp_path / "run", "resume": True}
    whole = quick(**how | {"out": None, "resume": False})
    plain, calls = os.fsync, []

    def interrupt(file):
        calls.append(file)
        if len(calls) == 25:
            raise KeyboardInterrupt
        plain(file)

    monkeypatch.setattr(os, "fsync", interrupt)
    stopped = quick(**how, checkpoint_every=1)
    assert stopped.interrupted
    assert len(fm.Result.load(tmp_path / "run").history) == len(stopped.history) < 5
    assert torch.equal(quick(**how).params, whole.params)


# Large federations


def test_a_checkpoint_writes_only_the_clients_that_changed(tmp_path):
    """100,000 clients with state: ten of them took part since the last checkpoint."""
    N, D = 100_000, 16
    clients = {i: {"c_i": torch.full((D,), float(i))} for i in range(N)}
    none = torch.zeros(0)
    snapshot = fm.Result(
        params=none, history=fm.History(), server_state={}, clients=clients, last=none, selection={}, info={}
    )
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.write(snapshot)
    for round_ in range(5):
        for i in range(10):
            clients[i] = {"c_i": torch.full((D,), -float(round_))}
        checkpoints.write(snapshot, set(range(10)))
    newest = max((tmp_path / "checkpoints").iterdir())
    assert sum(file.stat().st_size for file in newest.glob("clients-*")) < 10 * D * 4 + 1000
    loaded = fm.Result.load(tmp_path)
    assert len(loaded.clients) == N
    assert loaded.client_state(3)["c_i"][0] == -4
    assert loaded.client_state(99_999)["c_i"][0] == 99_999
    assert loaded.client_state(100_000) == {}


@given(st.lists(st.integers(1, 30), max_size=60))
def test_segments_of_history_are_few_and_complete(steps):
    from math import log2

    from fedmos.storage.segments import HistorySegment

    kept, total, written = [], 0, 0
    for step in steps:
        total += step
        kept, start = plan_history(kept, total)
        kept.append(HistorySegment(start, total, []))
        written += total - start
        assert [p.start for p in kept] == [0, *(p.end for p in kept[:-1])]
        assert len(kept) <= 1 + log2(total)
    if total:
        assert written <= total * (2 + 2 * log2(total))


@given(st.lists(st.frozensets(st.integers(0, 50), max_size=10), max_size=60))
def test_segments_of_clients_hold_less_than_twice_the_current_state(steps):
    from fedmos.storage.segments import ClientSegment

    kept = []
    for changed in steps:
        kept, ids = plan_clients(kept, changed)
        if ids:
            kept.append(ClientSegment(ids, []))
        alive = frozenset().union(*(p.ids for p in kept))
        assert sum(len(p.ids) for p in kept) <= 2 * len(alive)
    assert frozenset().union(*(p.ids for p in kept)) == frozenset().union(*steps)


def test_only_the_last_two_checkpoints_are_kept(quick, tmp_path):
    quick(algorithm=fm.Scaffold(lr=0.1), rounds=12, out=tmp_path / "run", checkpoint_every=1)
    manifests = sorted((tmp_path / "run/checkpoints").rglob("manifest.json"))
    assert [m.parent.name for m in manifests] == ["000011", "000012"]
    named = {name for m in manifests for name in m.read_text().split('"') if "/" in name}
    there = {f"{p.parent.name}/{p.name}" for p in (tmp_path / "run/checkpoints").glob("*/*")}
    assert there - {f"{m.parent.name}/manifest.json" for m in manifests} <= named


def test_a_result_is_saved_beside_the_one_before(quick, tmp_path):
    first, second = quick(rounds=2), quick(rounds=3, algorithm=fm.Scaffold(lr=0.1))
    first.save(tmp_path / "a")
    second.save(tmp_path / "a")
    loaded = fm.Result.load(tmp_path / "a")
    loaded.save(tmp_path / "a")  # from and to the same files
    again = fm.Result.load(tmp_path / "a")
    assert torch.equal(again.params, second.params)
    assert list(again.clients) == list(second.clients) == list(loaded.clients)
    i = next(iter(second.clients))
    assert torch.equal(loaded.client_state(i)["c_i"], second.client_state(i)["c_i"])
    assert len(list((tmp_path / "a").rglob("manifest.json"))) == 2


# When


def test_when_a_checkpoint_is_due(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace, "monotonic", lambda: now[0])
    rounds, seconds, own = pace.CheckpointSchedule(3), pace.CheckpointSchedule("1.5min"), pace.CheckpointSchedule(None)
    assert [t for t in range(1, 8) if rounds.due(t)] == [3, 6]
    for now[0], timed, cheap in ((9, False, False), (11, False, True), (91, True, True)):
        assert (seconds.due(1), own.due(1)) == (timed, cheap)
    own.record(2.0)  # that was dear: two seconds are a twentieth of forty
    now[0] += 39
    assert not own.due(1)
    now[0] += 2
    assert own.due(1)


@pytest.mark.parametrize("every", [0, -1, 1.5, "5", "s", "0s", "5 minutes", True, "-3s"])
def test_invalid_checkpoint_intervals_are_refused(quick, tmp_path, every):
    with pytest.raises(ValueError, match="'checkpoint_every' must be an integer ≥ 1 or a time such as '30s'"):
        quick(out=tmp_path / "run", checkpoint_every=every)


# The command line

_KEYS = st.text(min_size=1, max_size=8)
_PLAIN = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=20)
_VALUES = st.recursive(_PLAIN, lambda v: st.lists(v, max_size=3) | st.dictionaries(_KEYS, v, max_size=3), max_leaves=8)


@settings(max_examples=40)
@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_toml_reads_as_it_was_written(table):
    assert tomllib.loads(toml.dumps(table)) == table


def command(monkeypatch, *arguments: str) -> int:
    from fedmos.cli import commands as cli

    monkeypatch.setattr(sys, "argv", ["fedmos", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_line_ends_on_request_and_resumes(tmp_path, monkeypatch, capsys):
    (tmp_path / "mos.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "run", "mos.toml", "--set", "rounds=6", "--out", "whole") == 0
    plain = RunFolder.write_rounds

    def ask_to_end(self, history):
        plain(self, history)
        if len(history) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunFolder, "write_rounds", ask_to_end)
    assert command(monkeypatch, "run", "mos.toml", "--set", "rounds=6", "--out", "run") == 143
    assert len(fm.Result.load("run").history) == 3
    monkeypatch.setattr(RunFolder, "write_rounds", plain)
    monkeypatch.chdir("/")
    assert command(monkeypatch, "resume", str(tmp_path / "run")) == 0
    resumed = fm.Result.load(tmp_path / "run")
    assert torch.equal(resumed.params, fm.Result.load(tmp_path / "whole").params)
    assert command(monkeypatch, "resume", str(tmp_path / "run"), "--set", "seed=1") == 2
    assert "'model' is" in (error := capsys.readouterr().err) or "'seed' is 0, got 1" in error


def test_runs_the_command_line_cannot_resume(quick, tmp_path, monkeypatch, capsys):
    quick(out=tmp_path / "run")
    assert command(monkeypatch, "resume", str(tmp_path / "run")) == 2
    assert "because it was started from Python" in capsys.readouterr().err
    assert command(monkeypatch, "resume", str(tmp_path / "nothing")) == 2
    assert "it has no config.toml" in capsys.readouterr().err


def test_many_runs_have_a_folder_each(digits, tmp_path):
    shared = {
        "model": fm.models.logistic(features=64),
        "data": digits,
        "algorithm": fm.Scaffold(lr=0.1),
        "selection": fm.Uniform(m=4),
        "local_steps": 2,
        "batch_size": 4,
        "engine": "batched",
    }
    runs = [{"seed": seed, "out": tmp_path / str(seed), "resume": True} for seed in range(2)]
    fm.run_many(runs, **shared, rounds=3, checkpoint_every=1, callbacks=[stopping(2)])
    resumed = fm.run_many(runs, **shared, rounds=3)
    for result, run in zip(resumed, runs, strict=True):
        assert torch.allclose(result.params, fm.run(**shared, rounds=3, seed=run["seed"]).params, atol=1e-6)
        assert len((run["out"] / "metrics.jsonl").read_text().splitlines()) == 3
        assert (run["out"] / "lock").read_text() == ""


def test_a_light_folder_keeps_the_model_and_the_history(quick, tmp_path):
    how = {"algorithm": fm.Scaffold(lr=0.1), "rounds": 4}
    plain = quick(**how, out=tmp_path / "plain", checkpoint_every=1)
    quick(**how, out=RunFolder(tmp_path / "run", light=True), checkpoint_every=1)
    again = fm.Result.load(tmp_path / "run")
    assert torch.equal(again.params, plain.params)
    assert [r.train_loss for r in again.history] == [r.train_loss for r in plain.history]
    assert (again.server_state, dict(again.clients)) == ({}, {})
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1
    assert list((tmp_path / "plain").rglob("clients-*"))
    assert not list((tmp_path / "run").rglob("clients-*"))
    same = quick(**how, out=tmp_path / "run", resume=True)
    assert torch.equal(same.params, plain.params)
    with pytest.raises(ValueError, match="because only its model and history were kept; use a new folder"):
        quick(**how | {"rounds": 5}, out=tmp_path / "run", resume=True)


def test_a_light_run_that_is_cut_off_goes_on(quick, tmp_path):
    how = {"algorithm": fm.Scaffold(lr=0.1), "rounds": 4}
    quick(**how, out=RunFolder(tmp_path / "run", light=True), callbacks=[stopping(2)])
    resumed = quick(**how, out=RunFolder(tmp_path / "run", light=True), resume=True)
    assert torch.equal(resumed.params, quick(**how).params)
