"""Federations made from others."""

import torch

import fedmos as fm


def poisoned(digits, client: int) -> fm.FederatedData:
    """The digits as numbers, with one client's so large that its update overflows."""
    clients = [(digits.normalize(x, torch.float32), y) for x, y in (digits.client(i) for i in range(len(digits)))]
    clients[client] = (torch.full_like(clients[client][0], 3e38), clients[client][1])
    return fm.FederatedData.from_arrays(clients)
