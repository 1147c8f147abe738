"""Files for operating a deployment: server.toml, a reverse proxy, systemd units, and docker compose files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ...core.version import __version__
from ...storage.files import is_occupied

NGINX, SERVER_FILE = "nginx.conf", "server.toml"
SERVER_UNITS = ("fedmos-superlink.service", "fedmos-server-apps.service", "fedmos-proxy.service")
CLIENT_UNITS = ("fedmos-node.service", "fedmos-client-apps.service")
COMPOSE = ("compose-server.yaml", "compose-client.yaml", "Dockerfile")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_SUPERLINK = re.compile(r"(127\.0\.0\.1|localhost):[0-9]{1,5}")
_PATH = re.compile(r"/[A-Za-z0-9._/-]*")


@dataclass(frozen=True)
class Installation:
    """Where the server is reached, and where the files of an installation are.

    Args:
        host: The name or IPv4 address by which clients reach the server.
        port: The port of the reverse proxy.
        superlink: Address of the SuperLink, which only the proxy and the operator reach.
        keys: Folder of certificates, keys and the secret of apps.
        state: Folder of the database, Flower's files and the clients' state.
        programs: Folder of the programs `fedmos` and `flower-superlink`.
        test: The server's test samples, where clients have their own data; a file, or a folder of images.
    """

    host: str = "fl.example.org"
    port: int = 443
    superlink: str = "127.0.0.1:8000"
    keys: str = "/etc/fedmos"
    state: str = "/var/lib/fedmos"
    programs: str = "/opt/fedmos/bin"
    test: str = ""

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host):
            raise ValueError(f"Installation: 'host' must be a host name or an IPv4 address, got {self.host!r}")
        if not _SUPERLINK.fullmatch(self.superlink):
            raise ValueError(
                "Installation: 'superlink' must be 127.0.0.1:PORT or localhost:PORT, because whoever reaches it can "
                f"run code on all machines, got {self.superlink!r}"
            )
        for name in ("keys", "state", "programs", *(("test",) if self.test else ())):
            if not _PATH.fullmatch(getattr(self, name)):
                raise ValueError(
                    f"Installation: {name!r} must be an absolute path of letters, digits, '.', '_' and '-', "
                    f"got {getattr(self, name)!r}"
                )

    def text(self, name: str) -> str:
        """Return the content of one of the files."""
        values = {
            "HOST": self.host,
            "PORT": str(self.port),
            "SUPERLINK": self.superlink,
            "KEYS": self.keys,
            "STATE": self.state,
            "PROGRAMS": self.programs,
            "VERSION": __version__,
            "TEST": self._test_table(),
        }
        text = _template(name).replace("@SANDBOX@", _template("sandbox.txt").rstrip())
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        return text

    def _test_table(self) -> str:
        """Return the table `[test]` of server.toml, as a comment if there are no test samples."""
        kind = "file" if Path(self.test).suffix else "folder"
        return f'[test]\n{kind} = "{self.test}"' if self.test else '# [test]\n# file = "/srv/data/test.csv"'

    def write(self, folder: Path) -> list[Path]:
        """Write all files into a new or empty folder; returns their paths.

        Raises:
            FileExistsError: If the folder is not empty.
        """
        if is_occupied(folder):
            raise FileExistsError(f"Cannot write into {folder} because it is not empty; use another folder")
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / name for name in (NGINX, SERVER_FILE, *SERVER_UNITS, *CLIENT_UNITS, *COMPOSE)]
        for path in paths:
            path.write_text(self.text(path.name), "utf-8")
        return paths


def _template(name: str) -> str:
    return resources.files("fedmos.flower.local").joinpath("templates", name).read_text("utf-8")
