"""The braid's key: a host proves that it has it without showing it, and seals all that follows.

    the one who dials                             the other
    preamble                                  ──>
                                              <── preamble, challenge: A
    D, proof, hello                           ──> is the proof right? Only then is anything decided
    is the proof right?                       <── proof, hello
    sealed frames                             <─> sealed frames

A and D are X25519 keys, drawn for this connection: they are its nonces, and the secret on which they agree goes into
its keys beside the braid's. So what was recorded opens nothing elsewhere or later, not even for one who learns the
braid's key afterwards. A proof is an HMAC over the preamble (with the protocol's version), the role, A, D, and the
hellos so far, in which are both addresses; each role has a key of its own, so a proof cannot be thrown back.

The one that dials proves first: one that merely connects is given nothing to try passphrases on, nor is an
eavesdropper. Only one that is dialled can try them, at the price of one scrypt each. 32 random bytes cannot be tried at
all.

A sealed frame is its length, then ChaCha20-Poly1305 of the frame, numbered in each direction: one that was changed,
left out, repeated or sent by anyone else cannot be opened. (ChaCha20 rather than AES: as fast where there is no
hardware for AES, which is where edge brokers run.)
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import LENGTH_BYTES

KEY_BYTES = 32
PASSPHRASE_LENGTH_MIN = 12
TAG_BYTES = 16
"""What a sealed frame is longer."""

_SCRYPT_COST = {"n": 2**15, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024}
_PURPOSE = b"braidmq braid key 1"
"""Also the salt of passphrases: all brokers must come to the same key, with nothing else in common."""
_ROLES = (b"dials", b"answers")


class BraidKey:
    """The secret that all brokers of a braid share."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes | str) -> None:
        """32 random bytes, or those as 64 hexadecimal digits, or a passphrase."""
        if isinstance(secret, bytes):
            self._secret = _expand(_check_bytes(secret))
            return
        text = secret.strip()
        raw = _from_hex(text)
        if raw is not None:
            self._secret = _expand(raw)
        elif len(text) >= PASSPHRASE_LENGTH_MIN:
            self._secret = hashlib.scrypt(text.encode(), salt=_PURPOSE, dklen=KEY_BYTES, **_SCRYPT_COST)
        else:
            raise ValueError(
                f"a braid key is {KEY_BYTES} random bytes, {2 * KEY_BYTES} hexadecimal digits, or a passphrase of at "
                f"least {PASSPHRASE_LENGTH_MIN} characters; this one has {len(text)}"
            )

    def begin(self, preamble: bytes, is_dialler: bool) -> Proof:
        return Proof(self._secret, preamble, is_dialler)


def key_of_file(content: bytes) -> BraidKey:
    """The key in a file: raw bytes, or text with or without a line end."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return BraidKey(content)
    return BraidKey(text) if text.strip().isprintable() else BraidKey(content)


def _check_bytes(secret: bytes) -> bytes:
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a braid key that is no text has {KEY_BYTES} random bytes; this one has {len(secret)}")
    return secret


def _from_hex(text: str) -> bytes | None:
    if len(text) != 2 * KEY_BYTES or any(sign not in "0123456789abcdefABCDEF" for sign in text):
        return None
    return bytes.fromhex(text)


def _expand(secret: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=_PURPOSE).derive(secret)


class Proof:
    """One side of one connection, from the challenge to the keys that seal its frames."""

    __slots__ = ("_is_dialler", "_keys", "_private", "_secret", "_transcript", "challenge")

    def __init__(self, secret: bytes, preamble: bytes, is_dialler: bool) -> None:
        self._secret = secret
        self._is_dialler = is_dialler
        self._private = X25519PrivateKey.generate()
        self._transcript = preamble
        self._keys: list[bytes] = []
        self.challenge = self._private.public_key().public_bytes_raw()
        """A or D: drawn now, never again."""

    def on_challenge(self, challenge: bytes) -> None:
        """The one that dials hears A."""
        if len(challenge) != KEY_BYTES:
            raise LinkError(Fault.GARBAGE, f"a challenge of {len(challenge)} bytes instead of {KEY_BYTES}")
        self._agree(challenge, challenge + self.challenge)

    def say(self, hello: bytes) -> bytes:
        """What goes out as hello."""
        proof = self._prove(self._is_dialler, hello)
        return (self.challenge if self._is_dialler else b"") + proof + hello

    def hear(self, frame: bytes) -> bytes:
        """The hello in what came in, if the other side has the key."""
        if self._is_dialler and not frame:
            raise LinkError(Fault.SECURITY, "it refuses this host's braid key: the two must have the same")
        if not self._is_dialler:
            challenge, frame = frame[:KEY_BYTES], frame[KEY_BYTES:]
            if len(challenge) != KEY_BYTES:
                raise LinkError(Fault.GARBAGE, "a hello that is too short for a proof of the braid key")
            self._agree(challenge, self.challenge + challenge)
        proof, hello = frame[:KEY_BYTES], frame[KEY_BYTES:]
        if not hmac.compare_digest(proof, self._prove(not self._is_dialler, hello)):
            raise LinkError(Fault.SECURITY, "it has another braid key, or none: its proof is wrong")
        return hello

    def seals(self) -> tuple[Sealer, Opener]:
        """For what goes out and what comes in after both hellos."""
        ours, theirs = self._keys[2:] if self._is_dialler else reversed(self._keys[2:])
        return Sealer(ours), Opener(theirs)

    def _agree(self, other: bytes, nonces: bytes) -> None:
        self._transcript += nonces
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise LinkError(Fault.GARBAGE, "a challenge that is no X25519 key") from None
        derived = HKDF(SHA256(), 4 * KEY_BYTES, salt=self._secret, info=self._transcript).derive(shared)
        self._keys = [derived[start : start + KEY_BYTES] for start in range(0, len(derived), KEY_BYTES)]

    def _prove(self, by_dialler: bool, hello: bytes) -> bytes:
        number = 0 if by_dialler else 1
        proof = hmac.digest(self._keys[number], _ROLES[number] + self._transcript + hello, "sha256")
        self._transcript += hello
        return proof


class Sealer:
    __slots__ = ("_cipher", "_count")

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0

    def seal(self, frame: bytes | bytearray) -> bytearray:
        """A frame (with its length) as it goes out."""
        sealed = bytearray(len(frame) + TAG_BYTES)
        sealed[:LENGTH_BYTES] = (len(sealed) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
        plain, cipher = memoryview(frame)[LENGTH_BYTES:], memoryview(sealed)[LENGTH_BYTES:]
        self._cipher.encrypt_into(_number(self._count), plain, None, cipher)
        self._count += 1
        return sealed


class Opener:
    __slots__ = ("_cipher", "_count")

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0

    def open(self, sealed: bytes) -> bytes:
        """A frame (without its length) as it was before it was sealed."""
        try:
            frame = self._cipher.decrypt(_number(self._count), sealed, None)
        except InvalidTag:
            text = f"frame {self._count} was changed on its way, or is not the next: its seal does not hold"
            raise LinkError(Fault.SEAL, text) from None
        self._count += 1
        return frame


def _number(count: int) -> bytes:
    return count.to_bytes(12, "big")
