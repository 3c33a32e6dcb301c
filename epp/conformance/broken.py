"""What the stub says of a picker that Envoy would not put up with."""


class RuleBroken(Exception):
    """The picker broke one of Envoy's rules. The text is a sentence that says which."""
