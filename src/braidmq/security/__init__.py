"""Who a client is and what it may do: what a plug-in needs, whether it authenticates clients or judges what they do."""

from braidmq.security.identity import (
    ANONYMOUS,
    Access,
    AuthenticationMethod,
    Authenticator,
    Challenge,
    ClientIds,
    Credentials,
    Exchange,
    Identity,
    Origin,
    Refusal,
    Verdict,
)

__all__ = [
    "ANONYMOUS",
    "Access",
    "AuthenticationMethod",
    "Authenticator",
    "Challenge",
    "ClientIds",
    "Credentials",
    "Exchange",
    "Identity",
    "Origin",
    "Refusal",
    "Verdict",
]
