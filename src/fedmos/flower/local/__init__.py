"""Processes of a deployment: certificates and keys, Flower's programs, and a whole deployment on one machine."""
