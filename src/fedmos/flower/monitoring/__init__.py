"""What an operator sees of a deployment's server: its status file, and metrics and health over HTTP."""
