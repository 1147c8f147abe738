"""Programs on a CPU that are recorded once and replayed, without the work of `vmap` and `grad` in Python.

A function of tensors calls the same PyTorch operators whenever it gets arguments of the same shapes. They are recorded
during one of its calls, and called directly from then on, some in a layout that is faster and has the same bits
(`kernels/cpu_layouts.py`). Reshapes that change nothing are left out, and small tensors that are the same in every call
are made once. A gradient of logistic regression takes a ninth of the time, one of a small convolutional network two
thirds.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from operator import getitem
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from ..kernels.cpu_layouts import rewrite

_log = logging.getLogger("fedmos")

CALLS_BEFORE = 2
"""The number of calls with arguments of a shape before one is recorded; some shapes never come again."""
_MOST_RECORDINGS = 32
_CALLS_BEFORE_CHECKS = 16
"""After so many calls, every call whose number is a power of two is compared with the function again."""

Function = Callable[..., Any]
"""A function of tensors that returns a tuple of tensors."""


class Recorded:
    """A function of tensors, which is replayed for shapes of arguments that come often.

    The first replay of a recording is compared with the function itself, on other arguments than it was recorded with.
    Without a replay of the same bits, the function is called as before. Later, replays are compared now and then, to
    find a function that depends on something that changes.

    Args:
        function: The function. It must depend on nothing but its arguments and on constants.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._calls: dict[object, int] = {}
        self._recordings: dict[object, Iterator[Function]] = {}
        """By shape, candidates for a replay, the fastest first."""
        self._verified: dict[object, Function] = {}

    def __call__(self, *arguments: Tensor) -> Any:
        shape = tuple((a.shape, a.stride()) for a in arguments)
        calls = self._calls[shape] = self._calls.get(shape, 0) + 1
        if shape in self._verified:
            values = self._verified[shape](*arguments)
            replayed = self._verified[shape] is not self._function
            if replayed and calls >= _CALLS_BEFORE_CHECKS and calls & (calls - 1) == 0:
                _check_same(self._function(*arguments), values)
            return values
        if shape in self._recordings:
            return self._verify(shape, arguments)
        if calls <= CALLS_BEFORE or len(self._recordings) == _MOST_RECORDINGS:
            return self._function(*arguments)
        return self._record(shape, arguments)

    def _record(self, shape: object, arguments: tuple[Tensor, ...]) -> Any:
        recorder = _Recorder(arguments)
        with recorder:
            values = self._function(*arguments)
        self._recordings[shape] = recorder.programs(values)
        return values

    def _verify(self, shape: object, arguments: tuple[Tensor, ...]) -> Any:
        values = self._function(*arguments)
        if all(bool(v.isfinite().all()) for v in values):  # others are equal to nothing
            same = (replay for replay in self._recordings[shape] if _same(values, replay, arguments))
            self._verified[shape] = next(same, self._function)
        return values


def _same(values: tuple[Tensor, ...], replay: Function, arguments: tuple[Tensor, ...]) -> bool:
    try:
        return all(map(torch.equal, values, replay(*arguments)))
    except Exception as error:
        _log.debug("A recorded program fails: %s", error)
        return False


def _check_same(values: tuple[Tensor, ...], replayed: tuple[Tensor, ...]) -> None:
    """Refuse a replay that differs by more than rounding."""
    for v, r in zip(values, replayed, strict=True):
        if not torch.equal(v, r) and bool(v.isfinite().all()) and bool((v - r).abs().amax() > 1e-2 * v.abs().amax()):
            raise ValueError(
                "Cannot train the model because its gradient for the same parameters and samples has changed during "
                "the run; use a forward pass that depends on its inputs and parameters only, or engine='loop'"
            )


_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Operators by which Python code gets to know values; a replay would go on with those of the recording."""

_aten = torch.ops.aten
_FILLED = {_aten.zeros_like.default, _aten.ones_like.default, _aten.full_like.default}
_FILLED |= {_aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default}
"""Operators that read only the shape of a tensor."""
_FIXED_ENTRIES = 4096
"""Larger tensors would occupy memory for longer, and the call that makes them takes a small part of the time."""


class _Recorder(TorchDispatchMode):
    """Records the operators that are called in a `with` block as a graph."""

    def __init__(self, arguments: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = fx.Graph()
        self._nodes: Any = WeakIdKeyDictionary()
        """By tensor, the node that computes it."""
        self._constants: dict[str, Tensor] = {}
        self._views: Any = WeakIdKeyDictionary()
        """By memory of arguments and of what was computed from them, the nodes of the tensors in it."""
        self._problem: str | None = None
        """Why the operators cannot be replayed."""
        for number, v in enumerate(arguments):
            self._note(v, self._graph.placeholder(f"argument_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True imports torch._dynamo, which takes a second; nothing is compiled here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        named = tree_map_only(Tensor, self._node, given)
        values = func(*given[0], **given[1])
        node = self._graph.call_function(func, *named)
        if isinstance(values, Tensor) and not _writes(func):
            node = self._same_view(values) or node
        if _varies(node) and not _READS.isdisjoint(getattr(func, "tags", ())):
            self._problem = f"{func} reads values that differ from call to call"
        if isinstance(values, Tensor):
            self._note(values, node)
        elif isinstance(values, tuple | list):
            node.meta["varies"] = _varies(node)
            for place, v in enumerate(values):
                if isinstance(v, Tensor):
                    self._note(v, self._graph.call_function(getitem, (node, place)))
        return values

    def _note(self, v: Tensor, node: fx.Node) -> None:
        self._nodes[v] = node
        varies = _varies(node)
        if varies and v.layout is torch.strided:
            self._views.setdefault(v.untyped_storage(), {})[_view(v)] = node
        node.meta |= {"shape": v.shape, "stride": v.stride(), "varies": varies}
        if _is_fixed(node) and v.numel() <= _FIXED_ENTRIES:
            node.meta["fixed"] = v

    def _same_view(self, v: Tensor) -> fx.Node | None:
        """Return the node of a tensor with the same entries in the same memory, as a reshape to the same shape has."""
        found: dict[object, fx.Node] = self._views.get(v.untyped_storage(), {}) if v.layout is torch.strided else {}
        return found.get(_view(v))

    def programs(self, values: tuple[Tensor, ...]) -> Iterator[Function]:
        """Return functions that call the operators again and return what has become of `values`, the fastest first."""
        self._graph.output(tuple(map(self._node, values)))
        if self._problem is not None:
            _log.debug("A program is not recorded: %s", self._problem)
            return iter(())
        self._compute_fixed()
        self._graph.eliminate_dead_code()
        return self._variants()

    def _variants(self) -> Iterator[Function]:
        for changes in ((rewrite, _call_directly), (rewrite,), ()):
            try:
                graph = copy.deepcopy(self._graph)
                for change in changes:
                    change(graph)
                module = fx.GraphModule(self._constants, graph)
                vars(module).update(self._constants)  # found in half the time it takes to find buffers
                yield module.forward
            except Exception as error:  # an operator with arguments that a graph cannot hold
                _log.debug("A program cannot be recorded: %s", error)

    def _compute_fixed(self) -> None:
        """Replace small tensors that every call makes of the same numbers by constants, if nothing is written to."""
        nodes = list(self._graph.nodes)
        returned = nodes[-1].all_input_nodes  # callers may write to what they get
        if any(_writes(node.target) for node in nodes) or any("fixed" in node.meta for node in returned):
            return
        for node in nodes:
            if (v := node.meta.pop("fixed", None)) is not None:
                with self._graph.inserting_before(node):
                    node.replace_all_uses_with(self._constant(v), propagate_meta=True)

    def _constant(self, v: Tensor) -> fx.Node:
        name = f"constant_{len(self._constants)}"
        self._constants[name] = v
        return self._graph.get_attr(name)

    def _node(self, v: Tensor) -> fx.Node:
        """Return the node of a tensor; one that was not computed in the block is a constant."""
        if v not in self._nodes:
            if v.layout is torch.strided and v.untyped_storage() in self._views:
                self._problem = "a tensor was computed in a way that cannot be recorded"
            self._note(v, self._constant(v))
        node: fx.Node = self._nodes[v]
        return node


def _call_directly(graph: fx.Graph) -> None:
    """Replace operators by PyTorch's functions of the same names, whose calls take half the time of `torch.ops`."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            name = node.target.name().removeprefix("aten::").partition(".")[0]
            for owner, kind in ((torch, BuiltinFunctionType), (Tensor, MethodDescriptorType)):
                if isinstance(function := getattr(owner, name, None), kind):
                    node.target = function
                    break


def _writes(operator: Any) -> bool:
    """Whether an operator changes one of its arguments in place."""
    return isinstance(operator, torch._ops.OpOverload) and bool(operator._schema.is_mutable)


def _is_fixed(node: fx.Node) -> bool:
    """Whether a node computes the same in every call: of numbers, shapes and the results of such nodes."""
    inputs = node.all_input_nodes
    return node.op == "call_function" and (node.target in _FILLED or all("fixed" in n.meta for n in inputs))


def _view(v: Tensor) -> object:
    """Identify a tensor among those in its memory."""
    return v.storage_offset(), v.shape, v.stride(), v.dtype, v.is_conj(), v.is_neg()


def _varies(node: fx.Node) -> bool:
    """Whether a node is an argument of the program, or computed from one."""
    return node.op == "placeholder" or any(n.meta.get("varies") for n in node.all_input_nodes)
