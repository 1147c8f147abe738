"""Generated invalid configurations, and the rules of valid ones, written from the documentation alone."""

import copy
import datetime
import json
import math
import re
from functools import cache

from hypothesis import strategies as st

import fedmos as fm
from fedmos.config import schema as config
from helpers.work import counting_calls

MOST_CALLS = 200_000
"""Function calls within which a configuration is accepted or refused."""

RUN = {
    "rounds": 5,
    "local_steps": 2,
    "batch_size": 4,
    "seed": 3,
    "lr_decay": 0.99,
    "weight_decay": 1e-4,
    "clip": 1.0,
    "local": {"name": "SAM", "rho": 0.05},
    "eval_every": 2,
    "loss": "cross_entropy",
    "target": {"accuracy": 0.9},
    "dtype": "float32",
    "device": "cpu",
    "engine": "loop",
    "on_bad_update": "drop",
    "out": "runs/x",
    "checkpoint_every": 2,
    "diagnostics": 10,
    "availability": {"name": "Alternating", "groups": 2, "drop": 0.1},
    "system": {
        "speed": {"name": "LogNormal", "median": 500.0, "sigma": 0.5},
        "down": 1e5,
        "deadline": 30.0,
        "over_select": 1.2,
        "quorum": 0.5,
    },
    "data": {
        "name": "digits",
        "clients": 12,
        "partition": {"name": "ByClass", "classes": 2, "size": [4, 20]},
        "normalize": {"mean": [0.3], "std": 0.4},
        "augment": {"crop": 1, "flip": False},
        "test_samples": 50,
        "seed": 1,
    },
    "model": {"name": "logistic", "features": 64, "classes": 10},
    "algorithm": {"name": "FedMoS", "lr": 0.05, "a": 0.1, "mu": 0.001, "beta": 0.8},
    "selection": {"name": "ACS", "m": 5},
}

COMPARE = {k: v for k, v in RUN.items() if k not in ("seed", "out", "checkpoint_every", "algorithm", "selection")} | {
    "title": "Digits",
    "seeds": [0, 1],
    "local_steps": None,
    "local_epochs": 1,
    "lr_decay": {"2": 0.5, "4": 0.5},
    "tune": {"lr": [0.05, 0.1], "seed": 9, "by": "final", "rounds": 3, "rows": "tuned"},
    "light": True,
    "methods": [
        {"label": "a", "algorithm": {"name": "FedAvg"}, "selection": {"name": "Uniform", "m": 4, "weights": "cohort"}},
        {
            "label": "b",
            "algorithm": {"name": "Scaffold", "option": 1},
            "selection": {"name": "MD", "m": 3},
            "local": {"name": "SAM", "rho": 0.1},
            "grid": {"server_lr": [0.5, 1.0]},
        },
    ],
}
del COMPARE["local_steps"]

PARTS = {
    "algorithm": [
        RUN["algorithm"],
        {"name": "FedAvg", "lr": 0.1, "server_lr": 1.0},
        {"name": "FedProx", "lr": 0.1, "mu": 0.01},
        {"name": "Scaffold", "lr": 0.1, "option": 2},
        {"name": "FedAdam", "lr": 0.1, "server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.001},
        {"name": "GHBM", "lr": 0.1, "beta": 0.9, "tau": 3, "start": "x0"},
        {"name": "FedHBM", "lr": 0.1, "beta": 0.5, "scale": "elapsed", "first": "shared"},
    ],
    "selection": [
        RUN["selection"],
        {"name": "Uniform", "m": 4, "weights": "mean"},
        {"name": "PowerOfChoice", "m": 2, "d": 6, "loss": "batch"},
        {"name": "Oort", "m": 3, "blacklist": 5, "cutoff": 0.9},
        {"name": "CACS", "m": 3, "clusters": 2, "warmup": 1},
        {"name": "OCS", "m": 2, "d": 4, "method": "approximate", "iterations": 2},
        {"name": "Clustered", "m": 3, "by": "similarity"},
        {"name": "DELTA", "m": 3, "step": 0.5},
        {"name": "FedCor", "m": 3, "warmup": 2, "steps": 5},
        {"name": "UCB", "m": 3, "gamma": 0.9},
        {"name": "FixedCohorts", "cohorts": [[0, 1], [2]], "weights": [[0.5, 0.5], [1.0]]},
    ],
    "local": [RUN["local"], {"name": "SAM"}],
    "availability": [
        RUN["availability"],
        {"name": "RandomAvailability", "p": 0.5},
        {"name": "Trace", "rows": [[0, 0, 5], [1, 1, 2]]},
    ],
    "data": [
        RUN["data"],
        {"name": "digits", "clients": 12, "partition": {"name": "Dirichlet", "alpha": 0.3, "prior": "ones"}},
        {
            "name": "digits",
            "clients": 12,
            "partition": {"name": "QuantitySkew", "skew": 1.0, "law": "power", "least": 2},
        },
        {"name": "synthetic", "clients": 12, "alpha": 1.0, "beta": 1.0},
    ],
}

# ── What a configuration may be ──────────────────────────────────────────────────────────────────────────────────────


def integer(low, high):
    return lambda v: type(v) is int and low <= v <= high


def real(low, high, open_low=False, open_high=False):
    def test(v):
        if type(v) not in (int, float) or not -1.7e308 < v < 1.7e308:  # NaN fails, too
            return False
        return low <= v <= high and not (open_low and v == low) and not (open_high and v == high)

    return test


def by_channel(rule, v):
    """For images of one channel."""
    return rule(v) or (type(v) is list and len(v) == 1 and rule(v[0]))


def word(*options):
    return lambda v: type(v) is str and v in options


def either(*tests):
    return lambda v: any(test(v) for test in tests)


def text(most):
    return lambda v: type(v) is str and 0 < len(v) <= most and v.isprintable()


COUNT, SEED = integer(1, 10**9), integer(-(2**63), 2**64 - 1)
POSITIVE, NON_NEGATIVE = real(0, math.inf, open_low=True), real(0, math.inf)
FRACTION, BELOW_ONE, SHARE = real(0, 1), real(0, 1, open_high=True), real(0, 1, open_low=True)

FIELDS = {
    "rounds": COUNT,
    "local_steps": integer(1, 10**6),
    "local_epochs": integer(1, 10**6),
    "batch_size": COUNT,
    "seed": SEED,
    "weight_decay": real(0, 1e30),
    "clip": real(0, 1e30, open_low=True),
    "eval_every": COUNT,
    "loss": word("cross_entropy", "mse", "bce"),
    "dtype": word("float32", "float64"),
    "precision": word("tf32", "bf16"),
    "device": lambda v: v in ("auto", "cpu"),
    "engine": word("auto", "loop", "batched"),
    "on_bad_update": word("stop", "drop"),
    "out": text(4000),
    "checkpoint_every": COUNT,
    "label": text(200),
    "diagnostics": COUNT,
    "title": text(1000),
    "light": lambda v: type(v) is bool,
}
CHOICES = {
    "algorithm": {
        "FedMoS": {"lr": POSITIVE, "a": FRACTION, "mu": NON_NEGATIVE, "beta": BELOW_ONE, "first_batch": either(COUNT, word("full")), "variant": word("paper", "released")},
        "FedAvg": {"lr": POSITIVE, "server_lr": POSITIVE},
        "FedProx": {"lr": POSITIVE, "mu": NON_NEGATIVE, "server_lr": POSITIVE},
        "Scaffold": {"lr": POSITIVE, "server_lr": POSITIVE, "option": integer(1, 2)},
        "FedAdam": {"lr": POSITIVE, "server_lr": POSITIVE, "beta1": BELOW_ONE, "beta2": BELOW_ONE, "tau": real(0, 1e9, True)},
        "GHBM": {"lr": POSITIVE, "beta": NON_NEGATIVE, "tau": integer(1, 10_000), "server_lr": POSITIVE, "start": word("zero", "x0")},
        "FedHBM": {"lr": POSITIVE, "beta": NON_NEGATIVE, "server_lr": POSITIVE, "scale": word("participation", "elapsed"), "first": word("zero", "shared")},
    },
    "selection": {
        "ACS": {"m": COUNT},
        "MD": {"m": COUNT},
        "Full": {},
        "Uniform": {"m": COUNT, "weights": word("unbiased", "cohort", "mean")},
        "PowerOfChoice": {"m": COUNT, "d": COUNT, "loss": word("full", "batch", "reported")},
        "Oort": {"m": COUNT, "blacklist": COUNT, "cutoff": SHARE, "exploration": FRACTION, "decay": SHARE, "exploration_min": BELOW_ONE, "alpha": NON_NEGATIVE, "clip": SHARE, "pace": SHARE},
        "CACS": {"m": COUNT, "clusters": COUNT, "warmup": integer(0, 10**9)},
        "OCS": {"m": COUNT, "d": COUNT, "method": word("exact", "approximate"), "iterations": COUNT},
        "Clustered": {"m": COUNT, "by": word("size", "similarity")},
        "DELTA": {"m": COUNT, "alpha1": NON_NEGATIVE, "alpha2": NON_NEGATIVE, "step": POSITIVE, "mix": SHARE},
        "FedCor": {"m": COUNT, "warmup": COUNT, "interval": integer(2, 10**9), "beta": SHARE, "dimension": integer(1, 1000), "window": integer(1, 1000), "gamma": SHARE, "noise": POSITIVE, "steps": integer(1, 10**5)},
        "UCB": {"m": COUNT, "gamma": SHARE, "sigma": NON_NEGATIVE},
        "FixedCohorts": {
            "cohorts": lambda v: type(v) is list and len(v) > 0 and all(type(c) is list and len(c) > 0 and all(integer(0, 11)(i) for i in c) for c in v),
            "weights": lambda v: type(v) is list and all(type(c) is list and all(NON_NEGATIVE(w) for w in c) for c in v),
        },
    },
    "local": {"SAM": {"rho": NON_NEGATIVE}},
    "availability": {
        "Always": {},
        "Alternating": {"groups": COUNT, "drop": BELOW_ONE},
        "RandomAvailability": {"p": SHARE},
        "Trace": {"rows": lambda v: type(v) is list and len(v) > 0 and all(type(r) is list and len(r) == 3 and all(type(i) is int for i in r) and r[0] >= 0 and r[1] <= r[2] for r in v)},
    },
    "profile": {
        "LogNormal": {"median": POSITIVE, "sigma": real(0, 20)},
        "Constant": {"value": POSITIVE},
        "Table": {"numbers": lambda v: type(v) is list and all(POSITIVE(n) for n in v), "column": lambda v: True},
        "PerClient": {"numbers": lambda v: type(v) is list and all(POSITIVE(n) for n in v), "column": lambda v: True},
    },
    "partition": {
        "IID": {},
        "ByClass": {"classes": integer(1, 10), "size": either(COUNT, lambda v: type(v) is list and len(v) == 2 and all(map(COUNT, v)) and v[0] <= v[1]), "share": word("random", "even")},
        "Dirichlet": {"alpha": NON_NEGATIVE, "prior": word("ones", "data")},
        "QuantitySkew": {"skew": POSITIVE, "law": word("power", "lognormal"), "least": COUNT},
    },
    "model": {
        "logistic": {"features": integer(1, 10**6), "classes": integer(10, 10**6), "seed": SEED},
        "mlp": {"features": integer(1, 10**6), "classes": integer(10, 10**6), "seed": SEED, "dropout": lambda v: type(v) is bool},
        "cnn_digits": {"classes": integer(10, 10**6), "seed": SEED, "dropout": lambda v: type(v) is bool},
    },
}  # fmt: skip


def faults(table, kind):
    """Everything about a table that the documentation does not allow."""
    found = [name for name, v in table.items() if name in FIELDS and not FIELDS[name](v)]

    def choice(where, part, v, needs=()):
        if type(v) is not dict or type(v.get("name")) is not str or v["name"] not in CHOICES[part]:
            return [where]
        fields = CHOICES[part][v["name"]]
        wrong = [f"{where}.{k}" for k, x in v.items() if k != "name" and (k not in fields or not fields[k](x))]
        return wrong + [f"{where}.{k}" for k in needs if k not in v]

    def local(where, v):
        chain = v if type(v) is list else [v]
        return [where] * (len(chain) != 1) + [fault for one in chain for fault in choice(where, "local", one)]

    known = {*FIELDS, "data", "model", "target", "lr_decay", "local", "availability", "system"}
    known |= {"algorithm", "selection"} if kind == "run" else {"seeds", "methods", "tune"}
    known -= {"title", "light"} if kind == "run" else {"seed", "out", "checkpoint_every", "label"}
    found += [name for name in table if name not in known]
    found += [name for name in ("rounds", "data", "model") if name not in table]
    if ("local_steps" in table) == ("local_epochs" in table):
        found.append("local_steps")
    if "precision" in table and (table.get("dtype") == "float64" or table["precision"] == "tf32"):
        found.append("precision")
    target = table.get("target", {})
    if type(target) is not dict or any(
        m not in ("train_loss", "train_accuracy", "test_loss", "accuracy")
        or not (FRACTION if "accuracy" in m else real(-math.inf, math.inf))(v)
        for m, v in target.items()
    ):
        found.append("target")
    decay = table.get("lr_decay", 1.0)
    if type(decay) is dict:
        found += ["lr_decay" for k, v in decay.items() if not re.fullmatch("[0-9]{1,9}", k) or not POSITIVE(v)]
    elif not POSITIVE(decay):
        found.append("lr_decay")
    if "local" in table:
        found += local("local", table["local"])
    if "availability" in table:
        found += choice("availability", "availability", table["availability"])
    found += choice("model", "model", table.get("model"))
    system = table.get("system", {})
    if type(system) is not dict:
        found.append("system")
    else:
        rules = {"deadline": POSITIVE, "over_select": real(1, 1e6), "quorum": FRACTION}
        for name, v in system.items():
            if name in ("speed", "down", "up"):
                found += [] if POSITIVE(v) else choice(f"system.{name}", "profile", v)
            elif name not in rules or not rules[name](v):
                found.append(f"system.{name}")
    found += _data_faults(table.get("data"), choice)
    if kind == "run":
        found += choice("algorithm", "algorithm", table.get("algorithm"), ("lr",))
        found += choice("selection", "selection", table.get("selection"))
        return found
    seeds, methods, tune = table.get("seeds"), table.get("methods"), table.get("tune")
    if type(seeds) is not list or not seeds or not all(map(SEED, seeds)) or len(set(seeds)) < len(seeds):
        found.append("seeds")
    if "tune" in table:
        lrs = tune.get("lr") if type(tune) is dict else None
        if (
            type(lrs) is not list
            or not lrs
            or not all(map(POSITIVE, lrs))
            or set(tune) - {"lr", "seed", "by", "rounds", "rows"}
            or not COUNT(tune.get("rounds", 1))
            or (COUNT(table.get("rounds")) and tune.get("rounds", 1) > table["rounds"])
            or tune.get("rows", "tuned") not in ("tuned", "both")
            or not SEED(tune.get("seed"))
            or tune["seed"] in (seeds if type(seeds) is list else [])
            or tune.get("by", "rounds") not in ("rounds", "final")
        ):
            found.append("tune")
    if type(target) is not dict or len(target) != 1 or "title" not in table:
        found.append("target")
    if type(methods) is not list or not methods:
        return [*found, "methods"]
    for i, method in enumerate(methods):
        if (
            type(method) is not dict
            or set(method) - {"grid", "local"} != {"label", "algorithm", "selection"}
            or not text(200)(method["label"])
        ):
            found.append(f"methods.{i}")
            continue
        own = "tune" not in table or (type(tune) is dict and tune.get("rows") == "both")
        found += choice(f"methods.{i}.algorithm", "algorithm", method["algorithm"], ("lr",) if own else ())
        if "grid" in method:
            found += _grid_faults(f"methods.{i}", method, "tune" in table)
        found += choice(f"methods.{i}.selection", "selection", method["selection"])
        if "local" in method:
            found += local(f"methods.{i}.local", method["local"])
    return found


def _grid_faults(where, method, tuned):
    grid, algorithm = method["grid"], method["algorithm"]
    if type(grid) is not dict or not grid or not tuned or type(algorithm) is not dict:
        return [where]
    fields = CHOICES["algorithm"].get(algorithm.get("name") if type(algorithm.get("name")) is str else None, {})
    return [
        f"{where}.grid.{field}"
        for field, values in grid.items()
        if field not in fields or type(values) is not list or not values or not all(map(fields[field], values))
    ]


def _data_faults(data, choice):
    if type(data) is not dict:
        return ["data"]
    rules = {"name": word("digits", "synthetic"), "clients": COUNT, "seed": SEED}
    if data.get("name") == "synthetic":
        rules |= {"alpha": real(0, 1e30), "beta": real(0, 1e30), "clients": integer(1, 100_000)}
    else:
        augment = data.get("augment", {})
        rules |= {"test_samples": COUNT, "partition": lambda v: not choice("data.partition", "partition", v)}
        rules["augment"] = lambda v: (
            type(v) is dict
            and not set(v) - {"crop", "flip"}
            and integer(0, 1000)(augment.get("crop", 4))
            and type(augment.get("flip", True)) is bool
        )
        rules["normalize"] = lambda v: (
            type(v) is dict
            and set(v) == {"mean", "std"}
            and by_channel(real(-1.8e308, 1.8e308), v["mean"])
            and by_channel(real(0, 1.8e308, open_low=True), v["std"])
        )
    found = [f"data.{k}" for k, v in data.items() if k not in rules or not rules[k](v)]
    return found + (["data"] if "name" not in data or ("clients" not in data and data["name"] != "synthetic") else [])


# ── Ways to go wrong ─────────────────────────────────────────────────────────────────────────────────────────────────

LEAVES = st.one_of(
    st.sampled_from([0, 1, 2, -1, True, False, 1.0, 0.5, "1", "", "nan", 10**9, 10**9 + 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400]),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e-320, 1e30, 1e31, 1e200, 1.7e308, -1.5]),
    st.sampled_from(["x" * 5000, "\x00", "a\nb", "\x1b[31m", "é", "日本", "🙂", "../..", "float64", "bf16", "drop", "Full", "synthetic", "digits", "batched", "/etc/passwd"]),
    st.integers(-5, 40),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.dates(datetime.date(1, 1, 1)),
)  # fmt: skip
VALUES = st.one_of(
    LEAVES,
    LEAVES,
    st.lists(LEAVES, max_size=3),
    st.dictionaries(
        st.one_of(st.text(max_size=8), st.sampled_from(["name", "lr", "accuracy", "3"])), LEAVES, max_size=3
    ),
    st.sampled_from([[[]], {}, {"name": "Full"}, {"name": "IID"}, [1] * 2000]),
)
KINDS = ("delete", "replace", "replace", "replace", "unknown", "misspell", "move", "wrap", "part", "nothing")
MUTATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 10**6), VALUES), min_size=1, max_size=3)


def places(table, path=()):
    """Every key of nested tables and lists."""
    pairs = table.items() if type(table) is dict else enumerate(table)
    for key, value in pairs:
        yield (*path, key)
        if type(value) in (dict, list):
            yield from places(value, (*path, key))


def mutated(base, mutations):
    table = copy.deepcopy(base)
    for kind, number, given in mutations:
        value = copy.deepcopy(given)
        every = list(places(table))
        if not every:
            break
        *path, key = every[number % len(every)]
        inner = table
        for part in path:
            inner = inner[part]
        match kind:
            case "delete":
                del inner[key]
            case "replace":
                inner[key] = value
            case "unknown" if type(inner) is dict:
                inner[str(value)[:50] or "q"] = value
            case "misspell" if type(inner) is dict:
                at = number % (len(key) + 1)
                inner[key[:at] + "x" + key[at:]] = inner.pop(key)
            case "move" if type(inner) is dict:
                table[key] = inner.pop(key)
            case "wrap":
                inner[key] = [inner[key]] if number % 2 else {key if type(key) is str else "x": inner[key]}
            case "part":
                names = sorted(set(PARTS) & set(table))
                if names:
                    chosen = names[number % len(names)]
                    table[chosen] = copy.deepcopy(PARTS[chosen][number % len(PARTS[chosen])])
    return table


def toml(value, top=True):
    """A table as TOML, with all but the top level inline."""
    if type(value) is dict:
        pairs = [f"{json.dumps(k)} = {toml(v, False)}" for k, v in value.items()]
        return "\n".join(pairs) if top else "{" + ", ".join(pairs) + "}"
    if type(value) is list:
        return "[" + ", ".join(toml(v, False) for v in value) + "]"
    if type(value) is str:
        return json.dumps(value).replace("\x7f", "\\u007F")
    if type(value) is bool:
        return str(value).lower()
    return str(value)


def torn(raw, cuts):
    """Text with bytes changed, cut out, put in, doubled or cut off."""
    for kind, at, junk in cuts:
        at %= len(raw) + 1
        match kind:
            case "end":
                raw = raw[:at]
            case "cut":
                raw = raw[:at] + raw[at + len(junk) :]
            case "put":
                raw = raw[:at] + junk + raw[at:]
            case "double":
                raw = raw[:at] + raw[max(0, at - 30) :]
    return raw


CUTS = st.lists(
    st.tuples(
        st.sampled_from(["end", "cut", "put", "put", "double"]),
        st.integers(0, 10**4),
        st.one_of(st.binary(max_size=6), st.sampled_from([b"\n", b"=", b"[", b"]", b"{", b'"', b"nan", b"-", b"9" * 5000, b"[" * 3000, b"a." * 3000, b"\xff", b"\r", b"#", b"."])),
    ),
    min_size=1,
    max_size=3,
)  # fmt: skip

# ── What must come of it ─────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _digits():
    return _load("digits")


_load = fm.datasets.load


def quick_load(name, root=None):
    """`fm.datasets.load` that reads the digits once."""
    return _digits() if (name, root) == ("digits", None) else _load(name, root)


def kinds(number):
    return ("run", RUN, config.RunConfig) if number % 2 else ("compare", COMPARE, config.CompareConfig)


def outcome(kind, settings_of, table=None):
    """ "accepted" or "refused", in a sentence; nothing else may happen, and nothing invalid be accepted."""

    def load():
        settings_of().check()

    _digits()  # imports scikit-learn, once
    try:
        counting_calls(load, MOST_CALLS)
    except config.ConfigError as error:
        sentence(str(error))
        return "refused"
    if table is not None:
        assert not faults(table, kind), faults(table, kind)
    return "accepted"


def sentence(text):
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 500
    assert not re.search(r"https?://|pydantic|Traceback|object at 0x", text), text
    assert re.match(r"[^:]{1,160}: \S|Cannot read ", text), text
