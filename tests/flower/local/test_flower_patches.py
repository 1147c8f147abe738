"""Changes to Flower's internals, tested with Flower's own functions and stores, without a network."""

import logging
import threading
import time
from importlib import import_module
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

from fedmos.flower.local import flower_patches

RUN = 7


class Node:
    """A SuperNode's memory, and the two halves of its loop."""

    def __init__(self, pull, push) -> None:
        stores = import_module("flwr.supercore.object_store").ObjectStoreFactory()
        self.state = import_module("flwr.supernode.nodestate").NodeStateFactory(stores).state()
        self.store = stores.store()
        self._pull, self._push = pull, push
        self.state.set_node_id(1)
        self.state.store_run(import_module("flwr.supercore.run").Run.create_empty(RUN))
        self.sent: list[str] = []

    def pull(self, group: str, ends: bool = False) -> bool:
        """Whether a message was received, whose run may end while it arrives."""
        common = import_module("flwr.common")
        metadata = common.Metadata(RUN, "", 2, 1, "", group, time.time(), 60.0, "train")
        message = common.Message(metadata=metadata, content=common.RecordDict())
        metadata.__dict__["_message_id"] = message.object_id
        tree = import_module("flwr.supernode.start_client_internal").get_object_tree(message)

        def confirm(run: int, message: str) -> None:
            if ends:
                raise import_module("flwr.supercore.run").RunNotRunningException

        contents = {message.object_id: message.deflate()} | {
            o.object_id: o.deflate() for o in message.children.values()
        }
        got = self._pull(
            state=self.state,
            object_store=self.store,
            node_config={},
            receive=lambda: (message, tree),
            get_run=None,
            get_fab=None,
            pull_object=lambda run, name: contents[name],
            confirm_message_received=confirm,
            trusted_entities=None,
        )
        return got is not None

    def answer(self) -> None:
        """What the client app does: reply to every message that is there."""
        loop, message = import_module("flwr.supernode.start_client_internal"), import_module("flwr.common").Message
        for given in self.state.get_messages_legacy(is_reply=False):
            loop._insert_message(message(given.content, reply_to=given), self.state, self.store)

    def push(self) -> None:
        def send(message, tree, seconds):
            self.sent.append(message.metadata.group_id)
            return set(), "session"

        self._push(state=self.state, object_store=self.store, send=send, push_object=None)


@pytest.mark.parametrize("ours", [True, False])
def test_a_message_of_a_run_that_ended_does_not_put_replies_out_of_step(ours):
    """With Flower's own functions it does; should that change, ours are no longer needed."""
    loop = import_module("flwr.supernode.start_client_internal")
    pull, push = loop._pull_and_store_message, loop._push_messages
    ordered = flower_patches.OrderedReplies(pull, push)
    node = Node(ordered.receive, ordered.send) if ours else Node(pull, push)
    assert not node.pull("one of a run that ends", ends=True)
    node.answer()
    assert node.pull("two")
    late = threading.Timer(0.2, node.answer)
    late.start()
    node.push()
    assert node.sent == ["one of a run that ends", "two"][: 2 if ours else 1]
    late.join()


class SuperLink:
    """Stores the pieces of one reply; the answers to some are lost, which Flower's SuperNode repeats."""

    def __init__(self, pieces, lost=(), received=False):
        self.missing, self.lost, self.received = set(pieces), set(lost), received
        self.sessions, self.pushes = 0, []

    def announce(self, message):
        """Once the server app has begun to receive the reply, nothing is announced any more."""
        self.sessions += 1
        return (set() if self.received and self.sessions > 1 else set(self.missing)), f"session {self.sessions}"

    def push(self, run, session, piece, content):
        self.pushes.append(piece)
        if session != f"session {1 if self.received else self.sessions}" or piece not in self.missing:
            raise RuntimeError("refused")
        self.missing.remove(piece)
        if piece in self.lost:
            self.push(run, session, piece, content)


@pytest.mark.parametrize("received", [False, True])
def test_an_upload_goes_on_after_an_answer_was_lost(received):
    link = SuperLink("abcd", lost="bd", received=received)
    upload = flower_patches.ResumedUpload(link.announce, link.push)
    missing, session = upload.begin("message")
    for piece in sorted(missing):
        upload.push(RUN, session, piece, b"")
    assert not link.missing
    assert link.pushes == list("abbcdd")


def test_a_refused_piece_that_is_missing_is_sent_again_and_then_given_up(monkeypatch):
    monkeypatch.setattr(flower_patches, "_MAX_FAILURES", 3)
    link = SuperLink("ab")
    upload = flower_patches.ResumedUpload(link.announce, link.push)
    _, old = upload.begin("message")
    link.sessions += 1  # as if the session had expired
    upload.push(RUN, old, "a", b"")
    assert link.pushes == ["a", "a"]
    monkeypatch.setattr(upload, "_push", lambda *given: (_ for _ in ()).throw(RuntimeError("refused")))
    with pytest.raises(RuntimeError, match="refused"):
        upload.push(RUN, old, "b", b"")


def test_a_request_that_is_cut_in_the_handshake_is_repeated(monkeypatch):
    """Flower gives up then: its text says that a handshake has failed."""
    monkeypatch.setattr(flower_patches.time, "sleep", lambda seconds: None)
    failures = [httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING]")] * 2

    def request(value):
        if failures:
            raise failures.pop()
        return value

    assert flower_patches.persistent(request)(3) == 3
    with pytest.raises(ValueError, match="invalid"):
        flower_patches.persistent(lambda: int("invalid"))()


@pytest.mark.parametrize("name", flower_patches.PATCHED)
def test_flower_has_every_name_that_is_replaced(name):
    assert flower_patches._exists(name)


def test_a_missing_name_leaves_flower_unchanged(monkeypatch, caplog):
    """The deployment then runs with Flower's own behaviour."""
    loop = import_module("flwr.supernode.start_client_internal")
    receive = loop._pull_and_store_message
    monkeypatch.delattr(loop, "_push_messages")
    with caplog.at_level(logging.WARNING, "fedmos"):
        flower_patches.order_replies()
    assert loop._pull_and_store_message is receive
    (message,) = caplog.messages
    assert message == (
        "This version of Flower has no flwr.supernode.start_client_internal:_push_messages; its own behaviour remains"
    )


def test_sleep_is_capped_and_the_rest_of_time_is_unchanged(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    capped = flower_patches.CappedSleep(0.25)
    capped.sleep(3)
    capped.sleep(0.1)
    assert slept == [0.25, 0.1]
    assert capped.monotonic is time.monotonic


class Connection:
    """A connection to a SuperLink, which refuses a node that is connected."""

    def __init__(self) -> None:
        self.connected: set[int] = set()

    def activate(self, request):
        assert 5 not in self.connected
        self.connected.add(5)
        return SimpleNamespace(node_id=5)

    def DeactivateNode(self, request):
        self.connected.remove(request.node_id)


def test_a_killed_node_reconnects_at_once(tmp_path, monkeypatch):
    client = import_module("flwr.supernode.fleet_http_client").FleetHttpClient
    monkeypatch.setattr(client, "ActivateNode", Connection.activate)
    flower_patches.deactivate_previous_session(tmp_path / "node" / "signed-on")
    connection = Connection()
    for _ in range(2):
        assert client.ActivateNode(connection, None).node_id == 5
    assert (tmp_path / "node" / "signed-on").read_text() == "5"


def test_a_client_app_waits_for_its_message(monkeypatch):
    module = import_module("flwr.supernode.runtime.run_clientapp")
    responses = [[], [], ["message"]]

    class Client:
        def PullMessages(self, request):
            return SimpleNamespace(messages_list=responses.pop(0))

    monkeypatch.setattr(module, "RuntimeHttpClient", Client)
    flower_patches.wait_for_messages()
    assert module.RuntimeHttpClient().PullMessages(None).messages_list == ["message"]
    monkeypatch.setattr(flower_patches, "_MESSAGE_TIMEOUT", 0.0)
    responses.append([])
    assert module.RuntimeHttpClient().PullMessages(None).messages_list == []
