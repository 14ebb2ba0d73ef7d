"""Certificates of our own authorities, as files, and clients that trust one authority."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from mirage.config import TlsSection


class Certified:
    """Certificate and key for 127.0.0.1 in `folder`, issued by an authority made for the test."""

    def __init__(self, folder: Path) -> None:
        self.section = TlsSection(certificate=folder / "site.pem", key=folder / "site.key")
        self.client = self.renewed()

    def renewed(self) -> ssl.SSLContext:
        """Replace the certificate by one of another authority; return a client context that trusts
        that authority.
        """
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.section.certificate.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        self.section.key.write_bytes(issued.private_key_pem.bytes())
        self.section.key.chmod(0o600)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        return client
