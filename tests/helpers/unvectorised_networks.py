"""Networks of users that are trained client by client, each with the reason that the log gives."""

import math

import numpy as np
import torch
from torch import nn

from .user_networks import Case, Reversed, linear, rows


class StraightThrough(torch.autograd.Function):
    """The style of PyTorch before 2.0: `forward` takes ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * (x.abs() < 1)


CLIENT_BY_CLIENT: dict[str, tuple[Case, str]] = {}


def refused(sentence, **parts):
    """Register a network of rows that is trained client by client, and the reason that the log gives."""

    def register(function):
        both = {"a": linear(8, 8), "head": linear(8, 3)} | parts
        CLIENT_BY_CLIENT[function.__name__] = (Case(function, rows, both), sentence)
        return function

    return register


@refused(r"Net: StraightThrough is a torch\.autograd\.Function .*move what uses ctx from forward to setup_context")
def old_function(net, x):
    return net.head(StraightThrough.apply(net.a(x)))


@refused(r"Net: Reversed is a torch\.autograd\.Function without a rule for vmap \(set generate_vmap_rule = True")
def function_without_rule(net, x):
    return net.head(Reversed.apply(net.a(x)))


@refused("Net: it reads the value of a tensor")
def value_in_python(net, x):
    h = net.a(x)
    return net.head(h / h.detach().abs().max().clamp(min=math.inf).item() + h)


@refused(r"Net: it reads a tensor by \.tolist\(\) or \.numpy\(\)")
def numpy_in_between(net, x):
    return net.head(net.a(x) + torch.from_numpy(np.sin(x.detach().cpu().numpy())).to(x))


@refused(r"Net: the shape of a tensor depends on the data")
def selected_rows(net, x):
    y = torch.zeros_like(x)
    (positive,) = torch.where(x[:, 0] > 0)
    y[positive] = net.a(x[positive])
    return net.head(y)


@refused(r"Net: it calls requires_grad_\(\) or torch\.autograd\.grad in its forward pass \(use torch\.func\.grad\)")
def gradients_of_inputs(net, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (dx,) = torch.autograd.grad(net.a(x).tanh().sum(), x, create_graph=True)
    return net.head(dx)


@refused("Net: it calls a function that torch.compile made")
def compiled_function(net, x):
    return net.head(_compiled(net.a(x)))


_compiled = torch.compile(torch.tanh, backend="eager")


@refused(r"the model returns a tensor of shape \(3,\) for one sample instead of \(1, 3\) \(use squeeze\(1\) or flatten")
def axes_of_one_removed(net, x):
    return net.head(net.a(x).unsqueeze(1).squeeze())


@refused("it uses a sparse tensor")
def sparse_constant(net, x):
    return net.head(net.constant(net.a(x)))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(8).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.matrix, x.T).T


CLIENT_BY_CLIENT["sparse_constant"][0].parts["constant"] = Sparse
