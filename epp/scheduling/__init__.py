"""The scheduling framework: candidates, extension points, profiles. Pure: no I/O, clock or global randomness."""
