"""Health of the process: one live state, and the gRPC health service that tells it.

Liveness asks whether the process works; an answer is the proof, so it is SERVING for as long as anybody answers, also
while draining. `inference-extension` asks the same, and whether every plugin works: charts restart a picker by it, and
no restart brings a pool or its servers. Every other name asks whether new requests should come here: only if nothing is
missing and the process is not about to stop. The same state answers on the ext_proc port and on the health port.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

LIVENESS = "liveness"
WORKS = "inference-extension"  # llm-d's chart probes a single replica's liveness and readiness by it
READINESS_SERVICES = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
HEALTH_SERVICE = "grpc.health.v1.Health"

# Readiness is asked for, not announced, so a watcher looks again this often. Draining wakes it at once.
WATCH_INTERVAL_S = 1.0


class HealthState:
    """Whether the process is ready, draining, stopping. For the event loop's thread only."""

    def __init__(
        self, not_ready: Callable[[], Sequence[str]], plugins_not_ready: Callable[[], Sequence[str]] = list
    ) -> None:
        """
        Args:
            not_ready: the reasons why requests should not come yet, in words; empty when they may.
            plugins_not_ready: of these, the reasons of plugins.
        """
        self._not_ready = not_ready
        self.plugins_not_ready = plugins_not_ready
        self.changed = asyncio.Event()  # set, and another put in its place, when draining or stopping starts
        self.draining = False
        self.stopping = False

    def start_draining(self) -> None:
        """From now on not ready, for good."""
        self.draining = True
        self._wake_watchers()

    def start_stopping(self) -> None:
        """The servers are about to close: watchers are let go, so that nobody waits for them."""
        self.draining = self.stopping = True
        self._wake_watchers()

    def reasons(self) -> list[str]:
        """Why the process is not ready; empty when it is."""
        return [*(["the process is draining"] if self.draining else []), *self._not_ready()]

    @property
    def ready(self) -> bool:
        return not self.reasons()

    def _wake_watchers(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class HealthService:
    """`grpc.health.v1.Health`: Check, List, Watch. An unknown name is SERVICE_UNKNOWN as a status, not an error."""

    def __init__(self, state: HealthState) -> None:
        self._state = state

    def handler(self) -> "grpc.GenericRpcHandler[Any, Any]":
        """For `grpc.aio.server(handlers=…)`."""
        check_request, check_response = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
        list_request, list_response = health_pb2.HealthListRequest, health_pb2.HealthListResponse
        return grpc.method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    self._check, check_request.FromString, check_response.SerializeToString
                ),
                "List": grpc.unary_unary_rpc_method_handler(
                    self._list, list_request.FromString, list_response.SerializeToString
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch, check_request.FromString, check_response.SerializeToString
                ),
            },
        )

    def answer(self, service: str) -> health_pb2.HealthCheckResponse:
        """What Check and Watch tell about a service now."""
        if service == LIVENESS:
            serves = True
        elif service == WORKS:
            serves = not self._state.plugins_not_ready()
        elif service in READINESS_SERVICES:
            serves = self._state.ready
        else:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        answer = health_pb2.HealthCheckResponse
        return answer(status=answer.SERVING if serves else answer.NOT_SERVING)

    def answers(self) -> health_pb2.HealthListResponse:
        """What List tells."""
        return health_pb2.HealthListResponse(
            statuses={service: self.answer(service) for service in (*READINESS_SERVICES, WORKS, LIVENESS)}
        )

    async def changes(self, service: str) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """What Watch tells: the answer now, and each other one, until the process stops."""
        told = None
        while not self._state.stopping:
            changed = self._state.changed  # before looking, so that a change while the answer is written is not missed
            answer = self.answer(service)
            if answer.status != told:
                yield answer
                told = answer.status
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), WATCH_INTERVAL_S)

    async def _check(self, request: health_pb2.HealthCheckRequest, _: object) -> health_pb2.HealthCheckResponse:
        return self.answer(request.service)

    async def _list(self, _request: object, _context: object) -> health_pb2.HealthListResponse:
        return self.answers()

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, context: "aio.ServicerContext[object, object]"
    ) -> None:
        async for answer in self.changes(request.service):
            await context.write(answer)
