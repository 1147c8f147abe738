"""Attacks × aggregation rules on MNIST with two classes per client: the table of docs/robust.md.

python examples/robust.py [ROUNDS]      # 72 runs; the data set is read from $FEDMOS_DATA
"""

import sys

import fedmos as fm

RULES = {
    "mean": None,
    "Median": fm.aggregation.Median(),
    "TrimmedMean(.3)": fm.aggregation.TrimmedMean(0.3),
    "Krum(6)": fm.aggregation.Krum(6),
    "Krum(6, 10)": fm.aggregation.Krum(6, keep=10),
    "GeometricMedian": fm.aggregation.GeometricMedian(),
    "ClippedMean(.5)": fm.aggregation.ClippedMean(0.5),
}
ATTACKS = {
    "none": None,
    "LabelFlip": fm.attacks.LabelFlip(share=0.2),
    "SignFlip(3)": fm.attacks.SignFlip(3.0, share=0.2),
    "GaussianNoise(.1)": fm.attacks.GaussianNoise(0.1, share=0.2),
    "ALIE(1.5)": fm.attacks.ALIE(1.5, share=0.2),
    "InnerProduct(.5)": fm.attacks.InnerProduct(0.5, share=0.2),
    "InnerProduct(5)": fm.attacks.InnerProduct(5.0, share=0.2),
    "BackdoorPixel(0)": fm.attacks.BackdoorPixel(0, share=0.2),
}


def train(data, rule, attack, rounds, model=fm.models.mlp, **more):
    """Return the result of FedAvg with 20 of the clients a round."""
    options = {"local_steps": 5, "batch_size": 20, "eval_every": 5} | more
    selection = fm.Uniform(m=min(20, len(data)), weights="cohort")
    return fm.run(
        model(seed=0), data, fm.FedAvg(lr=0.1), selection, rounds=rounds, aggregation=rule, attack=attack, **options
    )


def accuracy(result):
    """Return the mean of the last three evaluations."""
    values = [record.accuracy for record in result.history if record.accuracy is not None][-3:]
    return sum(values) / len(values)


def backdoor_success(result, data, attack):
    """Return the share of test images of other classes that the model takes for the target once they are marked."""
    x, y = data.test
    return float((result.predict(attack.trigger(x))[y != attack.target].argmax(1) == attack.target).float().mean())


def main(rounds):
    mnist = fm.datasets.load("mnist")
    skewed = mnist.partition(fm.partition.ByClass(classes=2, size=(50, 150)), clients=100, seed=0)
    iid = mnist.partition(fm.partition.IID(), clients=600, seed=0).subset(range(100))
    print("| attack |", " | ".join(RULES), "|\n|---|" + "---:|" * len(RULES), flush=True)
    for name, attack in {"none, IID clients": None, **ATTACKS}.items():
        results = [train(iid if "IID" in name else skewed, rule, attack, rounds) for rule in RULES.values()]
        print(f"| {name} |", " | ".join(f"{100 * accuracy(result):.1f}" for result in results), "|", flush=True)
    shares = [backdoor_success(result, skewed, attack) for result in results]
    print("| success of the backdoor |", " | ".join(f"{100 * share:.0f} %" for share in shares), "|")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
