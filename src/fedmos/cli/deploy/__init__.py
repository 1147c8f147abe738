"""`fedmos deploy`: run a configuration on real clients, over Flower.

Each module registers its commands at `common.app` when it is imported.
"""

from importlib import import_module

from .common import app

_MODULES = ("init", "keys", "client", "operate", "local", "processes", "status", "members", "export")  # as in `--help`

for _module in _MODULES:
    import_module(f".{_module}", __name__)

__all__ = ["app"]
