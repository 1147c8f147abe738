"""Client of a SuperLink's control API, by Flower's command line: registers clients, and starts and monitors runs.

The command line is Flower's public interface to this API; every call is a process of `flwr`, and takes about a second.
"""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from ...storage.files import storage_errors
from ...storage.toml import dumps
from .environment import flower_environment
from .programs import program_path

CONNECTION = "fedmos"
"""Name of the SuperLink in the configuration of the command line."""
_REGISTERED = "already in use"
"""In Flower's answer to a key that is registered."""
_HEADING = "Using SuperLink:"
"""The begin of a line that `flwr` prints before its answer."""
_TIMEOUT = 120.0
_PARALLEL = 4


@dataclass(frozen=True)
class RunState:
    """The state of a Flower run."""

    status: str
    outcome: str
    details: str

    @property
    def ended(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self.status == "finished"

    @property
    def completed(self) -> bool:
        """Whether the run has ended successfully."""
        return self.outcome == "completed"

    @property
    def stopped(self) -> bool:
        """Whether an operator has stopped the run."""
        return self.outcome == "stopped"

    @property
    def raised(self) -> bool:
        """Whether the server app raised an exception, which a restart would repeat. False if it was killed."""
        return self.outcome == "failed" and self.details.startswith("ServerApp failed with exception")


class ControlClient:
    """The commands of `flwr` for one SuperLink.

    Args:
        address: Host and port of the SuperLink.
        authority: The certificate of the authority that signed the SuperLink's.
        home: Folder for the configuration of `flwr`, which names the SuperLink.
    """

    def __init__(self, address: str, authority: Path, home: Path) -> None:
        self._address = address
        with storage_errors(
            f"use the certificate {authority}", "see fedmos deploy doctor"
        ):  # ssl.SSLError is an OSError
            self._tls = ssl.create_default_context(cafile=str(authority))
        self._unanswered = ""
        self.environment = flower_environment(home, 1.0)
        home.mkdir(parents=True, exist_ok=True)
        connection = {"address": address, "root-certificates": str(authority.absolute())}
        superlinks = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (home / "config.toml").write_text(dumps(superlinks), "utf-8")

    def listening(self) -> bool:
        """Whether the SuperLink responds."""
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._tls))
        try:
            with opener.open(f"https://{self._address}/health", timeout=2) as response:
                return bool(response.status == 200)
        except (URLError, OSError) as error:
            self._unanswered = str(getattr(error, "reason", error))
            return False

    def wait(self, seconds: float = 60.0) -> None:
        """Wait until the SuperLink responds, which takes a few seconds after its start.

        Raises:
            TimeoutError: If it does not respond in time.
        """
        end = monotonic() + seconds
        while not self.listening():
            if monotonic() > end:
                raise TimeoutError(
                    f"The SuperLink at {self._address} does not answer: {self._unanswered}; see the log of its "
                    "process, and fedmos deploy doctor"
                )
            sleep(0.5)

    def register(self, public_key: Path) -> int | None:
        """Register a client's public key; returns the node id that Flower assigns, None if the key has one already."""
        try:
            return int(self._call("supernode", "register", str(public_key), CONNECTION)["node-id"])
        except RuntimeError as error:
            if _REGISTERED not in str(error):
                raise
            return None

    def register_all(self, public_keys: Sequence[Path]) -> None:
        """Register several keys, some at the same time."""
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(self.register, public_keys))

    def online(self) -> set[int]:
        """Return the ids of connected nodes."""
        nodes = self._call("supernode", "list", CONNECTION)["nodes"]
        return {int(node["node-id"]) for node in nodes if node["status"] == "online"}

    def start(self, app: Path, settings: Mapping[str, str | int | float | bool]) -> int:
        """Start an app and return the run's number; `settings` override those in its pyproject.toml."""
        values = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        options = ("--run-config", values) if values else ()
        return int(self._call("run", str(app), CONNECTION, *options)["run-id"])

    def state(self, run: int) -> RunState:
        """Return the state of a run."""
        (found,) = self._call("list", CONNECTION, "--run-id", str(run))["runs"]
        status, _, outcome = found["status"].partition(":")
        return RunState(status, outcome, found["status-details"])

    def stop(self, run: int) -> None:
        """Stop a run."""
        self._call("stop", str(run), CONNECTION)

    def follow_command(self, run: int) -> list[str]:
        """Return a command that prints the log of a run, and ends with the run."""
        return [program_path("flwr"), "log", str(run), CONNECTION, "--stream"]

    def _call(self, *arguments: str) -> dict[str, Any]:
        """Run `flwr` and return what it prints as JSON."""
        done = subprocess.run(
            [program_path("flwr"), *arguments, "--format", "json"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
        answer = _parse(done.stdout)
        if not answer.get("success"):
            command = " ".join(("flwr", *arguments))
            said = str(answer.get("error-message") or done.stderr or done.stdout).splitlines()
            reason = " ".join(line.strip() for line in said if line.strip() and not line.startswith(_HEADING))
            raise RuntimeError(f"Cannot run `{command}` because it fails: {reason or 'no reason given'}")
        return answer


def _parse(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return answer if isinstance(answer, dict) else {}
