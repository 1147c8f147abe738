"""Parameters that stay with the clients of a deployment: they lie on the client's disk and are never sent."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

import fedmos as fm

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedmos.flower import export_personal
from helpers.flower_runs import CLIENTS, arguments, assert_same

HEAD = 8 * 3 + 3


def content(message) -> bytes:
    """Everything that Flower sends of a message."""
    return b"".join(part.deflate() for part in get_all_nested_objects(message).values())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"algorithm": fm.Scaffold(lr=0.1)}, marks=pytest.mark.extended),
        {"personal": fm.Personal(["2.*"], steps=1), "local": fm.local.Adam(keep=True)},
        {"algorithm": fm.Ditto(lr=0.1), "uplink": fm.codecs.ErrorFeedback(fm.codecs.TopK(0.2))},
    ],
    ids=["SCAFFOLD", "FedRep", "Ditto"],
)
def test_nothing_of_the_head_is_sent(deployed, tmp_path, changes):
    """The run is that of the simulation, whose clients' heads are in the clients' folders and in no message."""
    given = arguments(personal=["2.*"], selection=fm.Full()) | changes
    deployment = deployed(given)
    messages = []

    def listen(request, reply):
        messages.extend([content(request), content(reply)])
        return reply

    deployment.network.tamper = listen
    expected = fm.run(**given)
    assert_same(deployment.run(), expected)
    heads = {}
    for path in sorted(deployment.folder.glob("state/*/*/state-*.safetensors")):
        heads.setdefault(path.parent.parent.name, []).append(safetensors.torch.load_file(path)["personal"])
    assert len(heads) == CLIENTS
    for i in range(CLIENTS):
        kept = heads[str(i)]
        assert torch.equal(kept[-1], expected.client_state(i)["personal"])
        for head in kept:
            assert head.shape == (HEAD,)
            for number in head:  # not even one of its numbers
                assert not any(number.numpy().tobytes() in message for message in messages)
    assert len(messages) >= 2 * CLIENTS * given["rounds"]
    expected.export(tmp_path / "model.safetensors")
    for i in range(2):
        where = {"state": deployment.folder / "state", "model": tmp_path / "model.safetensors", "out": tmp_path / "own"}
        assert export_personal(deployment.given, str(i), **where).round == given["rounds"]
        exported = safetensors.torch.load_file(tmp_path / "own")
        for name, v in expected.personal_model(i).state_dict().items():
            assert torch.equal(exported[name], v)


def test_what_the_server_cannot_ask(deployed):
    with pytest.raises(ValueError, match="Cannot ask the clients of a deployment for losses, gradients or metrics"):
        deployed(arguments(personal=["2.*"], selection=fm.PowerOfChoice(m=2, d=4))).run()


def test_what_cannot_be_exported(tmp_path):
    where = {"state": tmp_path, "model": tmp_path / "model.safetensors", "out": tmp_path / "own"}
    with pytest.raises(ValueError, match="because FedAvg has no personal models"):
        export_personal(arguments(), "0", **where)
    with pytest.raises(ValueError, match="'client' must be one of 0, 1"):
        export_personal(arguments(personal=["2.*"]), "nobody", **where)
    with pytest.raises(ValueError, match="holds no state of it"):
        export_personal(arguments(personal=["2.*"]), "0", **where)
