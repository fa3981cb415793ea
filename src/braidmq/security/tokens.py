"""JSON Web Tokens: a client shows one as its password, and is the user that the token's issuer says.

The algorithms are those that the configuration names, never those that a token asks for; a key is only ever used with
algorithms of its own family, so that a public key is never accepted as a shared secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt as pyjwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Refusal, Verdict
from braidmq.security.settings import Jwt

_FAMILIES: Final = {"HS": "oct", "RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The key type (RFC 7517) that goes with the first two letters of an algorithm."""
_LOOKS_LIKE_TOKEN: Final = re.compile(rb"eyJ[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
_RSA_BITS_MIN: Final = 2048


class TokenKeyError(ValueError):
    """The keys of the configuration cannot check tokens; the text says why."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    family: str
    key: Any
    id: str | None = None
    algorithm: str | None = None
    """The one algorithm that the key is meant for, if its set says so."""


def looks_like_token(password: bytes) -> bool:
    """True for three base64 parts of which the first begins a JSON object: nobody's ordinary password."""
    return _LOOKS_LIKE_TOKEN.fullmatch(password) is not None


class TokenAuthenticator:
    """Judges passwords that look like tokens, and leaves all others to the next authenticator."""

    def __init__(self, config: Jwt) -> None:
        self._config = config
        self._keys = read_token_keys(config)

    def authenticate(self, credentials: Credentials) -> Verdict:
        if credentials.password is None or not looks_like_token(credentials.password):
            return None
        try:
            claims = self._claims(credentials.password.decode("ascii"))
            user = claims.get(self._config.user_claim)
            expires_at = float(int(claims["exp"])) + self._config.leeway_s if "exp" in claims else None
        except pyjwt.ExpiredSignatureError:
            return Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, "the token has expired")
        except (pyjwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, "the token is not valid")
        if not isinstance(user, str) or not user:
            return Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, f"the token has no claim {self._config.user_claim}")
        if credentials.username and credentials.username != user:
            return Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, "the token is for another user")
        return Identity(user, expires_at)

    def _claims(self, token: str) -> dict[str, Any]:
        """The claims, once signature, times, issuer and audience hold; PyJWTError if one does not."""
        header = pyjwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in self._config.algorithms:
            raise pyjwt.InvalidAlgorithmError(f"algorithm {algorithm}")
        for key in self._keys_for(algorithm, header.get("kid")):
            try:
                claims: dict[str, Any] = pyjwt.decode(
                    token,
                    key.key,
                    algorithms=[algorithm],
                    issuer=self._config.issuer,
                    audience=self._config.audience,
                    leeway=self._config.leeway_s,
                )
            except (pyjwt.InvalidSignatureError, pyjwt.InvalidKeyError):
                continue
            return claims
        raise pyjwt.InvalidSignatureError("no key fits")

    def _keys_for(self, algorithm: str, key_id: object) -> list[TokenKey]:
        family = _family(algorithm)
        return [
            key
            for key in self._keys
            if key.family == family
            and key.algorithm in (None, algorithm)
            and (key_id is None or key.id is None or key.id == key_id)
        ]


def read_token_keys(config: Jwt) -> list[TokenKey]:
    """The keys that the configuration names; TokenKeyError if they cannot be read or do not fit the algorithms."""
    families = sorted({_family(algorithm) for algorithm in config.algorithms})
    if config.jwks_file is not None:
        keys = _keys_of_set(_read(config.jwks_file))
    elif len(families) > 1:
        raise TokenKeyError(
            f"one key cannot serve all of {', '.join(config.algorithms)}; name those of one family, or use jwks_file"
        )
    elif families == ["oct"]:
        secret = config.key.encode() if config.key is not None else _read(config.key_file or "").rstrip(b"\r\n")
        keys = [TokenKey("oct", secret)]
    elif config.key is not None:
        raise TokenKeyError(
            f"a shared secret is for HS algorithms; {config.algorithms[0]} needs a public key, in key_file or jwks_file"
        )
    else:
        keys = [_public_key(_read(config.key_file or ""))]
    _check_fit(keys, families, config.algorithms)
    return keys


def _family(algorithm: str) -> str:
    return _FAMILIES[algorithm[:2]]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TokenKeyError(f"cannot read the file: {error.strerror}") from error


def _public_key(pem: bytes) -> TokenKey:
    try:
        certified = b"-----BEGIN CERTIFICATE-----" in pem
        key = load_pem_x509_certificate(pem).public_key() if certified else load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TokenKeyError("expected a public key or a certificate in PEM (never the private key)") from error
    family = _family_of(key)
    if family is None:
        raise TokenKeyError(f"a key of the kind {type(key).__name__} cannot check tokens")
    return TokenKey(family, key)


def _family_of(key: object) -> str | None:
    if isinstance(key, rsa.RSAPublicKey):
        return "RSA"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "EC"
    return "OKP" if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey) else None


def _keys_of_set(text: bytes) -> list[TokenKey]:
    """The keys of a JSON Web Key Set (RFC 7517) that are there to check signatures."""
    try:
        entries = json.loads(text)["keys"]
        usable = [entry for entry in entries if entry.get("use", "sig") == "sig"]
        keys = [pyjwt.PyJWK(entry) for entry in usable]
    except (ValueError, KeyError, TypeError, AttributeError, pyjwt.PyJWTError) as error:
        raise TokenKeyError(f'expected a JSON Web Key Set, as {{"keys": [...]}} ({error})') from error
    if not keys:
        raise TokenKeyError("the key set has no key for signatures")
    for key, entry in zip(keys, usable, strict=True):
        if key.key_type != "oct" and _family_of(key.key) is None:
            raise TokenKeyError(f"the key {entry.get('kid')} is a private one; the broker needs public keys only")
    return [
        TokenKey(str(key.key_type), key.key, key.key_id, entry.get("alg"))
        for key, entry in zip(keys, usable, strict=True)
    ]


def _check_fit(keys: Sequence[TokenKey], families: Sequence[str], algorithms: Sequence[str]) -> None:
    """Each algorithm has a key of its family, and no key is too short for what it is to do."""
    for algorithm in algorithms:
        if _family(algorithm) not in {key.family for key in keys}:
            raise TokenKeyError(f"the key is not one for {algorithm}")
        if _family(algorithm) == "oct":
            bytes_min = int(algorithm[2:]) // 8  # RFC 7518 §3.2
            if any(key.family == "oct" and len(key.key) < bytes_min for key in keys):
                raise TokenKeyError(f"the secret is too short: {algorithm} needs {bytes_min} bytes or more")
    for key in keys:
        if key.family in families and key.family == "RSA" and key.key.key_size < _RSA_BITS_MIN:
            raise TokenKeyError(f"the RSA key is too short: expected {_RSA_BITS_MIN} bits or more")
