"""The policies that are compared: what they see is what a picker sees, and nothing of the simulated servers.

A policy is an EndpointPickerConfig, and, where the picker's own plugins cannot say it, a small plugin beside it. To add
one: write the plugin into a file here and list the policy in `epp.lab.policies.catalogue`. This package imports nothing
of the simulator; an import-linter contract and a test hold it to that.
"""
