"""Changes of the clients of a deployment during its run, and what the server does with refused clients."""
