"""How an exchange can end: the one vocabulary that the wire, the ledger, the predictor and the metrics share."""

from enum import Enum


class EndCause(Enum):
    NATURAL = "natural"  # the response was delivered whole, whatever its status
    REJECTED = "rejected"  # we answered ourselves; the request never left
    CLIENT_GONE = "client_gone"  # the client (or Envoy on its behalf) left before the end
    UPSTREAM_ERROR = "upstream_error"  # the model server never answered, or broke off
    EVICTED = "evicted"  # we broke it off after it had left
    LOST = "lost"  # Envoy or the connection died; nothing is known


def is_good(status: int | None) -> bool:
    """2xx."""
    return status is not None and 200 <= status < 300
