"""Copies of run folders that travel between machines."""

import shutil

import pytest

import fedmos as fm
from fedmos.storage.copies import FolderCopy, FolderReader, read_folder, write_folder
from fedmos.storage.files import replace_file


def contents(folder) -> dict[str, bytes]:
    return read_folder(folder).files


def test_a_copy_of_a_run_continues_to_the_same_bits(quick, tmp_path):
    how = {"algorithm": fm.Scaffold(lr=0.1), "engine": "batched", "checkpoint_every": 1}
    whole = quick(**how, rounds=6, out=tmp_path / "whole")
    quick(**how, rounds=3, out=tmp_path / "begun")
    (tmp_path / "begun/checkpoints/.000009.partial").mkdir()
    assert write_folder(tmp_path / "copy", read_folder(tmp_path / "begun"))
    shutil.rmtree(tmp_path / "begun")
    copied = quick(**how, rounds=6, out=tmp_path / "copy", resume=True)
    assert copied.params.equal(whole.params)
    assert "lock" not in read_folder(tmp_path / "copy").names
    assert not any(".partial" in name for name in read_folder(tmp_path / "copy").names)


def test_a_copy_without_checkpoints_starts_anew(quick, tmp_path):
    whole = quick(rounds=3, out=tmp_path / "whole")
    files = {name: v for name, v in contents(tmp_path / "whole").items() if not name.startswith("checkpoints")}
    assert len(files) >= 3
    assert write_folder(tmp_path / "copy", FolderCopy(list(files), files))
    assert quick(rounds=3, out=tmp_path / "copy", resume=True).params.equal(whole.params)


def test_changes_bring_a_copy_up_to_date(quick, tmp_path):
    """Also where checkpoints were removed, at any time."""
    source, target, reader = tmp_path / "source", tmp_path / "target", FolderReader(tmp_path / "source")
    states, sent = [], []
    for rounds in (1, 2, 4, 5):
        quick(rounds=rounds, out=source, resume=rounds > 1, checkpoint_every=1)
        states.append(reader.changes())
        assert reader.changes() is None
        assert write_folder(target, states[-1])
        assert contents(target) == contents(source)
        assert len(fm.Result.load(target).history) == rounds
        sent.append(sum(map(len, states[-1].files.values())))
    assert set(states[0].names) - set(states[-1].names)  # old checkpoints are gone
    assert sent[-1] < sum(map(len, contents(source).values()))


def test_incomplete_changes_are_refused(tmp_path):
    write_folder(tmp_path, FolderCopy(["a", "b/manifest.json"], {"a": b"1", "b/manifest.json": b"2"}))
    assert not write_folder(tmp_path, FolderCopy(["a", "c/state", "c/manifest.json"], {"c/manifest.json": b"3"}))
    assert contents(tmp_path) == {"a": b"1", "b/manifest.json": b"2"}


def test_a_manifest_is_written_last_and_removed_first(tmp_path, monkeypatch):
    write_folder(tmp_path, FolderCopy(["c/1/manifest.json", "c/1/a"], {"c/1/manifest.json": b"1", "c/1/a": b"1"}))
    written = []

    def full_disk(path, content):
        if len(written) == 1:
            raise OSError("full")
        written.append(path.name)
        replace_file(path, content)

    monkeypatch.setattr("fedmos.storage.copies.replace_file", full_disk)
    later = FolderCopy(["c/2/manifest.json", "c/2/z"], {"c/2/manifest.json": b"2", "c/2/z": b"2"})
    with pytest.raises(OSError, match="full"):
        write_folder(tmp_path, later)
    assert written == ["z"]
    assert "c/1/manifest.json" in contents(tmp_path)
