"""Access control: which user, from which client, may publish to, subscribe to or leave a will for which topics.

The rules are asked in order, and the first that matches decides; where none does, the default holds.

A rule matches if one of its `users` and one of its `clients` does, it speaks of the action, and one of its `topics`
does: a publication's topic must match a pattern; of a subscription's filter, an allowing rule's pattern must cover all,
while a forbidding rule matches as soon as a pattern overlaps with any of it. So a subscription is allowed only if each
topic that it can bring would be allowed by itself. Of a shared subscription the filter after `$share/<group>/` counts.

A will is a publication in advance: a rule that speaks of `publish` speaks of wills too, unless it names `will` itself,
in `allow` or in `deny`. A rule that names `will` alone says nothing about publications.
"""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from braidmq.security.identity import Access, Identity
from braidmq.security.settings import AccessConfig, Action, Rule
from braidmq.security.topic_patterns import bound, covers, overlaps, without_share

ANONYMOUS_NAME = "anonymous"
"""What stands in a list of users for clients without a user name."""
CLIENTS_REMEMBERED_MAX = 4_096
"""Clients for which the rules that concern them are remembered."""

log = logging.getLogger(__name__)


class UserGlobs:
    """A list of users as globs. `*` is everyone; `anonymous` is those without a name, and no user of that name."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._everyone = "*" in globs
        self._nameless = self._everyone or ANONYMOUS_NAME in globs
        self._matches = _glob_matcher([glob for glob in globs if glob != ANONYMOUS_NAME])

    def match(self, user: str | None) -> bool:
        return self._nameless if user is None else self._everyone or self._matches(user)


def _glob_matcher(globs: Sequence[str]) -> Callable[[str], bool]:
    expressions = [re.compile(fnmatch.translate(glob)) for glob in globs]
    return lambda text: any(expression.match(text) for expression in expressions)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one rule says to one client about one action."""

    allows: bool
    patterns: tuple[tuple[str, ...], ...]


_Verdicts = dict[Action, tuple[_Verdict, ...]]


class _CompiledRule:
    def __init__(self, rule: Rule) -> None:
        self.users = UserGlobs(rule.users)
        self.is_for_client = _glob_matcher(rule.clients)
        self.topics = rule.topics
        self.says: dict[Action, bool] = dict.fromkeys(rule.allow, True) | dict.fromkeys(rule.deny, False)
        if "publish" in self.says:
            self.says.setdefault("will", self.says["publish"])


class AccessRules:
    """The rules of a configuration."""

    def __init__(self, config: AccessConfig) -> None:
        self._rules = [_CompiledRule(rule) for rule in config.rules]
        self._default = not config.rules if config.default is None else config.default == "allow"
        self._verdicts = lru_cache(CLIENTS_REMEMBERED_MAX)(self._verdicts_for)

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
        return self._may_send("publish", identity, client_id, topic)

    def may_will(self, identity: Identity, client_id: str, topic: str) -> bool:
        return self._may_send("will", identity, client_id, topic)

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool:
        own = without_share(topic_filter)
        if own is None:
            return False
        levels = own.split("/")
        for verdict in self._verdicts(identity.user, client_id)["subscribe"]:
            concerned = covers if verdict.allows else overlaps
            if any(concerned(pattern, levels) for pattern in verdict.patterns):
                return verdict.allows
        return self._default

    def unrestricted(self, identity: Identity, client_id: str) -> bool:
        """True if the default allows all and no rule forbids this client any publication."""
        return self._default and all(verdict.allows for verdict in self._verdicts(identity.user, client_id)["publish"])

    def _may_send(self, action: Action, identity: Identity, client_id: str, topic: str) -> bool:
        levels = topic.split("/")
        for verdict in self._verdicts(identity.user, client_id)[action]:
            if any(covers(pattern, levels) for pattern in verdict.patterns):
                return verdict.allows
        return self._default

    def _verdicts_for(self, user: str | None, client_id: str) -> _Verdicts:
        """What the rules say to one client, by action and in order; those that can never match are left out."""
        verdicts: dict[Action, list[_Verdict]] = {"publish": [], "subscribe": [], "will": []}
        for rule in self._rules:
            if rule.users.match(user) and rule.is_for_client(client_id):
                usable = tuple(filter(None, (bound(pattern, user, client_id) for pattern in rule.topics)))
                for action, allows in rule.says.items():
                    if usable:
                        verdicts[action].append(_Verdict(allows, usable))
        return {action: tuple(said) for action, said in verdicts.items()}


class BothAccess:
    """The rules and a plug-in, of which both must allow. A plug-in that fails allows nothing."""

    def __init__(self, rules: Access, plugin: Access) -> None:
        self._rules = rules
        self._plugin = plugin

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
        return self._rules.may_publish(identity, client_id, topic) and self._asked(
            self._plugin.may_publish, identity, client_id, topic
        )

    def may_will(self, identity: Identity, client_id: str, topic: str) -> bool:
        return self._rules.may_will(identity, client_id, topic) and self._asked(
            self._plugin.may_will, identity, client_id, topic
        )

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool:
        return self._rules.may_subscribe(identity, client_id, topic_filter) and self._asked(
            self._plugin.may_subscribe, identity, client_id, topic_filter
        )

    def unrestricted(self, identity: Identity, client_id: str) -> bool:
        return self._rules.unrestricted(identity, client_id) and self._asked(
            self._plugin.unrestricted, identity, client_id
        )

    def _asked(self, question: Callable[..., object], identity: Identity, *about: str) -> bool:
        try:
            answer = question(identity, *about)
        except Exception:
            log.exception("the access plug-in failed on %s; nothing is allowed", about)
            return False
        if not isinstance(answer, bool):
            log.error("the access plug-in answered %r on %s, expected true or false; nothing is allowed", answer, about)
            return False
        return answer
