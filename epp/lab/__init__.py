"""The lab: policies, workloads and pools of simulated servers against each other, in virtual time.

Everything that decides is the real picker: its scheduler, plugins, ledger, prefix index and predictor, with a virtual
clock. See `docs/lab.md`.
"""
