"""Configurations of quick runs."""

RUN = """
rounds = 2
local_steps = 2
batch_size = 4
target = { accuracy = 0.9 }

[data]
name = "digits"
clients = 20
partition = { name = "ByClass", classes = 2, size = [4, 20] }

[model]
name = "logistic"
features = 64

[algorithm]
name = "FedMoS"
lr = 0.05

[selection]
name = "ACS"
m = 5
"""

TABLE = {
    "rounds": 1,
    "local_steps": 2,
    "batch_size": 4,
    "engine": "loop",
    "device": "cpu",
    "data": {"name": "digits", "clients": 6},
    "model": {"name": "logistic", "features": 64},
}
"""A configuration without algorithm and selection."""
