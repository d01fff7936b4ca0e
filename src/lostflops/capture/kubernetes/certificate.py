"""A certificate for a service inside a cluster, signed by an authority whose key is thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address

from lostflops.errors import MissingExtra


@dataclass(frozen=True)
class Certificate:
    """The authority's certificate, the server's, and the server's key, in PEM."""

    authority: str
    certificate: str
    key: str


def certificate(names: Sequence[str], days: int) -> Certificate:
    """For a server of these names, and of this machine itself, where `kubectl port-forward` comes out."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise MissingExtra("Making a certificate", "k8s") from error
    now = datetime.now(UTC)

    def unsigned(name: str, public: ec.EllipticCurvePublicKey, issuer: str) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )

    issuer = "lostflops authority"
    authority_key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    authority = (
        unsigned(issuer, authority_key.public_key(), issuer)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [
        *(x509.DNSName(name) for name in (*names, "localhost")),
        x509.IPAddress(IPv4Address("127.0.0.1")),
    ]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = (
        unsigned(names[-1], key.public_key(), issuer)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return Certificate(
        authority.public_bytes(pem).decode(),
        server.public_bytes(pem).decode(),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
    )


def expiry(pem: str) -> datetime:
    """When a certificate ends."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise MissingExtra("Reading a certificate", "k8s") from error
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
