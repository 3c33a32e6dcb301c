"""The certificate of the ext_proc port: made up at start, or read from a directory and read again when it changes.

Files are looked at when a connection is made, so a rotation needs no watcher and is seen by the very next handshake.
A pair that cannot be used, say because only one of the two files has been replaced yet, leaves the last good one.
"""

import datetime
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epp.problem import Problem

logger = logging.getLogger(__name__)

CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
SELF_SIGNED_LIFETIME = datetime.timedelta(days=3650)


class TlsProblem(Problem):
    """One line for the user: the file or flag, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """PEM bytes: the certificate chain, leaf first, and its private key."""

    certificate: bytes
    key: bytes


def self_signed(now: datetime.datetime) -> KeyPair:
    """A fresh ECDSA P-256 pair. Proxies encrypt to it but, with no authority behind it, cannot verify it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Headroom"),
            x509.NameAttribute(NameOID.COMMON_NAME, "endpoint-picker"),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + SELF_SIGNED_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("endpoint-picker"), x509.DNSName("localhost")]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, SHA256())
    )
    return KeyPair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def self_signed_now() -> KeyPair:
    return self_signed(datetime.datetime.now(datetime.UTC))


def load_pair(directory: Path) -> KeyPair:
    """Read and check `tls.crt` and `tls.key`. Raises `TlsProblem`."""
    certificate_path, key_path = directory / CERTIFICATE_FILE, directory / KEY_FILE
    certificate, key = _read(certificate_path), _read(key_path)
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
    except ValueError as error:
        raise TlsProblem(f"{certificate_path} holds no PEM certificate; put the certificate chain there") from error
    try:
        private_key = load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise TlsProblem(f"{key_path} holds no unencrypted PEM private key; put the certificate's key there") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private_key.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise TlsProblem(f"{key_path} is not the key of {certificate_path}; replace both files together")
    return KeyPair(certificate, key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsProblem(
            f"cannot read {path}: {os.strerror(error.errno or 0)}; --cert-path must be a directory with "
            f"{CERTIFICATE_FILE} and {KEY_FILE}"
        ) from error


class CertificateDirectory:
    """The pair in a directory, as it is now. `current` is cheap and may be called from any thread."""

    def __init__(self, directory: Path) -> None:
        """Raises `TlsProblem` if there is no good pair to begin with."""
        self._directory = directory
        self._seen = self._versions()
        self._pair = load_pair(directory)

    def current(self) -> KeyPair:
        versions = self._versions()
        if versions != self._seen:
            try:
                self._pair = load_pair(self._directory)
                logger.info("certificate reloaded from %s", self._directory)
            except TlsProblem as error:
                logger.warning("keeping the old certificate: %s", error)
            self._seen = versions
        return self._pair

    def _versions(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What tells one content of the two files from the next, through whatever links lead to them."""
        return tuple(_version(self._directory / name) for name in (CERTIFICATE_FILE, KEY_FILE))


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


CertificateSource = KeyPair | CertificateDirectory  # a pair that never changes, or one that may


def grpc_credentials(source: CertificateSource) -> grpc.ServerCredentials:
    return fixed_credentials(source) if isinstance(source, KeyPair) else reloading_credentials(source)


def fixed_credentials(pair: KeyPair) -> grpc.ServerCredentials:
    """gRPC credentials that never change."""
    return grpc.ssl_server_credentials([(pair.key, pair.certificate)])


def reloading_credentials(certificates: CertificateDirectory) -> grpc.ServerCredentials:
    """gRPC credentials that ask for the pair at each handshake."""
    told: list[KeyPair] = [certificates.current()]

    def changed() -> grpc.ServerCertificateConfiguration | None:
        pair = certificates.current()
        if pair == told[0]:
            return None
        told[0] = pair
        return _configuration(pair)

    # The stubs do not know that the fetcher may answer `None`: nothing new.
    return grpc.dynamic_ssl_server_credentials(_configuration(told[0]), changed)  # type: ignore[arg-type]


def _configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])
