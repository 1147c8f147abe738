"""Running the apps of `fedmos.flower`: certificates and keys, Flower's processes, and a deployment on one machine."""
