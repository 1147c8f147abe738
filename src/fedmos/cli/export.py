"""`fedmos export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

console = Console(emoji=False)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of the command line.")],
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="state_dict, torch_export or onnx.")
    ] = "state_dict",
    out: Annotated[
        Path | None, typer.Option(help="The file to write (default: model.SUFFIX in RUN, or best.SUFFIX).")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best model instead of the last, of a run with keep_best.")
    ] = False,
) -> None:
    """Write the trained model to a file for use elsewhere.

    state_dict: the weights (safetensors); the normalisation of inputs is in the file's metadata.
    torch_export, onnx: a program that takes inputs before normalisation, in batches of any size.
    """
    from ..run.export import SUFFIXES, ExportFormat
    from ..run.model_source import UnknownModelError
    from ..run.result import Result

    result = Result.load(run).at_best() if best else Result.load(run)
    path = out or run / f"{'best' if best else 'model'}{SUFFIXES.get(format, '')}"
    try:
        result.export(path, cast(ExportFormat, format))
    except UnknownModelError:
        raise ValueError(
            f"Cannot export {run} from the command line because its folder does not name the model; "
            f"use fedmos.Result.load({str(run)!r}, model){'.at_best()' if best else ''}"
            f".export({str(path)!r}, {format!r}) in Python"
        ) from None
    console.print(f"Model after round {len(result.history)}: {path}", highlight=False, markup=False)
    if format == "state_dict":
        console.print(_preparation(result.info.inference), highlight=False, markup=False)


def _preparation(record: dict[str, object] | None) -> str:
    """Return what the inputs of a model without its normalisation must be."""
    if record is None:
        return "The run did not record how its inputs were normalised."
    normalize = cast("dict[str, object] | None", record["normalize"])
    if normalize is None:
        return "Inputs are not normalised."
    return f"Inputs are (x / {normalize['scale']} - {normalize['mean']}) / {normalize['std']}."
