"""Which server has which prompt prefix cached: block hashes and the approximate index."""
