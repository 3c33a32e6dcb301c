"""The latency predictor as a server of its own, for pickers in other processes."""
