"""Accelerators on versions of Flower that they do not know, and the commands of Flower's own command line."""

import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")

from fedmos.flower.local import flower_patches, superexec, supernode
from fedmos.flower.local.certificates import make_certificates
from fedmos.flower.local.control import ControlClient, RunState


@pytest.mark.parametrize(
    ("installed", "known"), [("1.41.0", True), ("1.42.3", True), ("1.43.0", False), ("1.4.1", False), ("2.0", False)]
)
def test_only_known_versions_are_accelerated(monkeypatch, caplog, installed, known):
    monkeypatch.setattr(flower_patches, "version", lambda package: installed)
    with caplog.at_level(logging.WARNING, "fedmos"):
        assert flower_patches.known_version() is known
    assert bool(caplog.messages) is not known
    if not known:
        assert caplog.messages[0].startswith(f"Flower {installed} is not one of the versions that fedmos accelerates")


class Program:
    """Notes the arguments of a program instead of running it."""

    def __init__(self, monkeypatch) -> None:
        self.arguments = None
        monkeypatch.setattr(sys, "argv", [])
        self.name = ""

    def load(self):
        def program():
            self.arguments = list(sys.argv)

        return program


def patch_names() -> list[int]:
    return [id(flower_patches._lookup(name)) for name in flower_patches.PATCHED]


@pytest.mark.parametrize("given", [["--plain"], []])
def test_a_node_is_flowers_own_without_acceleration(monkeypatch, tmp_path, given):
    program, before = Program(monkeypatch), patch_names()
    monkeypatch.setattr(supernode, "entry_points", lambda group, name: [program])
    patches = supernode._load_patches()
    monkeypatch.setattr(patches, "version", lambda package: "9.9.9")
    monkeypatch.setattr(supernode, "_load_patches", lambda: patches)
    sys.argv = ["x", *given, "--poll", "0.1", "--memory", str(tmp_path / "m"), "--superlink", "host:1"]
    supernode.main()
    assert program.arguments == ["flower-supernode", "--superlink", "host:1"]
    assert patch_names() == before
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("given", [["--plain"], []])
def test_apps_are_run_by_flowers_own_program_without_acceleration(monkeypatch, tmp_path, given):
    before, program = patch_names(), Program(monkeypatch)
    monkeypatch.setattr(flower_patches, "version", lambda package: "9.9.9")
    monkeypatch.setattr(superexec, "load_program", lambda name: program.load())
    monkeypatch.setattr(superexec, "serve_all", lambda *given: None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    sys.argv = ["x", *given, "--secret", "secret", "--supernode", "127.0.0.1:9", "--any-app"]
    superexec.main()
    assert program.arguments == [
        *("flower-superexec", "--runtime-api-address", "127.0.0.1:9", "--insecure"),
        *("--superexec-auth-secret-file", "secret"),
    ]
    assert patch_names() == before


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A client whose `flwr` prints an answer and notes its arguments."""
    program = tmp_path / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncat {tmp_path}/answer\n')
    program.chmod(0o755)
    monkeypatch.setattr("fedmos.flower.local.control.program_path", lambda name: str(program))
    certificates = make_certificates(tmp_path / "ca", ["127.0.0.1"])
    client = ControlClient("127.0.0.1:1", certificates.authority, tmp_path / "home")
    client.answer = lambda **given: (tmp_path / "answer").write_text(json.dumps(given))
    client.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    return client


class TestControl:
    def test_it_registers_and_lists_nodes(self, control):
        control.answer(success=True, **{"node-id": 7})
        assert control.register(Path("key.pub")) == 7
        control.answer(
            success=False, **{"error-message": "Using SuperLink: x\n\n[code: 23] Public key already in use."}
        )
        assert control.register(Path("other.pub")) is None
        nodes = [{"node-id": "7", "status": "online"}, {"node-id": "8", "status": "registered"}]
        control.answer(success=True, nodes=nodes)
        assert control.online() == {7}
        register, _, online = control.calls()
        assert register == "supernode register key.pub fedmos --format json"
        assert online == "supernode list fedmos --format json"

    def test_it_starts_and_stops_runs(self, control):
        control.answer(success=True, **{"run-id": "5"})
        assert control.start(Path("app"), {"out": '/a "b"', "x": 1}) == 5
        control.stop(5)
        start, stop = control.calls()
        assert start == r'run app fedmos --run-config out="/a \"b\"" x=1 --format json'
        assert stop == "stop 5 fedmos --format json"

    @pytest.mark.parametrize(
        ("status", "state"),
        [("running", RunState("running", "", "")), ("finished:failed", RunState("finished", "failed", ""))],
    )
    def test_it_reads_the_state_of_a_run(self, control, status, state):
        control.answer(success=True, runs=[{"status": status, "status-details": ""}])
        assert control.state(5) == state
        assert state.ended is (status != "running")

    def test_an_error_is_raised_with_its_reason(self, control):
        control.answer(success=False, **{"error-message": "Using SuperLink: x\n\n[code: 9] Run not found."})
        with pytest.raises(RuntimeError, match=r"`flwr stop 5 fedmos` because it fails: \[code: 9\] Run not found\."):
            control.stop(5)

    def test_nobody_listens(self, control):
        assert not control.listening()


def test_the_configuration_names_the_superlink(control, tmp_path):
    import tomllib

    made = tomllib.loads((tmp_path / "home" / "config.toml").read_text())
    assert made["superlink"]["fedmos"]["address"] == "127.0.0.1:1"
    assert os.path.isabs(made["superlink"]["fedmos"]["root-certificates"])


def test_a_node_whose_connection_has_ended_ends(monkeypatch, capsys):
    """Flower's function returns then, and other threads of Flower would keep the process alive."""
    ended = []
    monkeypatch.setattr(sys, "argv", ["supernode.py", "--plain"])
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(supernode, "entry_points", lambda **given: [SimpleNamespace(load=lambda: lambda: None)])
    supernode.main()
    assert ended == [1]
    assert "has given up its connection to the server" in capsys.readouterr().err
