"""Make and check the certificates and keys of a federation, and sign with the keys of nodes."""

import base64
import datetime
import hashlib
import ipaddress
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privrec.errors import FederationError

# A certificate is valid from this long before it is made, because the clocks of machines differ.
# Chosen by hand.
CLOCK_SKEW = datetime.timedelta(hours=1)
RENEW = "privrec federate server {folder} --renew --prepare-only"
"""The command that makes a new certificate for a server."""
_CA_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "privrec federation")])
_SERVER_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "privrec server")])


def make_authority(folder: Path, *, hosts: Sequence[str], days: int = 365) -> None:
    """Write `ca.crt`, `ca.key`, `server.pem` and `server.key` to `folder`.

    The server's certificate (`server.pem`) is valid for `hosts` (names and addresses), localhost
    and 127.0.0.1, for `days` days. The certificate of the authority that signs it (`ca.crt`) is
    valid ten times longer, so nodes keep it when the server gets a new certificate.
    """
    names = [_general_name(host) for host in [*hosts, "localhost", "127.0.0.1"]]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        x509.BasicConstraints(ca=True, path_length=0),
        _key_usage(authority=True),
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
    ]
    write_private(folder / "ca.key", _private_pem(key))
    authority = _certificate(_CA_NAME, key, key, 10 * days, extensions)
    write_private(folder / "ca.crt", authority, mode=0o644)
    _certify(folder, key, names, days)


def copy_authority(old: Path, new: Path) -> None:
    """Copy the certificates and keys from the server folder `old` to the server folder `new`."""
    new.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, mode in _FILES.items():
        try:
            write_private(new / name, (old / name).read_bytes(), mode=mode)
        except OSError as error:
            raise FederationError(f"{old} has no {name}: {error.strerror}") from error


_FILES = {"ca.key": 0o600, "ca.crt": 0o644, "server.key": 0o600, "server.pem": 0o644}


def days_left(path: Path) -> float:
    """Return the number of days until the certificate in `path` expires."""
    until = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    return (until - datetime.datetime.now(datetime.UTC)).total_seconds() / 86_400


def renew(folder: Path, *, hosts: Sequence[str]) -> bool:
    """Make a new certificate for a server, for its old host names and for `hosts`.

    Return True if the authority's certificate had expired, too. Then there is a new authority,
    whose `ca.crt` nodes need.
    """
    try:
        old = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        names = [*old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise FederationError(f"{folder} has no certificates to renew ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{folder / 'ca.key'} is no EC key")
    names += [_general_name(host) for host in hosts]
    if datetime.datetime.now(datetime.UTC) > authority.not_valid_after_utc:
        make_authority(folder, hosts=[str(name.value) for name in names])
        return True
    _certify(folder, key, names, 365)
    return False


def _certify(
    folder: Path, ca_key: ec.EllipticCurvePrivateKey, names: Sequence[x509.GeneralName], days: int
) -> None:
    """Write `server.key` and `server.pem`, a certificate that the authority's key signs."""
    key = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        x509.BasicConstraints(ca=False, path_length=None),
        _key_usage(authority=False),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName(dict.fromkeys(names)),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    ]
    write_private(folder / "server.key", _private_pem(key))
    certificate = _certificate(_SERVER_NAME, key, ca_key, days, extensions)
    write_private(folder / "server.pem", certificate, mode=0o644)


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    extensions: Sequence[x509.ExtensionType],
) -> bytes:
    """Return a certificate in PEM format. Its first two extensions are marked as critical."""
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_CA_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - CLOCK_SKEW)
        .not_valid_after(until)
    )
    for place, extension in enumerate(extensions):
        builder = builder.add_extension(extension, critical=place < 2)
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def make_node_key(path: Path) -> None:
    """Write an EC P-384 private key in OpenSSH format to `path`, its public key to `path`.pub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_private(path, private)
    public = f"{_openssh(key.public_key())}\n".encode()
    write_private(path.with_name(f"{path.name}.pub"), public, mode=0o644)


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the node key in the file `path`."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FederationError(f"{path} is no private key in OpenSSH format") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{path} is no EC key; make one with the privrec command")
    return key


def public_key_text(path: Path) -> str:
    """Return the public key of the private key in the file `path`, as one line of OpenSSH text."""
    return _openssh(read_private_key(path).public_key())


def key_hash(text: str) -> str:
    """Return the SHA-256 in hexadecimal of a public key in OpenSSH format.

    `ssh-keygen -l` shows the same hash, as base64.
    """
    line = _openssh(read_public_key(text))
    return hashlib.sha256(base64.b64decode(line.split()[1])).hexdigest()


def _openssh(key: ec.EllipticCurvePublicKey) -> str:
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line.decode("ascii")


def read_public_key(text: str) -> ec.EllipticCurvePublicKey:
    """Return the EC P-384 public key in a line of OpenSSH text, or raise `FederationError`."""
    try:
        key = serialization.load_ssh_public_key(text.strip().encode("ascii"))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FederationError("a node's public key is no line in OpenSSH format") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FederationError("a node's public key is not of the kind ecdsa-sha2-nistp384")
    return key


def sign(private_key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Return the ECDSA signature with SHA-384 of `content`."""
    return private_key.sign(content, ec.ECDSA(hashes.SHA384()))


def verify(public_key_text: str, content: bytes, signature: bytes) -> bool:
    """Return whether the owner of this key signed `content`; False for a malformed input."""
    try:
        read_public_key(public_key_text).verify(signature, content, ec.ECDSA(hashes.SHA384()))
    except (FederationError, InvalidSignature, ValueError, TypeError, AttributeError):
        return False
    return True


def check_certificate(path: Path, *, owner: Path | None = None) -> None:
    """Raise `FederationError` unless `path` is a PEM certificate that is valid today.

    On the server, `owner` is the server's folder, which the error message then names.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise FederationError(f"cannot read the certificate {path}: {error.strerror}") from error
    except ValueError as error:
        raise FederationError(f"{path} is no certificate in PEM format") from error
    now = datetime.datetime.now(datetime.UTC)
    until, since = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    if now > until:
        how = f"ask the server's operator for a new one, from: {RENEW.format(folder='FOLDER')}"
        if owner is not None:
            how = f"make a new one with: {RENEW.format(folder=shlex.quote(str(owner)))}"
        raise FederationError(f"the certificate {path} expired on {until:%Y-%m-%d}; {how}")
    if now < since:
        raise FederationError(f"the certificate {path} is not valid before {since:%Y-%m-%d}")


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9_*]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9])?", host):
        raise FederationError(f"{host!r} is no host name or address")
    return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file with these permissions; by default only its owner can read it.

    The file is written under a temporary name and then renamed. It is on the disk when the function
    returns.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
