"""Certificates: made up, read, refused in one line, and read again when they change."""

import asyncio
import datetime
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from grpc import aio

from epp.server.grpc_transport import ext_proc_server
from epp.server.health import HealthState
from epp.server.lean.server import lean_server
from epp.server.lean.tls import tls_context
from epp.server.listen import TcpAddress
from epp.server.tls import (
    CERTIFICATE_FILE,
    KEY_FILE,
    CertificateDirectory,
    CertificateSource,
    KeyPair,
    TlsProblem,
    grpc_credentials,
    load_pair,
    self_signed,
)
from epp.server.transport import Exchange, Transport

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def fresh_pair() -> KeyPair:
    return self_signed(datetime.datetime.now(datetime.UTC))


def write_pair(directory: Path, pair: KeyPair) -> None:
    (directory / CERTIFICATE_FILE).write_bytes(pair.certificate)
    (directory / KEY_FILE).write_bytes(pair.key)


def serial_of(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


Serving = Callable[[CertificateSource], AbstractAsyncContextManager[int]]


@pytest.fixture(params=["grpc", "lean"])
def serving(request: pytest.FixtureRequest) -> Serving:
    """A server with that certificate; gives its port."""

    def server_of(source: CertificateSource) -> Transport:
        addresses, health = [TcpAddress(0, "--grpc-port", "127.0.0.1")], HealthState(list)
        if request.param == "grpc":
            return ext_proc_server(no_stream, addresses, health, credentials=grpc_credentials(source))
        return lean_server(no_stream, addresses, health, tls=tls_context(source))

    @asynccontextmanager
    async def serve(source: CertificateSource) -> AsyncIterator[int]:
        server = server_of(source)
        await server.start()
        assert server.port is not None
        yield server.port
        await server.stop()

    return serve


def no_stream(_: object) -> Exchange:
    pytest.fail("no stream expected")


async def served_serial(port: int) -> int:
    """Serial number of the certificate that a new connection is shown."""
    return serial_of((await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))).encode())


def test_a_self_signed_certificate_is_valid_now_and_for_years() -> None:
    certificate = x509.load_pem_x509_certificate(self_signed(NOW).certificate)
    assert certificate.not_valid_before_utc < NOW
    assert certificate.not_valid_after_utc > NOW + datetime.timedelta(days=3000)


async def test_a_client_that_trusts_the_certificate_speaks_over_tls(serving: Serving) -> None:
    pair = fresh_pair()
    async with serving(pair) as port:
        credentials = grpc.ssl_channel_credentials(root_certificates=pair.certificate)
        async with aio.secure_channel(f"localhost:{port}", credentials) as channel:
            reply = await channel.unary_unary("/grpc.health.v1.Health/Check", None, None)(b"")
            assert reply == b"\x08\x01"  # SERVING


async def test_a_plaintext_client_gets_nowhere_on_a_tls_port(serving: Serving) -> None:
    async with serving(fresh_pair()) as port, aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(aio.AioRpcError):
            await channel.unary_unary("/grpc.health.v1.Health/Check", None, None)(b"", timeout=2)


async def test_a_new_certificate_is_shown_to_the_next_connection(serving: Serving, tmp_path: Path) -> None:
    first, second = fresh_pair(), fresh_pair()
    write_pair(tmp_path, first)
    async with serving(CertificateDirectory(tmp_path)) as port:
        assert await served_serial(port) == serial_of(first.certificate)
        write_pair(tmp_path, second)
        assert await served_serial(port) == serial_of(second.certificate)
        (tmp_path / KEY_FILE).write_text("half writ")
        assert await served_serial(port) == serial_of(second.certificate)


def test_a_rotation_by_link_is_seen(tmp_path: Path) -> None:
    """As a mounted Kubernetes secret rotates: the files are links through a link that is swapped."""
    first, second = fresh_pair(), fresh_pair()
    for name, pair in (("v1", first), ("v2", second)):
        (tmp_path / name).mkdir()
        write_pair(tmp_path / name, pair)
    (tmp_path / "..data").symlink_to("v1")
    for name in (CERTIFICATE_FILE, KEY_FILE):
        (tmp_path / name).symlink_to(f"..data/{name}")
    certificates = CertificateDirectory(tmp_path)
    assert certificates.current() == first
    (tmp_path / "..new").symlink_to("v2")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    assert certificates.current() == second


def test_a_half_replaced_pair_keeps_the_old_one_until_the_other_half_comes(tmp_path: Path) -> None:
    first, second = fresh_pair(), fresh_pair()
    write_pair(tmp_path, first)
    certificates = CertificateDirectory(tmp_path)
    (tmp_path / CERTIFICATE_FILE).write_bytes(second.certificate)
    assert certificates.current() == first
    (tmp_path / KEY_FILE).write_bytes(second.key)
    assert certificates.current() == second
    (tmp_path / KEY_FILE).unlink()
    assert certificates.current() == second


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda d: (d / CERTIFICATE_FILE).unlink(), "cannot read .*tls.crt"),
        (lambda d: (d / KEY_FILE).unlink(), "cannot read .*tls.key"),
        (lambda d: (d / CERTIFICATE_FILE).write_text("hello"), "tls.crt holds no PEM certificate"),
        (lambda d: (d / KEY_FILE).write_text("hello"), "tls.key holds no unencrypted PEM private key"),
        (lambda d: (d / KEY_FILE).write_bytes(fresh_pair().key), "tls.key is not the key of .*tls.crt"),
    ],
)
def test_a_bad_pair_is_refused_in_one_line_that_names_the_file(tmp_path: Path, spoil: object, complaint: str) -> None:
    write_pair(tmp_path, fresh_pair())
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(TlsProblem, match=complaint) as caught:
        load_pair(tmp_path)
    assert "\n" not in str(caught.value)
