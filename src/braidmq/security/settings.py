"""Who clients are and what they may do, as data: the tables [authentication] and [access] of the configuration.

The text under a field is its meaning in docs/configuration.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = tuple[Text, ...]
Action = Literal["publish", "subscribe", "will"]
Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class Plugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Python class to load. A plain string in the file is short for a table with `use` alone."""

    use: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """The class, as `package.module:Class`."""
    options: dict[str, Any] = {}
    """What the class is called with, as keyword arguments."""


class Jwt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)]
    """The signatures that are accepted. There is no default, and `none` is never accepted."""
    key: Text | None = None
    """The shared secret (HS algorithms). Exactly one of `key`, `key_file` and `jwks_file` is to be given."""
    key_file: Text | None = None
    """A file with the shared secret (HS), or with a public key or certificate in PEM (the others)."""
    jwks_file: Text | None = None
    """A file with a JSON Web Key Set; tokens choose a key by `kid`."""
    issuer: Text | None = None
    """What the claim `iss` must be."""
    audience: Text | None = None
    """What the claim `aud` must contain. Tokens with an audience are refused if this is not given."""
    user_claim: Text = "sub"
    """The claim that holds the user name."""
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """How far clocks may differ."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    password_file: Text | None = None
    """Users and their argon2id hashes, kept with `braidmq passwd`."""
    jwt: Jwt | None = None
    """JSON Web Tokens, which clients send as their password."""
    plugins: tuple[Plugin, ...] = ()
    """Authenticators of your own, asked in this order after everything else."""
    enhanced: tuple[Plugin, ...] = ()
    """Methods for the AUTH exchange of MQTT 5."""
    allow_anonymous_everywhere: bool = False
    """Lets listeners that other machines can reach accept clients without credentials. Anyone can then connect."""

    @property
    def configured(self) -> bool:
        """True if there is any way to tell clients apart, beyond what a listener asks of their certificates."""
        return bool(self.password_file or self.jwt or self.plugins or self.enhanced)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    users: Annotated[Texts, msgspec.Meta(min_length=1)] = ("*",)
    """Whom the rule is about, as globs: `*` is everyone, `anonymous` those without a user name."""
    clients: Annotated[Texts, msgspec.Meta(min_length=1)] = ("*",)
    """The client identifiers that the rule is about, as globs."""
    allow: tuple[Action, ...] = ()
    """What the rule allows."""
    deny: tuple[Action, ...] = ()
    """What the rule forbids."""
    topics: Annotated[Texts, msgspec.Meta(min_length=1)]
    """Topic filters. `%u` stands for the user name, `%c` for the client identifier."""


class ClientIdRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    users: Annotated[Texts, msgspec.Meta(min_length=1)] = ("*",)
    """Whom the rule is about, as globs: `*` is everyone, `anonymous` those without a user name."""
    client_id: Text
    """What their client identifiers look like, such as `{user}-+`: `{user}` is the user name, `{certificate}` the
    common name of the client's certificate, `+` any text, `*` any text or none."""


class AccessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default: Literal["allow", "deny"] | None = None
    """What holds where no rule does. By default `allow` if there are no rules at all, else `deny`."""
    rules: tuple[Rule, ...] = ()
    """The rules in order; the first that matches decides."""
    client_ids: tuple[ClientIdRule, ...] = ()
    """Which client identifiers users may connect with; the first rule that names the user decides. Without one: any."""
    foreign_session: Literal["refuse", "fresh"] = "refuse"
    """What a client gets whose identifier has a session of another user: a refusal, or a fresh session in its place. A
    user who is connected keeps the session in any case."""
    plugin: Plugin | None = None
    """A class of your own that must agree as well."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """What one listener asks of clients that come in."""

    name: str
    admits_anonymous: bool
    allow_users: Texts = ()
    """As globs; empty: everyone who is known."""
    user_from_certificate: Literal["none", "common_name", "alternative_name"] = "none"
    demands_certificate: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """All that decides which clients come in."""

    authentication: Authentication
    entrances: tuple[Entrance, ...] = ()
    admits_anonymous: bool = True
    """At a listener that is none of these."""


class SettingError(ValueError):
    """A setting that cannot be used: its key, the value as given, and what was expected."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        super().__init__(f"{key}: {expected}")
        self.key = key
        self.value = value
        self.expected = expected
