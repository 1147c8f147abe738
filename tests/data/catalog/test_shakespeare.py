"""Shakespeare's plays as federated text."""

import json

import numpy as np
import pytest

import fedmos as fm
from fedmos.data import datasets
from fedmos.data.catalog import characters, plays
from fedmos.data.catalog.entries import SYMBOLS

pytestmark = pytest.mark.usefixtures("home")


def test_shakespeare_is_included_in_the_package():
    found = datasets.find("shakespeare")
    data = found.dataset
    assert found.status == "as published"
    assert data.x_train.shape == (804_180, 80)
    assert data.x_test.shape == (184_126, 80)
    assert data.classes == 80
    assert len(data.owners) == 256
    assert int(data.x_train.max()) < 80
    sizes = np.bincount(data.owner)
    assert sizes.min() == 1
    assert data.owners[int(sizes.argmax())] == "GLOUCESTER"
    first = "".join(SYMBOLS[i] for i in data.x_train[0])
    assert first == "Before we proceed any further, hear me speak.\nYou are all resolved rather to die"
    assert SYMBOLS[data.y_train[0]] == " "
    assert np.array_equal(data.x_train[1, :-1], data.x_train[0, 1:])  # the next window is one further
    assert data.x_train[1, -1] == data.y_train[0]
    clients = data.partition(fm.partition.Natural(least=2000, most=2000))
    assert len(clients) > 50
    assert set(clients.sizes.tolist()) == {2000}


def test_the_alphabet_is_leaf_s():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 80
    assert characters.codes("\n !}").tolist() == [0, 1, 2, 79]
    assert characters.codes("$é€\ud800").tolist() == [79] * 4  # LEAF's −1, the last symbol
    assert characters.codes("“don’t”—").tolist() == characters.codes('"don\'t"-').tolist()


def test_roles_speak_in_turn_and_are_split_in_time(tmp_path):
    text = "ROMEO:\nIs the day so young?\n\nBENVOLIO:\nBut new struck nine.\n\nROMEO:\nAy me!\nsad hours: seem long.\n"
    assert plays.roles(text) == {
        "ROMEO": "Is the day so young?\nAy me!\nsad hours: seem long.",
        "BENVOLIO": "But new struck nine.",
    }
    gutenberg = "ACT I\n\n\nROMEO.\r\nIs the day so young?\r\n\r\nBENVOLIO.\r\nBut new struck nine.\r\n"
    assert plays.roles(gutenberg) == {"ROMEO": "Is the day so young?", "BENVOLIO": "But new struck nine."}

    speech = "".join(chr(97 + i % 26) for i in range(580))
    (tmp_path / "play.txt").write_text(f"ROMEO:\n{speech}\n\nGHOST:\nAy me!\n", encoding="utf-8")
    data = fm.datasets.load("shakespeare", tmp_path / "play.txt")
    assert data.owners == ["ROMEO"]  # the ghost has too little to say
    assert (len(data.x_train), len(data.x_test)) == (400, 21)
    assert np.array_equal(data.x_test[0], characters.codes(speech[479:559]))
    assert data.y_test[0] == characters.codes(speech[559])[0]


def test_leaf_s_own_files_are_read(tmp_path):
    text = "Neither a borrower nor a lender be; For loan oft loses both itself and friend. " * 6
    x, y = ([text[i : i + 80] for i in range(200)], [text[i + 80] for i in range(200)])
    leaf = {"users": ["POLONIUS"], "num_samples": [200], "user_data": {"POLONIUS": {"x": x, "y": y}}}
    (tmp_path / "data" / "all_data").mkdir(parents=True)
    whole = tmp_path / "data" / "all_data" / "all_data.json"
    whole.write_text(json.dumps(leaf))
    for root in (tmp_path, whole):
        data = fm.datasets.load("shakespeare", root)
        assert len(data.x_train) == 160
        assert data.x_test is None  # all of what is left overlaps with the training samples
    for part, few in (("train", slice(0, 150)), ("test", slice(150, 200))):
        (tmp_path / "split" / part).mkdir(parents=True)
        one = {"users": ["POLONIUS"], "user_data": {"POLONIUS": {"x": x[few], "y": y[few]}}}
        (tmp_path / "split" / part / "a.json").write_text(json.dumps(one))
    data = fm.datasets.load("shakespeare", tmp_path / "split")
    assert (len(data.x_train), len(data.x_test)) == (150, 50)
    assert data.owners == ["POLONIUS"]
