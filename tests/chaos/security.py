"""How the brokers of a run trust each other: not at all, by a braid key, or by certificates. Made anew for each run."""

from __future__ import annotations

import secrets
from pathlib import Path

import trustme

KINDS = ("key", "tls", "none")


class Credentials:
    """What the brokers of one braid are given."""

    def __init__(self, kind: str, folder: Path) -> None:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no security; there are {', '.join(KINDS)}")
        self._kind = kind
        self._folder = folder
        self._key_file = folder / "braid.key"
        self._authority_file = folder / "authority.pem"
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "key":
            self._key_file.touch(mode=0o600)
            self._key_file.write_text(secrets.token_hex(32))
        elif kind == "tls":
            self._authority = trustme.CA()
            self._authority.cert_pem.write_to_path(str(self._authority_file))

    def settings(self, name: str, host: str = "127.0.0.1") -> list[str]:
        """What of `braid` a broker needs, as words for `--set`."""
        if self._kind == "key":
            return [f"key_file={self._key_file}"]
        if self._kind == "none":
            return []
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        issued = self._authority.issue_cert(host, common_name=name)
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        key.touch(mode=0o600)
        issued.private_key_pem.write_to_path(str(key))
        return [f"certificate={certificate}", f"certificate_key={key}", f"authority={self._authority_file}"]
