"""Which client identifiers users may connect with, as the configuration says.

The first rule that names the user decides; a user whom no rule names may take any identifier that is free.
"""

from __future__ import annotations

from braidmq.security.access import UserGlobs
from braidmq.security.client_id_patterns import client_id_matches
from braidmq.security.identity import Identity, Origin
from braidmq.security.settings import AccessConfig


class ClientIdRules:
    def __init__(self, config: AccessConfig) -> None:
        self.starts_fresh = config.foreign_session == "fresh"
        self._rules = [(UserGlobs(rule.users), rule.client_id) for rule in config.client_ids]

    def allows(self, identity: Identity, origin: Origin, client_id: str) -> bool:
        pattern = next((pattern for users, pattern in self._rules if users.match(identity.user)), None)
        return pattern is None or client_id_matches(pattern, client_id, identity.user, origin.common_name)
