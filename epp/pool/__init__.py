"""Which model servers exist, and the immutable picture of them that a decision reads."""
