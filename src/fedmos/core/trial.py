"""A trial of a model on a few samples, before the first round.

The trial finds where dropout is applied and whether samples of a batch influence each other, and refuses models that
would train differently on each engine: those that keep state between forward passes or recompute activations.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from .dropout import SampleAxis
from .embeddings import scales_by_frequency
from .flat_model import FlatModel, ForwardTrace
from .module_kind import UnsuitableModel
from .module_state import attributes, buffers, changed, checksums, holds_tensor
from .outside_parameters import refuse_outside_parameters, without_values
from .random_draws import drawing_function, generator_state, refusal
from .sample_influence import MORE_ROWS, ROWS, close, mixes_others, repeated, varied

_log = logging.getLogger("fedmos")

_AT_ONCE = 2**20
"""Numbers of a gradient that are examined at once."""


def try_model(model: FlatModel, inputs: Tensor, sizes: Collection[int] = ()) -> None:
    """Run the model in training mode on a few samples, and note how it uses dropout and batches.

    Args:
        model: The model. Its `functional_positions` and `mixes_samples` are set.
        inputs: A few samples, ready for the model.
        sizes: Sizes of batches that the run will have.

    Raises:
        UnsuitableModel: If the model cannot be trained, in a sentence that says why and what to do.
    """
    batch = repeated(varied(inputs), ROWS)
    other = batch.clone()
    other[0] = batch[1]
    _check_dropout_is_off(model, batch)
    model.training_mode()
    generator = generator_state(model.device)
    with _first_is_padding(model, ROWS):
        first = _checked_pass(model, batch)
        second = model.trace(model.initial(), other)
        before = attributes(model.module)
        outputs = _differentiated_pass(model, batch)
        # An attribute that is set once, as a cache is, does not change in the third pass.
        _check_state(model, batch, (first.outputs, outputs), changed(before, attributes(model.module)))
    if not torch.equal(generator, generator_state(model.device)):  # although outputs for this batch are the same
        _refuse_draws(model, batch)
    if not close(model, first.outputs[1:], second.outputs[1:]) or mixes_others(model, batch, first.outputs, sizes):
        model.mixes_samples = model.mixes_in_evaluation = model.mixes_padding = True
    if model.mixes_in_evaluation:
        _log.warning(
            "The outputs of the model for a sample depend on the other samples of its batch, or on their number, which "
            "in evaluation are not those of training"
        )
    if scales_by_frequency(model.module):
        model.mixes_samples = model.mixes_in_evaluation = model.mixes_padding = True
    _check_evaluation(model, batch)
    _place_dropout(model, first, second, batch)
    model.least_batch = 2 if model.has_client_statistics and not _takes_one(model, batch[:1]) else 1


def _takes_one(model: FlatModel, sample: Tensor) -> bool:
    """Whether BatchNorm layers can normalise a single sample."""
    try:
        model.trace(model.initial(), sample)
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            return False
        raise
    return True


def _first_is_padding(model: FlatModel, rows: int) -> AbstractContextManager[None]:
    """Leave the first sample out of the statistics of BatchNorm layers that can do so."""
    if not model.has_client_statistics:
        return nullcontext()
    share = torch.full((rows,), 1 / (rows - 1), dtype=model.dtype, device=model.device)
    share[0] = 0
    return model.statistics.observed(share)


def _check_dropout_is_off(model: FlatModel, batch: Tensor) -> None:
    with model.evaluation_mode():
        if model.trace(model.initial(), batch).functional:
            raise UnsuitableModel(
                "Cannot evaluate the model because its dropout is on in evaluation mode, too, and draws from PyTorch's "
                "global generator; use F.dropout(x, p, training=self.training)"
            )


def _check_evaluation(model: FlatModel, batch: Tensor) -> None:
    """Refuse a model whose outputs in evaluation mode depend on earlier forward passes."""
    with model.evaluation_mode():
        before, first = attributes(model.module), model.trace(model.initial(), batch.clone())
        names = changed(before, attributes(model.module))
        if names and not close(model, first.outputs, model.trace(model.initial(), batch.clone()).outputs):
            raise UnsuitableModel(
                f"Cannot evaluate the model because its forward pass changes the attribute '{names[0]}', on which the "
                "outputs of the next one depend; use a forward pass that depends on its inputs and parameters only"
            )


def _checked_pass(model: FlatModel, batch: Tensor) -> ForwardTrace:
    """Return a forward pass; refuse one that changes buffers or parameters."""
    x, before = model.initial(), buffers(model.module)
    y = x.clone()
    trace = model.trace(y, batch.clone())  # the first pass finds out whether the model changes its inputs
    names = changed(before, buffers(model.module))
    if names:
        raise UnsuitableModel(
            f"Cannot train the model because it changes its buffers in training ('{names[0]}'), which clients would "
            f"share; use a layer without such buffers in place of {_holder(model, names[0])}, or call .eval() on it"
        )
    if not torch.equal(x, y) or y.untyped_storage().data_ptr() in trace.assigned:
        raise UnsuitableModel(
            "Cannot train the model because its forward pass changes its parameters in place; compute with a changed "
            "copy instead"
        )
    _check_constants(model, batch)
    return trace


def _check_constants(model: FlatModel, batch: Tensor) -> None:
    """Refuse a forward pass that changes frozen parameters or buffers through `.data`, which leaves no other trace.

    The parameters differ a little from the initial ones, which a copy of them, as of a momentum encoder, may equal.
    """
    before = checksums(model.module)
    if not before:
        return
    model.trace(1.01 * model.initial(), batch)
    names = changed(before, checksums(model.module))
    if names:
        raise UnsuitableModel(
            f"Cannot train the model because its forward pass changes '{names[0]}', which is not trained and which "
            "clients would share; use a forward pass that depends on its inputs and parameters only"
        )


def _holder(model: FlatModel, name: str) -> str:
    """Name the module that has a buffer."""
    owner = name.rpartition(".")[0]
    kind = type(model.module.get_submodule(owner)).__name__
    return f"{kind} ('{owner}')" if owner else kind


def _check_state(model: FlatModel, batch: Tensor, outputs: tuple[Tensor, Tensor], names: list[str]) -> None:
    """Refuse a model whose outputs for the same batch may depend on earlier forward passes."""
    states = [name for name in names if not holds_tensor(model.module, name)]
    same = close(model, *outputs)
    if states or (names and not same):
        name = (states or names)[0]
        raise UnsuitableModel(
            f"Cannot train the model because its forward pass changes the attribute '{name}', which clients would "
            "share and every engine would change in another order; use a forward pass that depends on its inputs and "
            "parameters only"
        )
    if names:
        _log.warning(
            "The model's forward pass sets the attribute '%s' to a tensor; the run ignores it, and its value after the "
            "run is not defined",
            names[0],
        )
    elif not same:
        _refuse_draws(model, batch)
        raise UnsuitableModel(
            "Cannot train the model because its output for the same samples changes from call to call; use a forward "
            "pass that depends on its inputs and parameters only"
        )


def _refuse_draws(model: FlatModel, batch: Tensor) -> None:
    """Refuse a model whose forward pass draws from the global generator."""
    where = drawing_function(lambda: model.trace(model.initial(), batch), model.module, model.device)
    if where is not None:
        raise UnsuitableModel(refusal(where))


def _differentiated_pass(model: FlatModel, batch: Tensor) -> Tensor:
    """Return the outputs of a forward pass, and run its backward pass; refuse activation checkpointing.

    Modules and functions that run again in the backward pass do not have the client's parameters there.
    """
    repeated: list[str] = []
    with torch.enable_grad():
        y = _leaves(model)
        outputs = model.trace(y, batch).outputs
        if not outputs.requires_grad and not model.personal_layers:
            raise UnsuitableModel(
                "Cannot train the model because its outputs are no differentiable function of its trainable "
                "parameters; use outputs that are computed without torch.no_grad(), detach() and argmax()"
            )
        if not outputs.requires_grad:
            return outputs
        refuse_outside_parameters(model, outputs)
        gradients: list[Tensor] = []
        hook = register_module_forward_pre_hook(lambda module, inputs: repeated.append(type(module).__name__))
        try:
            with without_values(model.trained):
                found = torch.autograd.grad(outputs.sum(), y, allow_unused=True)
            gradients = [v for v in found if v is not None]
        except Exception as error:
            if "checkpoint" in str(error):
                repeated.append("torch.utils.checkpoint")
            if not repeated:
                raise
        finally:
            hook.remove()
        if not _finite(gradients) and _has_finite_gradient(model, batch):
            repeated.append("torch.utils.checkpoint")
    if repeated:
        raise UnsuitableModel(
            f"Cannot train the model because it recomputes activations in the backward pass ({repeated[0]}); "
            "turn gradient checkpointing off"
        )
    return outputs.detach()


def _has_finite_gradient(model: FlatModel, batch: Tensor) -> bool:
    y = _leaves(model)
    found = torch.autograd.grad(model.trace(y, batch).outputs.sum(), y, allow_unused=True)
    return _finite([v for v in found if v is not None])


def _leaves(model: FlatModel) -> tuple[Tensor, ...]:
    """Return the initial parameters, one by one: the gradient of a vector would be a further copy."""
    return tuple(v.requires_grad_() for v in model.split(model.initial()))


def _finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(part.isfinite().all()) for v in tensors for part in v.flatten().split(_AT_ONCE))


def _place_dropout(model: FlatModel, first: ForwardTrace, second: ForwardTrace, batch: Tensor) -> None:
    """Find where the samples are in every tensor that dropout is applied to."""
    if not first.functional and not any(first.layers.values()):
        return
    with _first_is_padding(model, MORE_ROWS):
        larger = model.trace(model.initial(), repeated(batch, MORE_ROWS))
    layers = {
        name: _positions(calls, larger.layers[name], second.layers[name])
        for name, calls in first.layers.items()
        if calls
    }
    model.place_dropout(layers, _positions(first.functional, larger.functional, second.functional))


def _positions(calls: Sequence[Tensor], larger: Sequence[Tensor], other: Sequence[Tensor]) -> dict[int, SampleAxis]:
    triples = zip(calls, larger, other, strict=False)
    return {number: _position(*tensors) for number, tensors in enumerate(triples)}


def _position(call: Tensor, larger: Tensor, other: Tensor) -> SampleAxis:
    """Compare a tensor for a batch with those for a larger batch and for a batch with another first sample."""
    axes = [axis for axis, (n, more) in enumerate(zip(call.shape, larger.shape, strict=True)) if n != more]
    if not axes:
        return SampleAxis(axis=None)
    rows, rest = divmod(call.shape[axes[0]], ROWS)
    if len(axes) > 1 or rest or rows * MORE_ROWS != larger.shape[axes[0]]:
        raise UnsuitableModel(
            f"Cannot apply dropout to a tensor of shape {tuple(call.shape)} in a batch of {ROWS} samples because no "
            "axis holds the same number of rows for every sample; keep the samples on the first axis"
        )
    return SampleAxis(axes[0], rows, rows > 1 and _interleaved(call, other, axes[0], rows))


def _interleaved(call: Tensor, other: Tensor, axis: int, rows: int) -> bool:
    """Whether the rows of the first sample, which differ between the two tensors, are not adjacent."""
    differ: Any = (call != other).movedim(axis, 0).flatten(1).any(1)
    return bool(differ[rows:].any()) and not bool(differ.view(rows, ROWS)[:, 1:].any())
