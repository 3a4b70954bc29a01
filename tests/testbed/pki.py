"""Keys and certificates of one control plane, from a certificate authority for one use."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=30)
AUTHORITY: Final = "ca.crt"
"""The file that says whom to trust."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """The PEM files that the servers of a cluster are started with."""

    ca: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    """What the API server shows to a kubelet."""
    client_key: Path
    service_account_key: Path
    service_account_public_key: Path


def create(folder: Path, *, names: tuple[str, ...], addresses: tuple[str, ...]) -> Pki:
    """Write an authority, a server certificate, and a key for ServiceAccount tokens."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key)
    tokens_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    server = (
        _builder("kube-apiserver", authority.subject, server_key.public_key())
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName(name) for name in names]
                + [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            ),
            critical=False,
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        # Python 3.13 refuses a chain without it.
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    client_key = ec.generate_private_key(ec.SECP256R1())
    client = (
        _builder("kube-apiserver", authority.subject, client_key.public_key())
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    return Pki(
        ca=_write(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM)),
        server_certificate=_write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM)),
        server_key=_write(folder / "server.key", _pem(server_key)),
        client_certificate=_write(
            folder / "apiserver-client.crt", client.public_bytes(serialization.Encoding.PEM)
        ),
        client_key=_write(folder / "apiserver-client.key", _pem(client_key)),
        service_account_key=_write(folder / "service-account.key", _pem(tokens_key)),
        service_account_public_key=_write(
            folder / "service-account.pub",
            tokens_key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        ),
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "holdfast test bed")])
    return (
        _builder("holdfast test bed", name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    common_name: str, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # An hour of slack for a clock that is set back while the control plane runs.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path
