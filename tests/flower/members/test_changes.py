"""The files by which operators order changes, and the member list."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedmos[flower]'")
from fedmos.flower.members.changes import Change, Order, read_orders, write_order
from fedmos.flower.members.member_list import Applied, MemberList, RunLimits, RunPart
from helpers.command_line import command_line

RUN = "0" * 32


def member_list(*applied: tuple[Change, int], **given) -> MemberList:
    made = MemberList(initial=["a", "b", "c"], parts=[RunPart(RUN, 0)], **given)
    return replace(made, applied=[Applied(i, change, after) for i, (change, after) in enumerate(applied, start=1)])


def test_an_order_is_read_as_written(tmp_path):
    change = Change(kind="admit", client="d", samples=30, key="SHA256:" + "A" * 43)
    assert write_order(tmp_path, change) == 1
    ((number, read),), damaged = read_orders(tmp_path)
    assert (number, replace(read, ordered="")) == (1, change)
    assert read.ordered
    assert not damaged
    assert read_orders(tmp_path, known=[1]) == ([], {})
    assert (tmp_path / "changes").stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "changes").iterdir()] == ["000001.json"]


def test_orders_at_the_same_time_get_different_numbers(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda i: write_order(tmp_path, Change(kind="reset", client=f"c{i}")), range(24)))
    assert sorted(numbers) == list(range(1, 25))
    assert {order.change.client for order in read_orders(tmp_path)[0]} == {f"c{i}" for i in range(24)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"kind": "retire", "cli',
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100000,
        b'{"kind": "retire"}',
        b'{"kind": "retire", "client": 3}',
        b'{"kind": "retire", "client": "../x"}',
        b'{"kind": "retire", "client": "a", "samples": 3}',
        b'{"kind": "sell", "client": "a"}',
        b'{"kind": "samples", "client": "a", "samples": 0}',
        b'{"kind": "samples", "client": "a", "samples": true}',
        b'{"kind": "admit", "client": "a", "samples": 3, "key": "mine"}',
        b'{"kind": "rollback", "round": 1.5}',
        b'{"kind": "retire", "client": "a", "more": 1}',
    ],
)
def test_damaged_files_have_no_effect_and_hold_up_nothing(tmp_path, content):
    write_order(tmp_path, Change(kind="reset", client="a"))
    (tmp_path / "changes" / "000002.json").write_bytes(content)
    (tmp_path / "changes" / "notes.txt").write_text("not a change")
    write_order(tmp_path, Change(kind="reset", client="c"))
    orders, damaged = read_orders(tmp_path)
    assert [(order.number, order.change.client) for order in orders] == [(1, "a"), (3, "c")]
    assert list(damaged) == [2]
    assert "000002.json has no effect" in damaged[2]


def test_a_folder_that_cannot_be_read_stops_nothing(tmp_path, monkeypatch):
    """As after a command of another user, who owns the folder then."""

    def refused(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    write_order(tmp_path, Change(kind="retire", client="b"))
    monkeypatch.setattr(Path, "iterdir", refused)
    orders, damaged = read_orders(tmp_path)
    assert not orders
    assert list(damaged.values()) == [
        f"No change has an effect because {tmp_path}/changes cannot be read: Permission denied"
    ]


def test_a_member_list_is_read_as_written(tmp_path):
    assert MemberList.load(tmp_path) is None
    made = member_list(
        (Change(kind="retire", client="b"), 4),
        (Change(kind="admit", client="d", samples=9), 4),
        (Change(kind="samples", client="a", samples=12), 6),
        refused={9: "Cannot"},
        limits=RunLimits(own_data=False),
    )
    made = replace(made, parts=[RunPart(RUN, 0), RunPart("1" * 32, 4)])
    made.write(tmp_path)
    read = MemberList.load(tmp_path)
    assert read is not None
    assert read.names == ["a", "b", "c", "d"]
    assert (read.retired, read.samples, read.restarted) == ({1: 4}, {3: 9, 0: 12}, 6)
    assert (read.run, read.run_of(3), read.run_of(4)) == ("1" * 32, RUN, "1" * 32)
    assert (read.refused, read.limits, read.handled) == ({9: "Cannot"}, RunLimits(own_data=False), {1, 2, 3, 9})


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace(RUN, "../x"),
        lambda text: text.replace('"retire"', '"sell"'),
        lambda text: "[]",
        lambda text: "{}",
    ],
)
def test_a_damaged_member_list_is_refused(tmp_path, harm):
    member_list((Change(kind="retire", client="b"), 4)).write(tmp_path)
    path = tmp_path / "members.json"
    path.write_text(harm(path.read_text()))
    with pytest.raises(ValueError, match=r"because .*members\.json is damaged .*restore the file from a backup"):
        MemberList.load(tmp_path)


kinds = st.one_of(
    st.builds(lambda c: Change(kind="reset", client=c), st.sampled_from("abcde")),
    st.builds(lambda c: Change(kind="retire", client=c), st.sampled_from("abcde")),
    st.builds(lambda c: Change(kind="admit", client=c, samples=3), st.sampled_from("abcdeE")),
    st.builds(lambda c: Change(kind="samples", client=c, samples=5), st.sampled_from("abcde")),
)


@settings(deadline=None, max_examples=40, derandomize=True, database=None)
@given(st.lists(st.lists(kinds, max_size=3), max_size=5), st.integers(0, 5))
def test_any_changes_leave_a_consistent_member_list(tmp_path_factory, parts, back):
    """Numbers are never given twice, somebody is left, and the member list survives its file and a fall back."""
    made, number = member_list(), 0
    for t, changes in enumerate(parts):
        names = made.names
        orders = [Order(number + i, change) for i, change in enumerate(changes, start=1)]
        number += len(changes)
        made = made.with_orders(orders).with_part().dated(t)
        assert made.names[: len(names)] == names
    assert len({name.lower() for name in made.names}) == len(made.names)
    assert len(made.retired) < len(made.names)
    assert made.handled == set(range(1, number + 1))
    folder = tmp_path_factory.mktemp("member_list")
    made.write(folder)
    assert MemberList.load(folder).names == made.names
    fallen = made.dated(back)
    assert fallen.names == made.names
    assert [part.since for part in fallen.parts] == sorted({part.since for part in fallen.parts})
    assert fallen.run == made.run
    assert all((done.after or 0) <= back for done in fallen.applied)


LIMITS = {
    "admit, data of the configuration": (RunLimits(own_data=False), Change(kind="admit", client="x", samples=3)),
    "samples, data of the configuration": (RunLimits(own_data=False), Change(kind="samples", client="a", samples=3)),
    "retire, privacy": (RunLimits(private=True), Change(kind="retire", client="a")),
    "rollback, privacy": (RunLimits(private=True), Change(kind="rollback", round=3)),
    "reset, buffer": (RunLimits(buffered=True), Change(kind="reset", client="a")),
    "reset, undeclared sums": (RunLimits(undeclared="Mine"), Change(kind="reset", client="a")),
}


@pytest.mark.parametrize("name", LIMITS)
def test_changes_that_a_run_cannot_have(name):
    limits, change = LIMITS[name]
    with pytest.raises(ValueError, match=r"^Cannot .* because .*; .*"):
        member_list(limits=limits).check(change)
    (allowed,) = member_list(limits=limits).with_orders([Order(1, Change(kind="release", client="a"))]).applied
    assert allowed.change.kind == "release"


def command(run: Path, *arguments: str, code: int = 0) -> str:
    """What `fedmos deploy` says in a run folder."""
    done = command_line("deploy", *arguments, cwd=run)
    text = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert done.returncode == code, text
    return text


def test_the_commands_order_changes(tmp_path):
    member_list((Change(kind="retire", client="b"), 4)).write(tmp_path)
    key = "SHA256:" + "A" * 43
    assert "Ordered: c: retired" in command(tmp_path, "retire", "c")
    assert "Its number is 3" in command(tmp_path, "admit", "d", "--samples", "30", "--key", key)
    command(tmp_path, "reset", "d")
    command(tmp_path, "samples", "a", "77")
    command(tmp_path, "release", "a")
    shown = command(tmp_path, "members")
    assert "retired since round 5" in shown
    assert "before the next round: d: admitted" in shown
    kinds = [order.change.kind for order in read_orders(tmp_path)[0]]
    assert kinds == ["retire", "admit", "reset", "samples", "release"]
    assert read_orders(tmp_path)[0][1].change.key == key


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["retire", "x"], "Cannot retire 'x' because the run has no such client"),
        (["reset", "b"], "Cannot reset 'b' because it is retired"),
        (["admit", "a", "--samples", "3"], "Cannot admit 'a' because there is a client 'a'"),
        (["admit", "d", "--samples", "3", "--key", "SHA256:short"], "'key' must be a fingerprint"),
        (["rollback", "--round", "3"], "Cannot go back to round 3 because no checkpoint of it is kept"),
    ],
)
def test_the_commands_refuse_at_once(tmp_path, arguments, sentence):
    member_list((Change(kind="retire", client="b"), 4)).write(tmp_path)
    assert sentence in command(tmp_path, *arguments, code=2)
    assert not (tmp_path / "changes").exists()


def test_the_commands_need_a_run_folder(tmp_path):
    assert "must be the run folder of a deployment's server" in command(tmp_path, "retire", "a", code=2)


def test_the_member_list_is_json(tmp_path):
    member_list((Change(kind="retire", client="b"), 4)).write(tmp_path)
    content = json.loads((tmp_path / "members.json").read_text())
    assert content["applied"] == [{"number": 1, "after": 4, "change": {"kind": "retire", "client": "b", "ordered": ""}}]
