"""Several processes as one run: the same bits, however many they are."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedmos as fm
from fedmos.engine.process_group import join, leave
from fedmos.engine.ranks import Ranks

TESTS = Path(__file__).parents[1]


def job_of(*arguments: str) -> dict:
    """Return the output of helpers/ranks_job.py, which runs what needs several ranks in one process and its forks."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, TESTS / "helpers" / "ranks_job.py", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def job() -> dict:
    return job_of("some")


def same_bits(digests: dict[str, dict[str, str]], jobs: int, sizes: int) -> None:
    """Model, server's state, every client's state and history."""
    assert len(digests) == jobs
    for name, by_size in digests.items():
        assert len(by_size) == sizes
        assert len(set(by_size.values())) == 1, f"{name}: {by_size}"
    assert len({by_size["1"] for by_size in digests.values()}) == len(digests)


def test_one_and_two_ranks_come_to_the_same_bits(job):
    same_bits(job["digests"], jobs=7, sizes=2)


@pytest.mark.extended
def test_one_two_and_four_ranks_come_to_the_same_bits():
    """Jobs of all kinds."""
    job = job_of("all")
    same_bits(job["digests"], jobs=29, sizes=3)
    check_sums(job["sums"]["4"])
    uneven = job["uneven kernels"]
    assert uneven["two"] == uneven["four"] == uneven["two, then one"]
    assert len({uneven[name] for name in ("one rank", "two", "two, cut off")}) == 3


def check_sums(by_rank: list[list[dict]]) -> None:
    """Equal to sums in one process, in at most the bytes of the slices of all pieces and of one vector, padded."""
    R = len(by_rank)
    for rank, cases in enumerate(by_rank):
        assert all(case["equal"] and case["gathered"] for case in cases)
        assert not all(case["another order"] for case in cases)
        for case in cases:
            others = sum(owner != rank for owner in case["owner"])
            padded = case["n"] / R + 8  # a slice, rounded up to a whole number of values
            assert case["bytes"] <= others * padded + (R - 1) * padded


def test_ranks_sum_slices_to_the_bits_of_one_process(job):
    check_sums(job["sums"]["3"])


@pytest.mark.extended
def test_eight_and_sixteen_ranks_come_to_the_same_bits():
    job = job_of("many")
    same_bits(job["digests"], jobs=4, sizes=3)
    for size in ("8", "16"):
        check_sums(job["sums"][size])
        last = job["sums"][size][0][-1]
        assert last["bytes"] < last["bytes to gather"] / 4


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_leaving_the_process_group_ends_its_threads(job):
    """As the process ends, they would now and then abort it."""
    assert len(job["threads"]) == 2
    for threads in job["threads"]:
        assert any("gloo" in thread for thread in threads["joined"])
        assert threads["left"]
        assert not any("gloo" in thread for thread in threads["left"])


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_on_one_rank_ends_the_others_at_once(job, failing):
    """And not after the time limit, also if the process of the error goes on."""
    errors = job["errors"][failing]
    assert errors[failing] == "ZeroDivisionError: a mistake"
    assert errors[1 - failing].startswith(
        "LostRankError: Cannot continue because another process of the run is gone or stuck"
    )


@pytest.mark.parametrize("given", ["abc", "0", "-1", "nan", "inf", "1e9"])
def test_the_time_limit_of_ranks_is_checked(monkeypatch, given):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("FEDMOS_RANK_TIMEOUT", given)
    with pytest.raises(ValueError, match=f"FEDMOS_RANK_TIMEOUT must be a number of minutes > 0 .*, got '{given}'"):
        join()


def ranks_of(size: int, speed: list[float]) -> Ranks:
    ranks = Ranks()
    ranks.size, ranks._speed = size, speed
    return ranks


def test_work_is_assigned_to_the_rank_that_finishes_first():
    assert ranks_of(1, [1.0]).assign([3.0, 1.0]) == [0, 0]
    even = ranks_of(2, [1.0, 1.0]).assign([1.0] * 8)
    assert even.count(0) == even.count(1) == 4
    uneven = ranks_of(2, [3.0, 1.0]).assign([1.0] * 8)
    assert uneven.count(0) == 6
    assert ranks_of(2, [1.0, 1.0]).assign([5.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == [0, 1, 1, 1, 1, 1]
    assert ranks_of(4, [1.0] * 4).assign([1.0, 1.0]) == [0, 1]


@pytest.mark.parametrize(
    ("gpus", "own", "warns"),
    [
        (["a", "b"], True, False),
        (["a", "a"], False, True),
        (["a", None], False, True),
        ([None, None], False, False),
        (["a", "b", "a"], False, True),
    ],
)
def test_ranks_use_nccl_only_if_each_has_a_gpu_of_its_own(monkeypatch, caplog, gpus, own, warns):
    """Fakes: nccl itself needs GPUs (benchmarks/device/ranks.sh)."""
    told = []
    for name, value in {"is_initialized": True, "get_world_size": len(gpus), "get_rank": 0}.items():
        monkeypatch.setattr(f"fedmos.engine.ranks.dist.{name}", lambda value=value: value)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid=gpus[0]))
    monkeypatch.setattr(Ranks, "all_gather_json", lambda self, mine: told.append((self._device.type, mine)) or gpus)
    monkeypatch.setattr(Ranks, "broadcast", lambda self, value: told.append((self._device.type, "first use")))
    ranks = Ranks.joined(torch.device("cpu" if gpus[0] is None else "cuda"))
    assert ranks.size == len(gpus)
    assert ranks._device.type == ("cuda" if own else "cpu")
    assert told == [("cpu", gpus[0]), *[("cuda", "first use")] * own]
    assert ("nccl refuses" in caplog.text) == warns


@pytest.mark.parametrize(
    ("gpus", "chosen", "backend"), [(0, None, "gloo"), (1, 0, "cpu:gloo,cuda:nccl"), (4, 3, "cpu:gloo,cuda:nccl")]
)
def test_a_rank_takes_the_gpu_of_its_local_number(monkeypatch, gpus, chosen, backend):
    calls = {}
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setattr("fedmos.engine.process_group._end_with_launcher", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.set_device", lambda number: calls.update(device=number))
    monkeypatch.setattr(
        "fedmos.engine.process_group.dist.init_process_group", lambda name, **_: calls.update(backend=name)
    )
    monkeypatch.setattr("fedmos.engine.process_group.atexit.register", lambda function: calls.update(at_exit=function))
    join()
    assert calls.pop("at_exit") is leave  # a group that is alive at exit aborts some processes
    assert calls == {"backend": backend} | ({} if chosen is None else {"device": chosen})


@pytest.mark.parametrize("width", [2, 4, 5, 13])
def test_bits_do_not_depend_on_the_width_of_chunks(quick, monkeypatch, width):
    """Sums are taken block by block in the order of clients, and a client left alone is computed as one of two."""
    how = {"engine": "batched", "rounds": 2, "selection": fm.Uniform(m=13), "algorithm": fm.Scaffold(lr=0.1)}
    whole = quick(**how)
    monkeypatch.setattr("fedmos.engine.execution_plan._max_parallel_clients", lambda task: width)
    assert torch.equal(quick(**how).params, whole.params)


def test_bits_do_not_depend_on_memory_alignment(quick, monkeypatch):
    """Rows of odd length begin where the processor's vectors do not; see MKL_CBWR in fedmos/__init__.py."""
    how = {
        "engine": "batched",
        "model": fm.models.mlp(features=64),
        "algorithm": fm.FedMoS(lr=0.1),
        "selection": fm.Uniform(m=13),
        "batch_size": 5,
    }
    whole = quick(**how)
    monkeypatch.setattr("fedmos.engine.execution_plan._max_parallel_clients", lambda task: 3)
    assert torch.equal(quick(**how).params, whole.params)
