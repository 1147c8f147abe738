"""Secure aggregation in deployments: keys, masks and shares of secrets (Bonawitz et al., CCS 2017)."""
