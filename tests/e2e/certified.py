"""Certificates of authorities of our own, as files, and clients that believe one of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from mirage.config import TlsSection


class Certified:
    """A certificate and its key in `folder`, which an authority has made for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.section = TlsSection(certificate=folder / "site.pem", key=folder / "site.key")
        self.client = self.renewed()

    def renewed(self) -> ssl.SSLContext:
        """A client that believes the authority that has made another certificate in its place."""
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.section.certificate.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        self.section.key.write_bytes(issued.private_key_pem.bytes())
        self.section.key.chmod(0o600)
        client = ssl.create_default_context()
        authority.configure_trust(client)
        return client
