"""What hosts say to find out who reaches whom."""

from __future__ import annotations

from braidmq.host import Address, Message


class PingDirectly(Message, frozen=True, array_like=True, gc=False):
    """Sent directly, whatever the detours are: do you hear me?"""

    is_back: bool = False
    """Whether I have heard you, and want to know whether the way back is there, too."""


class AnswerPing(Message, frozen=True, array_like=True, gc=False):
    """I have heard you directly. Sent in whichever ways I may have to you."""


class AskReach(Message, frozen=True, array_like=True, gc=False):
    """This host does not answer me. Does it answer you?"""

    address: Address


class TellReach(Message, frozen=True, array_like=True, gc=False):
    """It does; and whether it says that it hears you all the same."""

    address: Address
    is_heard: bool


class AskHearing(Message, frozen=True, array_like=True, gc=False):
    """Does anything come to you directly from this host?"""

    address: Address


class TellHearing(Message, frozen=True, array_like=True, gc=False):
    is_heard: bool


class NotPassed(Message, frozen=True, array_like=True, gc=False):
    """You asked me to pass something on to this host, and I do not reach it."""

    address: Address
