"""TLS for the lean transport: HTTP/2 by ALPN, TLS 1.2 or newer with the ciphers that HTTP/2 allows."""

import ssl
import tempfile
from pathlib import Path

from epp.server.tls import CertificateDirectory, CertificateSource, KeyPair


def tls_context(source: CertificateSource) -> ssl.SSLContext:
    return fixed_context(source) if isinstance(source, KeyPair) else reloading_context(source)


def fixed_context(pair: KeyPair) -> ssl.SSLContext:
    """A context with a certificate that never changes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    # OpenSSL's Python door takes no PEM from memory, only files; these live for this call, for us alone to read.
    with tempfile.TemporaryDirectory() as directory:
        certificate, key = Path(directory, "certificate"), Path(directory, "key")
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)
    return context


def reloading_context(certificates: CertificateDirectory) -> ssl.SSLContext:
    """A context that asks for the pair at each handshake."""
    pair = certificates.current()
    context = current = fixed_context(pair)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal pair, current
        if (newest := certificates.current()) != pair:
            pair, current = newest, fixed_context(newest)
        connection.context = current

    context.sni_callback = choose  # called at every handshake, also when the client names no server
    return context
