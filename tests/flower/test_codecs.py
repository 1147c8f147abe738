"""A deployment with coded messages: the bits of the simulation, and the bytes that its codecs declare."""

from __future__ import annotations

import logging
import zlib

import numpy as np
import pytest
import torch

import fedmos as fm
from fedmos.codecs import ErrorFeedback, Float16, Quantize, RandomK, Rotate, Sign, TopK
from fedmos.codecs.chain import as_codec

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedmos.flower import wire
from helpers.conformance import EACH_SENDING, Case
from helpers.flower_runs import BAD, EVERYONE, SELECTORS, arguments, assert_same, model

D = sum(p.numel() for p in model().parameters())
LINKS = {
    "up": {"uplink": Quantize(4)},
    "feedback": {"uplink": ErrorFeedback(TopK(0.1))},
    "chain": {"uplink": [Rotate(), Quantize(3)]},
    "down": {"downlink": Quantize(4)},
    "both": {"uplink": {"delta": ErrorFeedback([TopK(0.3), Quantize(8)])}, "downlink": RandomK(0.2)},
    "half": {"uplink": Float16(), "downlink": Float16()},
    "sign": {"uplink": ErrorFeedback(Sign()), "downlink": {"x": TopK(0.5)}},
}


def compare(deployed, algorithm, link, **changes):
    given = arguments(algorithm=algorithm, rounds=4, **LINKS[link]) | changes
    result, expected = deployed(given).run(), fm.run(**given)
    assert_same(result, expected)
    return result, expected


@pytest.mark.parametrize(("link", "engine"), [*((link, "loop") for link in LINKS), ("both", "batched")])
def test_the_same_as_the_simulation(deployed, link, engine):
    """Cohorts, bytes on the wire, bits of the model and of the server's state."""
    compare(deployed, fm.Scaffold(lr=0.05), link, engine=engine)


@pytest.mark.parametrize("algorithm", [fm.Mime(lr=0.05, beta=0.5), fm.FedNova(lr=0.05)], ids=str)
def test_extra_phases_and_numbers(deployed, algorithm):
    """Mime's gradients are coded, and x is sent once for both phases; FedNova's number of steps is sent as it is."""
    compare(deployed, algorithm, "sign")
    if isinstance(algorithm, fm.FedNova):
        return
    first = arguments(algorithm=algorithm, rounds=3, uplink=Quantize(4), downlink=Quantize(4), selection=fm.Full())
    codec, record = Quantize(4), fm.run(**first).history[-1]
    assert record.bytes_up == 6 * 2 * codec.nbytes(D)
    assert record.bytes_down == 6 * 3 * codec.nbytes(D)


@pytest.mark.parametrize("selector", ["pow-d", "OCS", "DELTA"])
def test_probes_and_thinning(deployed, selector):
    """Probed clients get x and then the difference; reports are of decoded updates; uploads wait in the folder."""
    compare(deployed, fm.FedAvg(lr=0.1), "both", selection=SELECTORS[selector])


def test_a_client_that_keeps_the_model_it_received(deployed):
    """One tensor under two names in the client's folder: LocalGHBM's r_i, and what the server knows it to hold."""
    compare(deployed, fm.LocalGHBM(lr=0.05), "down")


def test_double_precision(deployed):
    compare(deployed, fm.FedDyn(lr=0.1), "both", dtype=torch.float64)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("case", EACH_SENDING, ids=str)
@pytest.mark.extended
def test_every_algorithm(deployed, case, link):
    algorithm = case.make(lr=0.05)
    named = {} if link != "sign" else {"downlink": {algorithm.down[0]: TopK(0.5)}}  # FedACG sends z in place of x
    compare(deployed, algorithm, link, **named)


@pytest.mark.parametrize("selector", sorted(set(SELECTORS) - {"rpow-d", "ActiveFL", "Oort"}))
@pytest.mark.extended
def test_every_selector(deployed, selector):
    compare(deployed, Case("Scaffold", (2, 2)).make(lr=0.05), "both", selection=SELECTORS[selector])


def test_a_server_that_is_restarted_knows_what_clients_hold(deployed):
    given = arguments(algorithm=fm.Scaffold(lr=0.05), **LINKS["both"])
    deployment = deployed(given)
    deployment.run(rounds=2)
    assert_same(deployment.run(), fm.run(**given))


CODEC, SIZE = [TopK(0.1), Quantize(4)], as_codec([TopK(0.1), Quantize(4)]).nbytes(D)
TAMPERED = {
    "too few bytes": (Array("uint8", (SIZE - 1,), "fedmos.raw", b"\0" * (SIZE - 1)), f"must be of shape ({SIZE},)"),
    "too many bytes": (Array("uint8", (SIZE,), "fedmos.raw", b"\0" * 2 * SIZE), f"must have {SIZE} bytes"),
    "numbers": (Array("float32", (D,), "fedmos.raw", b"\0" * 4 * D), "must be of dtype uint8"),
    "indices out of range": (
        Array("uint8", (SIZE,), "fedmos.raw", b"\xff" * (SIZE - 4) + b"\0" * 4),
        "TopK: 'indices'",
    ),
    "the same index twice": (Array("uint8", (SIZE,), "fedmos.raw", b"\0" * SIZE), "TopK: 'indices'"),
    "a scale that is NaN": (
        lambda sent: Array("uint8", (SIZE,), "fedmos.raw", sent[:-4] + np.float32(np.nan).tobytes()),
        "must be finite",
    ),
}


@pytest.mark.parametrize("fault", TAMPERED)
def test_bytes_that_no_encoder_sends(deployed, caplog, fault):
    """They are refused before they are decoded; the other clients' uploads count."""
    changed, reason = TAMPERED[fault]
    made = deployed(arguments(selection=EVERYONE, rounds=1, uplink=CODEC))

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.dst_node_id == 100 + BAD and request.metadata.message_type == wire.TRAIN:
            sent = reply.content["vectors"]["delta"].data
            array = changed(sent) if callable(changed) else changed
            reply.content["vectors"] = ArrayRecord({"delta": array})
        return reply

    made.network.tamper = tamper
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    (refused,) = [line for line in caplog.messages if line.startswith("Refused the reply of client '1' (node 101)")]
    assert reason in refused
    assert result.last.tolist() == [-1 if i == BAD else 0 for i in range(6)]


def test_a_client_whose_upload_did_not_count_starts_from_its_earlier_state(deployed):
    """Its residual, and what it holds of the model, are those of its last round that counted, on both sides."""
    link = {"uplink": ErrorFeedback(CODEC), "downlink": Quantize(4), "algorithm": fm.FedDyn(lr=0.1)}
    made = deployed(arguments(selection=EVERYONE, rounds=4, **link))
    lost = {1}

    def tamper(request: Message, reply: Message) -> Message:
        fedmos = request.content["fedmos"]
        if request.metadata.message_type == wire.TRAIN and fedmos["client"] == BAD and fedmos["round"] in lost:
            reply.content["vectors"] = ArrayRecord({"delta": TAMPERED["too few bytes"][0]})
        return reply

    made.network.tamper = tamper
    result = made.run()
    data = made.given["data"]
    p = data.importance.tolist()
    others = [i for i in range(6) if i != BAD]
    scale = sum(p) / sum(p[i] for i in others)
    cohorts = [others if t in lost else list(range(6)) for t in range(4)]
    weights = [[p[i] * (scale if t in lost else 1) for i in cohort] for t, cohort in enumerate(cohorts)]
    expected = fm.run(**arguments(selection=fm.FixedCohorts(cohorts, weights), rounds=4, **link))
    torch.testing.assert_close(result.params, expected.params, rtol=0, atol=1e-6)
    torch.testing.assert_close(result.server_state["h"], expected.server_state["h"], rtol=0, atol=1e-6)
    held = [one.client_state(BAD)["held.x"] for one in (result, expected)]
    torch.testing.assert_close(*held, rtol=0, atol=1e-6)


def test_new_clients_are_sent_the_model_and_others_bytes(deployed):
    made = deployed(arguments(selection=EVERYONE, rounds=2, downlink=Quantize(4)))

    def tamper(request: Message, reply: Message) -> Message:
        if request.metadata.message_type == wire.TRAIN:
            seen.append({name: array.dtype for name, array in request.content["vectors"].items()})
        return reply

    seen: list[dict[str, str]] = []
    made.network.tamper = tamper
    made.run()
    assert [kinds["x"] for kinds in seen] == ["float32"] * 6 + ["uint8"] * 6


def test_messages_are_the_declared_bytes_and_headers(deployed, caplog):
    """What Flower sends of a message beside the encoded vectors does not grow with the model."""
    sizes: list[tuple[int, int]] = []

    def weigh(request: Message, reply: Message) -> Message:
        for message in (request, reply):
            whole = sum(len(part.deflate()) for part in get_all_nested_objects(message.content).values())
            assert abs(whole - wire.payload(message.content) - wire.overhead(message.content)) < 32
            sizes.append((wire.payload(message.content), wire.overhead(message.content)))
        return reply

    for width in (8, 800):
        network = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
        given = arguments(model=network, rounds=2, selection=EVERYONE, uplink=Quantize(4), downlink=Quantize(4))
        made = deployed(given)
        made.folder = made.folder / str(width)
        made.network.tamper = weigh
        with caplog.at_level(logging.INFO, "fedmos"):
            result = made.run()
        declared = sum(record.bytes_down + record.bytes_up for record in result.history)
        assert sum(payload for payload, _ in sizes) == declared
        assert 300 < max(overhead for _, overhead in sizes) < 1200
        assert f"Messages carried {declared / 1e6:.3f} MB of vectors and numbers, and 0.0" in caplog.text
        sizes.clear()


def test_compressed_bytes_are_fewer_and_come_to_the_same_bits(deployed):
    """Nearest rounding to two bits is mostly zeros; the bytes of records are measured."""
    network = torch.nn.Sequential(torch.nn.Linear(5, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
    codecs = {"uplink": ErrorFeedback(Quantize(2)), "downlink": Quantize(4)}
    given = arguments(model=network, selection=EVERYONE, **codecs)
    result, expected = deployed(given, compress=True).run(), fm.run(**given)
    assert torch.equal(result.params, expected.params)
    for mine, theirs in zip(result.history, expected.history, strict=True):
        assert mine.bytes_up < 0.95 * theirs.bytes_up
        assert mine.bytes_down == theirs.bytes_down if mine.round == 1 else mine.bytes_down < theirs.bytes_down


def packed(data: bytes, stype: str = wire.DEFLATED, dtype: str = "uint8") -> RecordDict:
    array = Array(dtype, (1000,), stype, data)
    return RecordDict({"fedmos": ConfigRecord({}), "vectors": ArrayRecord({"delta": array})})


def test_only_what_was_compressed_is_inflated():
    """Zeros of 64 MB are refused after a thousand bytes; vectors that are not coded are never inflated."""
    data, shapes = bytes(range(250)) * 4, {"delta": (1000,)}
    (found,) = wire.vectors_in(packed(zlib.compress(data)), shapes, torch.float32, ["delta"]).values()
    assert bytes(found.numpy()) == data
    bomb = zlib.compressobj(9)
    for content, reason in {
        b"nonsense": "cannot be decompressed",
        zlib.compress(data)[:-3]: "must be 1000 bytes, compressed, and nothing else",
        zlib.compress(data) + b"more": "must be 1000 bytes, compressed, and nothing else",
        zlib.compress(data[1:]): "must have 1000 bytes, got 999",
        zlib.compress(data + data): "must be 1000 bytes, compressed, and nothing else",
        b"".join(bomb.compress(bytes(2**20)) for _ in range(64)) + bomb.flush(): "must be 1000 bytes, compressed",
    }.items():
        with pytest.raises(wire.RefusedError, match=reason):
            wire.vectors_in(packed(content), shapes, torch.float32, ["delta"])
    with pytest.raises(wire.RefusedError, match=r"must be serialised as fedmos\.raw"):
        wire.vectors_in(packed(zlib.compress(bytes(4000)), dtype="float32"), shapes, torch.float32)
