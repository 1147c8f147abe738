"""The protocol of secure aggregation without a network: exact sums, dropouts, and what the server sees."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmos.secure import masks, sizes
from fedmos.secure.client import ClientSession, Secrets
from fedmos.secure.server import TooFewClients
from helpers.secure import CONTEXT, LAYOUT, PARTS, Session, equal, forms, holds, member, memory_of

FOUR, SIXTEEN = [2, 3, 5, 7], list(range(10, 26))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("clients", "gone"), [(FOUR, []), (FOUR, [3]), (SIXTEEN, [25]), (SIXTEEN, [10, 17, 21])], ids=str
)
def test_sums_are_exact_whoever_leaves_in_which_part(clients, gone, part):
    session = Session(clients)
    sums = session.play({part: gone})
    left = clients if part == "unmask" else [i for i in clients if i not in gone]
    assert session.server.uploaded == left
    assert equal(sums, session.expected(left))


def test_clients_may_leave_in_every_part():
    session = Session(SIXTEEN)
    sums = session.play({"keys": [10], "shares": [11, 25], "upload": [14], "unmask": [12, 20]})
    assert equal(sums, session.expected([i for i in SIXTEEN if i not in (10, 11, 14, 25)]))


@pytest.mark.parametrize("part", PARTS)
def test_too_few_clients_leave_the_sum_masked(part):
    """Three of four: one upload would be no sum."""
    session = Session(FOUR)
    with pytest.raises(TooFewClients, match=r"1 clients .*, and 3 are needed"):
        session.play({part: FOUR[1:]})
    assert session.server is None or not holds(memory_of(session.server), patterns(session, FOUR))


def patterns(session, clients):
    """What must be nowhere: the upload of a client in every form, and with a part of its masks alone."""
    return [
        v
        for i in clients
        for name, vector in LAYOUT.items()
        if vector.size > 6
        for v in forms(session.values[i][name], vector.bits)
    ]


@pytest.mark.parametrize("leaving", [{}, {"shares": [11], "upload": [12], "unmask": [13]}], ids=str)
def test_the_server_never_holds_an_unmasked_upload(leaving):
    """Neither in a message nor in its memory; while the sum, which it decodes, is in its memory."""
    session = Session(SIXTEEN)
    sums = session.play(leaving)
    hidden = patterns(session, SIXTEEN)
    assert not holds(session.messages, hidden)
    memory = memory_of(session.server)
    assert not holds(memory, hidden)
    assert equal(sums, session.expected(session.server.uploaded))
    assert holds(memory, [sums["w delta"].tobytes()])
    # No sum of a part of the clients can be computed from single messages: each has masks of its own.
    uploads = [m for m in session.messages if len(m) == LAYOUT["w delta"].nbytes]
    assert len(uploads) == len(session.server.uploaded)
    for one, other in itertools.combinations(uploads, 2):
        a, b = (np.frombuffer(v, dtype="<u4").astype(np.int64) for v in (one, other))
        assert 0.35 < float(((a + b) & 0xFFFFFFFF).mean()) / 2**32 < 0.65
        assert one != other


def test_masked_entries_are_spread_over_the_whole_ring():
    session = Session(FOUR)
    for v in session.values.values():
        for values in v.values():
            values[:] = 1
    session.play()
    for message in (m for m in session.messages if len(m) == LAYOUT["w delta"].nbytes):
        entries = np.frombuffer(message, dtype="<u4")
        counts = np.bincount(entries >> 28, minlength=16)
        assert ((counts - 62.5) ** 2 / 62.5).sum() < 50  # χ² with 15 degrees of freedom: p = 1e-5
        assert len(np.unique(entries)) > 990


def test_bytes_of_messages_are_those_that_are_counted():
    session, n = Session(SIXTEEN), len(SIXTEEN)
    session.play()
    lengths = [len(m) for m in session.messages]
    up = sizes.sent_up(n) + sum(v.nbytes for v in LAYOUT.values())
    down = sizes.sent_down(n) - n * sizes.KEYS
    assert sum(lengths) == n * (up + down) + n * sizes.KEYS  # the keys of all are one message here


def test_a_session_repeats_its_replies_and_shares_no_mask_with_another():
    secrets, others = Secrets.new(), {i: Secrets.new() for i in (4, 9)}
    members = {1: member(secrets, 1)} | {i: member(v, i) for i, v in others.items()}
    values = {name: np.arange(v.size) for name, v in LAYOUT.items()}
    one, again = (ClientSession(secrets, CONTEXT, 1, 2) for _ in range(2))
    assert one.shares(members) == again.shares(members)
    assert one.masked(members, [1, 4, 9], values, LAYOUT) == again.masked(members, [1, 4, 9], values, LAYOUT)
    other = ClientSession(secrets, CONTEXT + "2", 1, 2)
    assert one.masked(members, [1, 4, 9], values, LAYOUT) != other.masked(members, [1, 4, 9], values, LAYOUT)
    assert one.keys()[64:] != other.keys()[64:]


def test_requests_that_reveal_more_are_refused():
    secrets = {i: Secrets.new() for i in (1, 4, 9)}
    members = {i: member(v, i) for i, v in secrets.items()}
    client = ClientSession(secrets[1], CONTEXT, 1, 2)
    values = {name: np.arange(v.size) for name, v in LAYOUT.items()}
    with pytest.raises(ValueError, match="with 1 clients because 2 are needed"):
        client.masked(members, [1], values, LAYOUT)
    with pytest.raises(ValueError, match="has left this client out"):
        client.masked(members, [4, 9], values, LAYOUT)
    with pytest.raises(ValueError, match="members of the session"):
        client.masked(members, [1, 4, 5], values, LAYOUT)
    with pytest.raises(ValueError, match="names other keys of this client"):
        client.shares(members | {1: members[4]})
    with pytest.raises(ValueError, match="two clients have the same key"):
        client.shares(members | {9: members[4]})
    sealed = b"".join(ClientSession(secrets[i], CONTEXT, i, 2).shares(members)[: sizes.SEALED] for i in (4, 9))
    assert len(client.unmask(members, [1, 4, 9], sealed, [1, 4])) == 3 * sizes.SHARE
    with pytest.raises(ValueError, match="with 1 clients because 2 are needed"):
        client.unmask(members, [1, 4, 9], sealed, [1])
    with pytest.raises(ValueError, match="Cannot decrypt the shares of client 4 because they were changed"):
        client.unmask(members, [1, 4, 9], bytes([sealed[0] ^ 1]) + sealed[1:], [1, 4])
    with pytest.raises(ValueError, match="Cannot decrypt the shares of client 4"):
        client.unmask(members, [1, 4, 9], sealed[sizes.SEALED :] + sealed[: sizes.SEALED], [1, 4])


@pytest.mark.parametrize("gone", [[], [7]], ids=["own mask", "shared masks"])
def test_wrong_shares_are_noticed(gone):
    """The sum would be random otherwise."""
    session = Session(FOUR)
    unmask = ClientSession.unmask

    def wrong(self, *given):
        answer = unmask(self, *given)
        return answer[:-1] + bytes([answer[-1] ^ 1]) if self.client == 2 else answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientSession, "unmask", wrong)
        with pytest.raises(ValueError, match="Cannot unmask the sum because shares of client 7 are wrong"):
            session.play({"upload": gone})


def test_integers_of_every_width_as_bytes():
    random = np.random.default_rng(0)
    for bits in range(8, 49):
        vector = masks.RingVector(50, bits)
        values = random.integers(-(2**62), 2**62, 50)
        data = masks.to_bytes(values, vector)
        assert len(data) == vector.nbytes == 50 * -(-bits // 8)
        sums = masks.zeros({"v": vector})
        for _ in range(3):
            masks.add_bytes(sums, {"v": vector}, {"v": data})
        assert bool(((sums["v"] - 3 * values) & ((1 << bits) - 1) == 0).all())
    with pytest.raises(ValueError, match="'v' must have 350 bytes, got 3"):
        masks.add_bytes(masks.zeros({"v": masks.RingVector(50, 50)}), {"v": masks.RingVector(50, 50)}, {"v": b"abc"})
