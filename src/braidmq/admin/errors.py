"""Why an admin port gave no answer, in words for people. Callers add what their own user can do about it."""

from __future__ import annotations

from http import HTTPStatus

IS_IT_A_BROKER = "is that the admin port of a broker?"


class AdminError(Exception):
    """A question without an answer; the text names the admin port, `reason` does not."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


class Unreachable(AdminError):
    """No connection: nothing was asked."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"there is no admin port at {url}: {reason}", str(reason))


class Unanswered(AdminError):
    """The question was sent and no whole answer came: what was asked for may have happened."""

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"{url} gave no answer: {reason}; {IS_IT_A_BROKER}", str(reason))


class TooSlow(Unanswered):
    """No answer in time."""

    def __init__(self, url: str, timeout_s: float) -> None:
        AdminError.__init__(self, f"{url} did not answer within {timeout_s:g} s", f"nothing within {timeout_s:g} s")


class WrongToken(AdminError):
    """It wants the bearer token of [admin] in its configuration, and got another one or none."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url} asks for the right token", "it asks for the right token")


class AnswerRefused(AdminError):
    """The broker's no, and why."""

    def __init__(self, url: str, status: int, text: str | None) -> None:
        self.status = status
        self.is_broker = text is not None
        """Whether it gave a reason as brokers do. One that is too old for a question does not know its path."""
        reason = f"it answered {status}: {IS_IT_A_BROKER}" if text is None else text
        super().__init__(f"{url}: {reason}", reason)

    @property
    def is_for_now(self) -> bool:
        """Whether the same question may be answered later."""
        return self.status == HTTPStatus.SERVICE_UNAVAILABLE


class NotABroker(AdminError):
    """An answer, and none of this contract: another program, or a broker of another version."""

    def __init__(self, url: str, what: str = "gave no JSON") -> None:
        super().__init__(f"{url} {what}: {IS_IT_A_BROKER}", f"it {what}: {IS_IT_A_BROKER}")
