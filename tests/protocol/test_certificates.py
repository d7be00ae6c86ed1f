"""Certificates, private keys and signatures."""

import stat
from pathlib import Path

import pytest

from privrec.errors import FederationError
from privrec.protocol.certificates import (
    check_certificate,
    make_authority,
    make_node_key,
    public_key_text,
    read_private_key,
    sign,
    verify,
)


def test_an_expired_or_unreadable_certificate_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path, hosts=["127.0.0.1", "server.example"])
    check_certificate(tmp_path / "ca.crt")
    check_certificate(tmp_path / "server.pem")
    make_authority(tmp_path, hosts=[], days=-2)
    with pytest.raises(FederationError, match="expired on"):
        check_certificate(tmp_path / "server.pem")
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(FederationError, match="no certificate in PEM"):
        check_certificate(tmp_path / "ca.crt")
    with pytest.raises(FederationError, match="cannot read"):
        check_certificate(tmp_path / "missing.crt")


def test_private_keys_are_private(tmp_path: Path) -> None:
    make_authority(tmp_path, hosts=[])
    make_node_key(tmp_path / "node")
    for name in ("ca.key", "server.key", "node"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert (tmp_path / "node.pub").read_text().strip() == public_key_text(tmp_path / "node")


def test_a_signature_counts_only_with_its_key_and_content(tmp_path: Path) -> None:
    make_node_key(tmp_path / "a")
    make_node_key(tmp_path / "b")
    own, other = public_key_text(tmp_path / "a"), public_key_text(tmp_path / "b")
    signature = sign(read_private_key(tmp_path / "a"), b"content")
    assert verify(own, b"content", signature)
    assert not verify(other, b"content", signature)
    assert not verify(own, b"another", signature)
    for key, wrong in ((own, b""), (own, b"x" * 96), ("no key", signature), ("ü", signature)):
        assert not verify(key, b"content", wrong)
