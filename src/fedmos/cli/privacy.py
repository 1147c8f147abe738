"""`fedmos privacy`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from .group import CommandGroup
from .options import Overrides

if TYPE_CHECKING:
    from ..selection.selector import Selector

console = Console(soft_wrap=True, emoji=False)
app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Plan the noise of private runs, and measure what models reveal."
)


@app.command()
def plan(
    epsilon: Annotated[float, typer.Option(help="The ε that the run may spend.")],
    rounds: Annotated[int, typer.Option(help="Number of rounds.")],
    clients: Annotated[int, typer.Option(help="Number of clients in the federation.")],
    rate: Annotated[
        float | None, typer.Option(help="Each client takes part with this probability (selection Bernoulli).")
    ] = None,
    m: Annotated[int | None, typer.Option(help="So many clients take part in each round (selection Uniform).")] = None,
    cyclic: Annotated[bool, typer.Option("--cyclic", help="Groups of --m clients in turn (selection Cyclic).")] = False,
    delta: Annotated[float | None, typer.Option(help="The δ of the guarantee (default: clients^-1.1).")] = None,
    stateful: Annotated[
        bool, typer.Option("--stateful", help="Clients keep state between rounds, as in SCAFFOLD.")
    ] = False,
    mechanism: Annotated[
        str, typer.Option(help="Gaussian, MatrixFactorization, Local or DiscreteGaussian.")
    ] = "Gaussian",
    bands: Annotated[int, typer.Option(help="The bands of MatrixFactorization.")] = 16,
    bits: Annotated[int, typer.Option(help="The bits of secure aggregation, for DiscreteGaussian.")] = 32,
    parameters: Annotated[int, typer.Option(help="The parameters of the model, for DiscreteGaussian.")] = 10**6,
    accountant: Annotated[
        str, typer.Option(help="How ε of Gaussian is computed: rdp, or pld, which needs less noise.")
    ] = "rdp",
) -> None:
    """Print the smallest noise multiplier with which a run stays within ε.

    For example: fedmos privacy plan --epsilon 4 --rounds 500 --clients 5000 --rate 0.02, or --m 100 --cyclic
    --mechanism MatrixFactorization. Without --rate and --m, every client takes part in every round.
    """
    from ..aggregation.secure import Secure
    from ..privacy.accounting import epsilon as spent
    from ..privacy.accounting import plan as find
    from ..privacy.participation import participation_of
    from ..privacy.sampling import sampling_of

    selection = _selection(rate, m, cyclic)
    delta = max(clients, 2) ** -1.1 if delta is None else delta
    how: dict[str, Any] = {"rounds": rounds, "delta": delta, "selection": selection, "clients": clients}
    how |= {"stateful": stateful, "mechanism": mechanism, "bands": bands}
    how |= {"parameters": parameters, "secure": Secure(bits), "accountant": accountant}
    noise = find(epsilon, **how)
    noise = math.ceil(noise * 1e4) / 1e4  # as printed: with less, the run would exceed ε
    reached = spent(noise, **how)
    sampling = sampling_of(selection, clients, stateful=stateful)
    console.print(f"noise_multiplier = {noise:.4f}", highlight=False)
    meaning = "added or removed" if sampling.adjacency == "add or remove" else "replaced"
    meaning = {"Local": "with any other data", "DiscreteGaussian": "with or without its uploads"}.get(
        mechanism, meaning
    )
    console.print(f"ε = {reached:.4f} at δ = {delta:.3g} after {rounds} rounds, one client {meaning}", highlight=False)
    if mechanism in ("Local", "DiscreteGaussian"):
        known = participation_of(selection, clients)
        times = rounds if known is None else known.times(rounds)
        console.print(f"For a client that takes part {times} times", highlight=False)
    elif sampling.law == "none" and mechanism == "Gaussian":
        console.print(f"Not amplified by sampling because {sampling.why}", highlight=False)


def _selection(rate: float | None, m: int | None, cyclic: bool) -> Selector:
    """Return the selection that the options of `plan` describe."""
    from ..selection.bernoulli import Bernoulli
    from ..selection.cyclic import Cyclic
    from ..selection.full import Full
    from ..selection.uniform import Uniform

    if rate is not None and m is not None:
        raise ValueError("plan: at most one of --rate and --m must be given, got both")
    if cyclic and m is None:
        raise ValueError("plan: --cyclic needs --m, the number of clients of a group")
    if rate is not None:
        return Bernoulli(rate=rate)
    if m is None:
        return Full()
    return Cyclic(m=m) if cyclic else Uniform(m=m)


@app.command()
def leakage(
    configuration: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="A run; see docs/configuration.md. Data need a test set.")
    ],
    set_: Overrides = None,
    canaries: Annotated[int, typer.Option(help="Number of planted samples with a wrong label.")] = 20,
    references: Annotated[int, typer.Option(help="Number of samples made alike that no client trains on.")] = 256,
    copies: Annotated[int, typer.Option(help="How often a client has its planted sample.")] = 1,
) -> None:
    """Train with planted samples, with and without the option privacy, and print what the models reveal of them.

    Exposure is in bits. One near the expected exposure, an AUC near 0.5 and a large p mean that the attack finds
    nothing. The last column is the AUC by which the losses of training samples are told from those of test samples.
    """
    from ..config.schema import RunConfig, load
    from ..leakage.canaries import Canaries
    from ..leakage.report import measure

    settings = load(RunConfig, configuration, set_ or [])
    given = settings.arguments(settings.algorithm, settings.selection, settings.seed)
    columns = ("privacy", "accuracy", "ε", "exposure", "AUC", "p", "membership")
    table = Table(*(Column(name, no_wrap=True) for name in columns))
    for name, privacy in {"none": None, "given": given.get("privacy")}.items():
        if name == "none" or privacy is not None:
            found = measure(given | {"privacy": privacy}, Canaries(canaries, references, copies, settings.seed))
            table.add_row(name, *found.cells())
    console.print(table)
    console.print(f"Expected exposure of samples that nobody has: {found.exposure.expected:.2f}", highlight=False)
