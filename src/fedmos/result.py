"""What a run returns."""

from __future__ import annotations

import copy
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from .algorithm import Vectors
from .history import History, Record
from .params import load_flat

FORMAT = 1


@dataclass(eq=False, kw_only=True)
class Result:
    """Model, state and history of a run, finished or interrupted."""

    params: Tensor
    """The final model's trainable parameters as a flat CPU tensor, in the order of `model.named_parameters()`."""
    history: History
    server_state: Vectors
    clients: Mapping[int, Vectors] = field(repr=False)
    """The state of every client that keeps any; large ones are read from disk as they are asked for."""
    last: Tensor = field(repr=False)
    """The round, from 0, in which each client last took part; −1 for never."""
    selection: Vectors = field(repr=False)
    """What the selector and the engine remember of clients: reports, counts, the selector's own state."""
    info: dict[str, Any]
    """What ran, in words and numbers: algorithm, selection, engine, dtype, …"""
    interrupted: bool = False
    """Whether the run was stopped from outside before its last round."""
    _model: nn.Module | None = field(default=None, repr=False)

    @property
    def model(self) -> nn.Module:
        """The caller's module with the final parameters."""
        if self._model is None:
            raise ValueError("Cannot give the model because only its numbers were saved; use Result.load(path, model)")
        return self._model

    def client_state(self, i: int) -> Vectors:
        """What client i keeps; empty if the algorithm keeps nothing or the client never took part."""
        return self.clients.get(int(i), {})

    def rounds_to(self, metric: str, target: float) -> int | None:
        """The first round, from 1, whose metric reached the target; None if none did."""
        record = self.history.first(metric, target)
        return None if record is None else record.round

    def bytes_to(self, metric: str, target: float) -> int | None:
        """Bytes sent, down and up, until then; None if never."""
        record = self.history.first(metric, target)
        return None if record is None else self.history.bytes_until(record)

    def time_to(self, metric: str, target: float) -> float | None:
        """Simulated seconds until then; None if never, or if the run had no clock (`system=`)."""
        record = self.history.first(metric, target)
        return None if record is None else record.clock

    @property
    def short_rounds(self) -> int:
        """In how many rounds fewer clients were available than the cohort was to have."""
        return sum(record.short for record in self.history)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result into a folder, over an earlier result if there is one; readers never see half of it.

        Tensors go into a new file, then `result.json` is replaced by one that names it.
        """
        path = Path(path)
        if not may_hold_result(path):
            raise FileExistsError(f"Cannot save the result in {path} because it holds something else; use a new folder")
        tensors = {"params": self.params, "last": self.last}
        tensors |= {f"server.{name}": v for name, v in self.server_state.items()}
        tensors |= {f"selection.{name}": v for name, v in self.selection.items()}
        tensors |= {f"client.{i}.{name}": v for i, own in self.clients.items() for name, v in own.items()}
        path.mkdir(parents=True, exist_ok=True)
        old = set(path.glob("tensors-*.safetensors"))
        name = f"tensors-{len(self.history)}-{secrets.token_hex(4)}.safetensors"
        meta = {"format": FORMAT, "tensors": name, "info": self.info, "interrupted": self.interrupted}
        text = json.dumps(meta | {"history": self.history.to_records()})
        new = [path / name, path / f".{name}.json"]
        try:
            safetensors.torch.save_file({name: v.contiguous() for name, v in tensors.items()}, new[0])
            new[1].write_text(text)
            new[1].replace(path / "result.json")
        except BaseException:
            for file in new:
                file.unlink(missing_ok=True)
            raise
        for file in old:
            file.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | None = None) -> Result:
        """Read a saved result; with `model`, a module of the run's shape, its `model` is available too."""
        path = Path(path)
        try:
            meta = json.loads((path / "result.json").read_text())
            if meta["format"] != FORMAT:
                raise ValueError(f"they are of format {meta['format']!r}, and this fedmos reads {FORMAT}")
            tensors = safetensors.torch.load_file(path / Path(meta["tensors"]).name)
            history = History([Record(**record) for record in meta["history"]])
            params, last = tensors.pop("params"), tensors.pop("last")
            info, interrupted = meta["info"], meta["interrupted"]
        except (FileNotFoundError, NotADirectoryError) as error:
            what = (
                "there is none" if Path(str(error.filename)).name == "result.json" else f"{error.filename} is missing"
            )
            raise FileNotFoundError(f"Cannot load a result from {path} because {what}") from None
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            raise ValueError(f"Cannot load a result from {path} because its files are damaged: {error}") from error
        server: Vectors = {}
        clients: dict[int, Vectors] = {}
        selection: Vectors = {}
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "server":
                server[rest] = value
            elif kind == "selection":
                selection[rest] = value
            else:
                i, _, name = rest.partition(".")
                clients.setdefault(int(i), {})[name] = value
        return cls(
            params=params,
            history=history,
            server_state=server,
            clients=clients,
            last=last,
            selection=selection,
            info=info,
            interrupted=interrupted,
            _model=None if model is None else _filled(model, params),
        )


def may_hold_result(path: Path) -> bool:
    """Whether a folder is new, empty, or a result's."""
    return not path.exists() or (path / "result.json").exists() or (path.is_dir() and not any(path.iterdir()))


def _filled(model: nn.Module, params: Tensor) -> nn.Module:
    model = copy.deepcopy(model).to(device=torch.device("cpu"), dtype=params.dtype)
    load_flat(model, params)
    return model
