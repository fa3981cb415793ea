"""JSON Web Tokens as passwords."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Origin, Refusal, Verdict
from braidmq.security.settings import Jwt
from braidmq.security.tokens import TokenAuthenticator, TokenKeyError, looks_like_token, read_token_keys

SECRET = "a secret of thirty-two bytes or more"


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def public_pem(key: Any) -> bytes:
    pem: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def judge(authenticator: TokenAuthenticator, token: str | bytes, username: str | None = None) -> Verdict:
    password = token.encode() if isinstance(token, str) else token
    return authenticator.authenticate(Credentials("client", username, password, Origin()))


def assert_refused(verdict: Verdict, text: str) -> None:
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.BAD_USER_NAME_OR_PASSWORD
    assert text in verdict.text


def shared(**options: Any) -> TokenAuthenticator:
    return TokenAuthenticator(Jwt(algorithms=("HS256",), key=SECRET, **options))


def signed(claims: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **options: Any) -> str:
    return pyjwt.encode(claims, key, algorithm, **options)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_good_token_names_the_user() -> None:
    assert judge(shared(), signed({"sub": "alice"})) == Identity("alice")
    assert judge(shared(), signed({"sub": "alice"}), "") == Identity("alice")
    assert judge(shared(), signed({"sub": "alice"}), "alice") == Identity("alice")
    assert judge(shared(user_claim="device"), signed({"device": "d7"})) == Identity("d7")


def test_the_expiry_goes_with_the_identity() -> None:
    ends = int(time.time()) + 60
    assert judge(shared(), signed({"sub": "alice", "exp": ends})) == Identity("alice", float(ends))
    assert judge(shared(leeway_s=5), signed({"sub": "alice", "exp": ends})) == Identity("alice", ends + 5.0)
    past = int(time.time()) - 60
    assert_refused(judge(shared(), signed({"sub": "alice", "exp": past})), "expired")
    assert judge(shared(leeway_s=120), signed({"sub": "alice", "exp": past})) == Identity("alice", past + 120.0)


def test_times_issuer_and_audience() -> None:
    assert_refused(judge(shared(), signed({"sub": "a", "nbf": time.time() + 60})), "not valid")
    strict = shared(issuer="us", audience="mqtt")
    assert judge(strict, signed({"sub": "a", "iss": "us", "aud": ["mqtt", "web"]})) == Identity("a")
    assert_refused(judge(strict, signed({"sub": "a", "iss": "them", "aud": "mqtt"})), "not valid")
    assert_refused(judge(strict, signed({"sub": "a", "iss": "us", "aud": "web"})), "not valid")
    assert_refused(judge(strict, signed({"sub": "a", "aud": "mqtt"})), "not valid")
    assert_refused(judge(strict, signed({"sub": "a", "iss": "us"})), "not valid")
    assert_refused(judge(shared(), signed({"sub": "a", "aud": "someone else"})), "not valid")


def test_a_token_for_another_user_is_refused() -> None:
    assert_refused(judge(shared(), signed({"sub": "alice"}), "bob"), "another user")


@pytest.mark.parametrize("claims", [{}, {"sub": ""}, {"sub": None}, {"device": 7}, {"device": ["a"]}])
def test_tokens_without_a_user(claims: dict[str, Any]) -> None:
    claim = "device" if "device" in claims else "sub"
    assert isinstance(judge(shared(user_claim=claim), signed(claims)), Refusal)


def test_other_passwords_are_not_judged() -> None:
    for password in (b"", b"secret", b"a.b.c", b"eyJ", b"eyJhbGci.x", b"eyJ.\xff.x", b"eyJhb.c.d.e"):
        assert not looks_like_token(password)
        assert judge(shared(), password) is None
    assert shared().authenticate(Credentials("c", "alice", None, Origin())) is None


@pytest.mark.parametrize(
    "token",
    [
        f"{part({'alg': 'none'})}.{part({'sub': 'alice'})}.",
        f"{part({'alg': 'None', 'typ': 'JWT'})}.{part({'sub': 'alice'})}.AAAA",
        f"{part({'alg': 'HS512'})}.{part({'sub': 'alice'})}.AAAA",
        f"{part({'alg': ['HS256']})}.{part({'sub': 'alice'})}.AAAA",
        f"{part({'typ': 'JWT'})}.{part({'sub': 'alice'})}.AAAA",
        f"{part({'alg': 'HS256', 'kid': 7})}.{part({'sub': 'alice'})}.AAAA",
        f"{part({'alg': 'HS256', 'crit': ['x'], 'x': 1})}.{part({'sub': 'alice'})}.AAAA",
        "eyJhbGciOiJIUzI1NiJ9.AAAA.AAAA",
        "eyJhb.AAAA.AAAA",
        signed({"sub": "alice"}, "another secret of thirty-two bytes!!"),
        signed({"sub": "alice", "exp": 10**400}),
        base64.urlsafe_b64encode(b'{"a":' + b"[" * 30_000).decode().rstrip("=") + ".AAAA.AAAA",
    ],
)
def test_forged_and_broken_tokens_are_refused(token: str) -> None:
    assert looks_like_token(token.encode())
    assert_refused(judge(shared(), token), "not valid")


def test_a_changed_payload_is_refused() -> None:
    head, _, signature = signed({"sub": "alice"}).split(".")
    assert_refused(judge(shared(), f"{head}.{part({'sub': 'root'})}.{signature}"), "not valid")


def test_public_keys(tmp_path: Path, rsa_key: rsa.RSAPrivateKey) -> None:
    for key, algorithm in [
        (rsa_key, "RS256"),
        (rsa_key, "PS512"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ]:
        file = tmp_path / "key.pem"
        file.write_bytes(public_pem(key))
        authenticator = TokenAuthenticator(Jwt(algorithms=(algorithm,), key_file=str(file)))  # type: ignore[arg-type]
        assert judge(authenticator, signed({"sub": "alice"}, key, algorithm)) == Identity("alice")
        other = rsa.generate_private_key(65537, 2048)
        assert_refused(judge(authenticator, signed({"sub": "alice"}, other, "RS256")), "not valid")


def test_a_certificate_holds_a_public_key(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("login.example.com")
    file = tmp_path / "certificate.pem"
    file.write_bytes(issued.cert_chain_pems[0].bytes())
    authenticator = TokenAuthenticator(Jwt(algorithms=("ES256",), key_file=str(file)))
    token = signed({"sub": "alice"}, issued.private_key_pem.bytes(), "ES256")
    assert judge(authenticator, token) == Identity("alice")


def test_a_public_key_is_no_shared_secret(tmp_path: Path, rsa_key: rsa.RSAPrivateKey) -> None:
    """A token signed with HMAC over the public key's text, which everyone has."""
    file = tmp_path / "key.pem"
    file.write_bytes(public_pem(rsa_key))
    authenticator = TokenAuthenticator(Jwt(algorithms=("RS256",), key_file=str(file)))
    text = f"{part({'alg': 'HS256'})}.{part({'sub': 'root'})}"
    signature = hmac.digest(public_pem(rsa_key), text.encode(), hashlib.sha256)
    forged = f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    assert_refused(judge(authenticator, forged), "not valid")
    with pytest.raises(TokenKeyError, match="one family"):
        read_token_keys(Jwt(algorithms=("RS256", "HS256"), key_file=str(file)))


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n", encoding="utf-8")
    authenticator = TokenAuthenticator(Jwt(algorithms=("HS256",), key_file=str(file)))
    assert judge(authenticator, signed({"sub": "alice"})) == Identity("alice")


def test_key_sets(tmp_path: Path, rsa_key: rsa.RSAPrivateKey) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    edwards = ed25519.Ed25519PrivateKey.generate()
    oct_key = base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("=")
    keys = [
        RSAAlgorithm.to_jwk(rsa_key.public_key(), as_dict=True) | {"kid": "r", "alg": "RS256", "use": "sig"},
        ECAlgorithm.to_jwk(curve.public_key(), as_dict=True) | {"kid": "e"},
        OKPAlgorithm.to_jwk(edwards.public_key(), as_dict=True) | {"kid": "d"},
        {"kty": "oct", "k": oct_key, "kid": "s"},
        {"kty": "unheard-of", "kid": "x", "use": "enc"},
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": keys}), encoding="utf-8")
    authenticator = TokenAuthenticator(
        Jwt(algorithms=("RS256", "RS512", "ES256", "EdDSA", "HS256"), jwks_file=str(file))
    )
    for key, algorithm, key_id in [(rsa_key, "RS256", "r"), (curve, "ES256", "e"), (edwards, "EdDSA", "d")]:
        token = signed({"sub": "alice"}, key, algorithm, headers={"kid": key_id})
        assert judge(authenticator, token) == Identity("alice")
        assert judge(authenticator, signed({"sub": "alice"}, key, algorithm)) == Identity("alice")  # no kid: try
        wrong = signed({"sub": "alice"}, key, algorithm, headers={"kid": "other"})
        assert_refused(judge(authenticator, wrong), "not valid")
    assert judge(authenticator, signed({"sub": "alice"}, headers={"kid": "s"})) == Identity("alice")
    meant_for_another = signed({"sub": "alice"}, rsa_key, "RS512", headers={"kid": "r"})
    assert_refused(judge(authenticator, meant_for_another), "not valid")


def test_keys_that_cannot_be_used(tmp_path: Path, rsa_key: rsa.RSAPrivateKey) -> None:
    def problem(**options: Any) -> str:
        with pytest.raises(TokenKeyError) as caught:
            read_token_keys(Jwt(**options))
        return str(caught.value)

    def file(content: bytes) -> str:
        path = tmp_path / "key"
        path.write_bytes(content)
        return str(path)

    assert "too short" in problem(algorithms=("HS256",), key="short")
    assert "needs 64 bytes" in problem(algorithms=("HS256", "HS512"), key=SECRET)
    assert "needs a public key" in problem(algorithms=("RS256",), key=SECRET)
    assert "No such file" in problem(algorithms=("RS256",), key_file=str(tmp_path / "none"))
    assert "public key" in problem(algorithms=("RS256",), key_file=file(b"nonsense"))
    private = rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert "never the private key" in problem(algorithms=("RS256",), key_file=file(private))
    assert "not one for ES256" in problem(algorithms=("ES256",), key_file=file(public_pem(rsa_key)))
    weak = rsa.generate_private_key(65537, 1024)
    assert "2048 bits" in problem(algorithms=("RS256",), key_file=file(public_pem(weak)))
    for content in (b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": [5]}', b'{"keys": [{"kty": "odd"}]}', b"\xff"):
        assert "JSON Web Key Set" in problem(algorithms=("RS256",), jwks_file=file(content))
    assert "no key" in problem(algorithms=("RS256",), jwks_file=file(b'{"keys": []}'))
    whole = json.dumps({"keys": [RSAAlgorithm.to_jwk(rsa_key, as_dict=True)]}).encode()
    assert "private" in problem(algorithms=("RS256",), jwks_file=file(whole))
