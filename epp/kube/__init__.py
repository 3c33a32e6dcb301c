"""Kubernetes: the pool, objectives and model rewrites as an API server tells them, and who of several pickers leads."""
