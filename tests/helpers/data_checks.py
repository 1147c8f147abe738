"""Checks of generated arrays and splits."""

import fedmos as fm
from helpers.data_fuzz import outcome


def check_arrays(arguments, model, loss, train=True):
    return outcome(lambda: fm.FederatedData.from_arrays(**arguments), model, loss, train)


def check_split(split, train=True):
    dataset, parts, clients = split
    return outcome(lambda: dataset.partition(fm.partition.Fixed(parts), clients), "linear", "cross_entropy", train)
