"""Each attack of docs/deploy/security.md is refused, and the page quotes what the code logs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from flwr.app import Array, ArrayRecord

from fedmos.flower import wire
from fedmos.flower.local.pinned_app import AppGuard, AppRefusedError
from helpers.curious_server import Asked, initial
from helpers.flower_keys import outsider, with_keys
from helpers.flower_pages import is_quoted, quoted_lines
from helpers.flower_runs import EVERYONE, arguments


def quoted(caplog) -> list[str]:
    """The lines of the log that the page quotes."""
    return [line for line in caplog.messages if is_quoted(line)]


def test_every_quoted_line_is_checked():
    """Five attacks, the lines of the reverse proxy and of refused processes; the last three by the tests of processes."""
    assert len(quoted_lines()) == 10


def test_the_stranger_with_an_app(tmp_path):
    hook = AppGuard(tmp_path, tmp_path / "apps" / "fedmos.study.1.0.0.18d79941").hook()
    with pytest.raises(AppRefusedError) as refusal:
        hook("os.mkdir", (tmp_path / "apps" / "fedmos.study.1.0.0.d06a641e", 0o777, -1))
    assert is_quoted(str(refusal.value))
    hook("os.mkdir", (tmp_path / "apps", 0o777, -1))
    hook("os.mkdir", (tmp_path / "apps" / "fedmos.study.1.0.0.18d79941", 0o777, -1))


def test_the_impostor(deployed, caplog):
    made = with_keys(deployed(arguments(selection=EVERYONE, rounds=2)))
    made.run()
    outsider(made, 3)
    made.network.nodes[103].online = False
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run(rounds=4)
    assert len(quoted(caplog)) == 1
    assert "it claims to be client '3'" in quoted(caplog)[0]


def test_two_names_with_one_key(deployed, caplog):
    made = with_keys(deployed(arguments(selection=EVERYONE, rounds=2)))
    node = outsider(made, 5)
    made.network.nodes[105].online = False
    node.key = made.network.nodes[103].key
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert any("is that of client" in line for line in quoted(caplog))


def test_the_curious_server(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert Asked(tmp_path).ask(wire.GRADIENTS, initial(), keep=False).has_error()
    assert len(quoted(caplog)) == 1


def test_the_scaled_update(deployed, caplog):
    made = deployed(arguments(selection=EVERYONE, rounds=2))

    def scaled(request, reply):
        if request.metadata.message_type == wire.TRAIN and request.metadata.dst_node_id == 101:
            array = reply.content["vectors"]["delta"]
            v = np.frombuffer(array.data, np.float32) * np.float32(1e6)
            made_longer = Array("float32", tuple(array.shape), "fedmos.raw", v.tobytes())
            reply.content["vectors"] = ArrayRecord({"delta": made_longer})
        return reply

    made.network.tamper = scaled
    with caplog.at_level(logging.WARNING, "fedmos"):
        result = made.run()
    assert len(quoted(caplog)) == 2
    assert result.params.norm() < 100


def test_the_replayed_request(tmp_path, caplog):
    client, x = Asked(tmp_path), initial()
    for t in range(3):
        assert not client.train(x + t, round=t).has_error()
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert client.train(x, round=0).has_error()
    assert len(quoted(caplog)) == 1


def test_the_replayed_reply(deployed, caplog):
    """Someone sends the server a client's reply of an earlier round again."""
    made, kept = deployed(arguments(selection=EVERYONE, rounds=3)), {}

    def replay(request, reply):
        if request.metadata.message_type == wire.TRAIN and request.metadata.dst_node_id == 102:
            kept.setdefault("content", reply.content)
            if wire.round_of(request.content) == 2:
                reply.content = kept["content"]
        return reply

    made.network.tamper = replay
    with caplog.at_level(logging.WARNING, "fedmos"):
        made.run()
    assert len(quoted(caplog)) == 1
    assert "client '2'" in quoted(caplog)[0]
