"""A page of metrics as text, in pieces, for whoever has something else to do in between.

Our own families write their lines themselves (`epp.observe.readings`); the head of each, in the format that was asked
for, and all that others collect are prometheus-client's.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from epp.observe.readings import ReadMetric

Encode = Callable[[Collector], bytes]
"""Of prometheus-client: writes all that is collected."""

_ODD_ESCAPING = re.compile(r"escaping\s*=\s*(dots|values)")

PIECE_BYTES = 64 * 1024
"""Some 300 lines, and a tenth of a millisecond."""


def format_for(accept: str) -> tuple[Encode, str]:
    """By a scraper's `Accept`: who writes, and the content type.

    Names of ours need no escaping. Two schemes write such names differently all the same; nobody is obliged to use
    them, and the content type says that we do not.
    """
    return choose_encoder(_ODD_ESCAPING.sub("escaping=underscores", accept))


def pieces(metrics: Iterable[Metric], encode: Encode) -> Iterator[bytes]:
    """What `encode` would write of all of them, in pieces of about `PIECE_BYTES`."""
    piece = bytearray()
    for part in _parts(metrics, encode):
        piece += part
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _parts(metrics: Iterable[Metric], encode: Encode) -> Iterator[bytes]:
    end = encode(_Only())
    for metric in metrics:
        if isinstance(metric, ReadMetric):
            yield encode(_Only(Metric(metric.name, metric.documentation, metric.type))).removesuffix(end)
            for lines in metric.reading().lines():
                yield lines.encode()
        else:
            yield encode(_Only(metric)).removesuffix(end)
    yield end


class _Only(Collector):
    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
