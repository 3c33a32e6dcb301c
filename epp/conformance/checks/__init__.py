"""The clauses of the protocol, one small function each, by what they are about."""
