"""What the configuration says about security between brokers, as `net` takes it."""

from __future__ import annotations

from braidmq.config.settings import BraidConfig
from braidmq.net.security import Security


def security_of(braid: BraidConfig) -> Security:
    """Reads the key or the certificates; ValueError says what is wrong with them."""
    ways = {"key": braid.key, "key_file": braid.key_file, "certificate": braid.certificate}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise ValueError(f"expected one of key, key_file and certificate, got {' and '.join(given)}")
    if braid.key:
        return Security.key(braid.key)
    if braid.key_file:
        return Security.key_file(braid.key_file)
    if braid.certificate:
        if not braid.certificate_key or not braid.authority:
            raise ValueError("a certificate needs its certificate_key and the authority of the braid")
        return Security.tls(braid.certificate, braid.certificate_key, braid.authority)
    return Security.none(insecure=braid.insecure)
