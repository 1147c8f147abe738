"""A client app whose client 1 sends something else in every round: copied into an app in place of its own."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp

from fedmos.flower import client_app

honest = client_app(Path(__file__).with_name("run.toml"))
app = ClientApp()


def with_delta(content, **changes):
    array = content["vectors"]["delta"]
    given = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    content["vectors"] = ArrayRecord({"delta": Array(**given | changes)})


def nan(content):
    D = content["vectors"]["delta"].shape[0]
    with_delta(content, data=np.full(D, np.nan, dtype="<f4").tobytes())


def wrong_shape(content):
    D = content["vectors"]["delta"].shape[0]
    with_delta(content, shape=(1, D))


def wrong_dtype(content):
    with_delta(content, dtype="float64", data=content["vectors"]["delta"].data * 2)


def missing_field(content):
    del content["vectors"]


def object_array(content):
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"cos\nsystem\n."
    with_delta(content, dtype="object", stype="numpy.ndarray", data=data)


def huge_header(content):
    with_delta(content, shape=(10**15,), data=b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 10**6)


def last_rounds(content):
    content["fedmos"] = ConfigRecord(dict(content["fedmos"]) | {"round": content["fedmos"]["round"] - 1})


def fails(content):
    raise RuntimeError("no memory")


def too_long(content):
    values = np.frombuffer(content["vectors"]["delta"].data, dtype="<f4")
    with_delta(content, data=(np.float32(1e6) * values).tobytes())


FAULTS = [nan, wrong_shape, wrong_dtype, missing_field, object_array, huge_header, last_rounds, fails, too_long]


def tampered(message, context):
    reply = honest(message, context)
    if context.node_config["client"] == "1":
        FAULTS[reply.content["fedmos"]["round"]](reply.content)
    return reply


app.query("hello")(honest)
app.train("work")(tampered)
