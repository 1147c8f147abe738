"""A configuration file of a quick run."""

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
