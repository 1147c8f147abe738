"""Our SuperNode's loop, made of Flower's own functions and stores, without a network."""

import threading
import time
from importlib import import_module

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

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
    from fedmos.flower.local.node import OrderedReplies

    loop = import_module("flwr.supernode.start_client_internal")
    pull, push = loop._pull_and_store_message, loop._push_messages
    in_step = OrderedReplies(pull, push)
    node = Node(in_step.pull, in_step.push) if ours else Node(pull, push)
    assert not node.pull("one of a run that ends", ends=True)
    node.answer()
    assert node.pull("two")
    late = threading.Timer(0.2, node.answer)
    late.start()
    node.push()
    assert node.sent == ["one of a run that ends", "two"][: 2 if ours else 1]
    late.join()
