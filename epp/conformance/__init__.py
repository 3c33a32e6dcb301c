"""Holds an endpoint picker to its protocol: a stub of Envoy's ext_proc filter, and the checks that it makes.

Nothing here knows how our own picker is made: the wire is read and written with other code than the picker's, so that
a misreading on one side is not excused on the other.
"""
