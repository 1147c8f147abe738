"""Keys of the nodes of a network, and nodes that claim to be another's client."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedmos.flower import client_app
from helpers.flower_network import Network


def new_key() -> bytes:
    """A public key as Flower gives it to the server app."""
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def with_keys(made: Any) -> Any:
    for node in made.network.nodes.values():
        node.key = new_key()
    return made


def outsider(made: Any, client: Any, number: int = 200) -> Any:
    """A registered node with a key of its own that claims to be a client."""
    node = Network(lambda: client_app(made.given), made.folder / "outsider", [client]).nodes[100]
    node.number, node.key = number, new_key()
    made.network.nodes[number] = node
    return node
