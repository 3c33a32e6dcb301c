"""What discovery says when it cannot read the endpoints it was given."""


class DiscoveryError(ValueError):
    """The endpoints cannot be read. The message is one line that names the place, the fault and the fix."""
