"""llm-d's flags that do nothing here: refused by name, or accepted when ignoring them changes nothing."""

import argparse
from typing import Any

_NO_METRICS_TLS = "TLS on the metrics port is not in this version; remove the flag"
_ENGINE_CONFIGS = "use engineConfigs of core-metrics-extractor in the configuration"

# llm-d flags whose thing does not exist here (yet). A value in the set says "off" and is accepted, so that a command
# line can be carried over; anything else is refused by name rather than ignored.
_UNAVAILABLE: dict[str, tuple[frozenset[str], str]] = {
    "--tracing": (frozenset({"false"}), "tracing is not in this version; remove the flag or say --tracing=false"),
    "--metrics-cert-dir": (frozenset(), _NO_METRICS_TLS),
    "--metrics-client-ca-file": (frozenset(), _NO_METRICS_TLS),
    "--enable-pprof": (frozenset({"false"}), "there is no pprof in a Python process; remove the flag"),
    "--tls-min-version": (frozenset(), "gRPC's own minimum (TLS 1.2) applies; remove the flag"),
    "--tls-cipher-suites": (frozenset(), "gRPC's own cipher suites apply; remove the flag"),
    "--total-queued-requests-metric": (frozenset(), _ENGINE_CONFIGS),
    "--total-running-requests-metric": (frozenset(), _ENGINE_CONFIGS),
    "--kv-cache-usage-percentage-metric": (frozenset(), _ENGINE_CONFIGS),
    "--lora-info-metric": (frozenset(), _ENGINE_CONFIGS),
    "--cache-info-metric": (frozenset(), _ENGINE_CONFIGS),
}
# Accepted without effect: health is always served on both ports, messages are sent at any size, and of zap's flags only
# level and encoder mean something here.
_IGNORED = (
    "--health-checking",
    "--zap-devel",
    "--zap-stacktrace-level",
    "--zap-time-encoding",
    "--grpc-max-send-msg-size",
)


class _Refuse(argparse.Action):
    """A flag that llm-d has and we do not."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, option: str | None = None
    ) -> None:
        accepted, advice = _UNAVAILABLE[str(option)]
        if str(values).lower() not in accepted:
            parser.error(f"{option}: {advice}")


def add_flags_without_effect(parser: argparse.ArgumentParser) -> None:
    for flag in _UNAVAILABLE:
        parser.add_argument(
            flag, nargs="?", const="true", action=_Refuse, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    for flag in _IGNORED:
        parser.add_argument(flag, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
