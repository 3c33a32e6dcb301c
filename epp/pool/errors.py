"""What discovery says when it cannot read the endpoints it was given."""

from epp.problem import Problem


class DiscoveryError(Problem):
    """The endpoints cannot be read. The message is one line that names the place, the fault and the fix."""
