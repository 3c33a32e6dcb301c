"""What clients ask, and when: the workloads of the lab.

A workload is a few lines on common parts (`epp.lab.workloads.parts`). To add one: write it, and list it in
`epp.lab.workloads.catalogue`.
"""
