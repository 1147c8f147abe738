"""The round, its stages and backends, and the engines that compute local training."""
