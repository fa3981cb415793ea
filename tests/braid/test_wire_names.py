"""Brokers of two versions understand each other: a message that is called otherwise now travels under its old name."""

from __future__ import annotations

from braidmq.braid.node import messages_of
from braidmq.braid.retained.messages import AskReplicas, CompareReplicas

NAMES = [
    "Again",
    "AreYouThere",
    "AskEntries",
    "AskFollowed",
    "AskKept",
    "AskKeptPage",
    "AskLoans",
    "AskMirror",
    "AskMissed",
    "AskReached",
    "AskRoom",
    "AskSession",
    "AskStatus",
    "AskTakenUp",
    "Assign",
    "Assigned",
    "BeginCopy",
    "Claim",
    "Claimed",
    "Compare",
    "CompareGroups",
    "Compared",
    "ConfirmEntries",
    "Copies",
    "CopyBegun",
    "CopyBlocks",
    "CopyDropped",
    "CopyHeartbeat",
    "CopyHeld",
    "CopyRefused",
    "Deleted",
    "Done",
    "DropCopy",
    "EntriesConfirmed",
    "FetchState",
    "FetchSubscriptions",
    "ForgetTaken",
    "FoundSession",
    "GiveUp",
    "GivenUp",
    "GroupsKnown",
    "HasFollowed",
    "HasRoom",
    "HistoryTaken",
    "IsKept",
    "Kept",
    "KeptPage",
    "LoansKnown",
    "MirrorOffer",
    "Missed",
    "NoSuchMove",
    "NotMine",
    "NotTaken",
    "Offer",
    "Offered",
    "ProbeMet",
    "Register",
    "Registered",
    "RetainedTaken",
    "SnapshotPart",
    "SnapshotTaken",
    "State",
    "StillThere",
    "Subscriptions",
    "Tail",
    "TailWaits",
    "TakeHistory",
    "TakeRetained",
    "TakeSession",
    "Taken",
    "TakenUp",
    "TakingSession",
    "TellFilters",
    "TellReached",
    "TellStatus",
    "TellWanted",
    "WantedTaken",
]
"""Of the messages that the braid itself sends, whatever its method."""


def test_messages_travel_under_the_names_they_always_had() -> None:
    kinds = [kind for kind in messages_of("relayfree") if kind.__module__.startswith("braidmq.braid.")]
    assert sorted(str(kind.__struct_config__.tag) for kind in kinds) == NAMES


def test_questions_about_retained_messages_do_too() -> None:
    assert AskReplicas.__struct_config__.tag == "AskKept"
    assert CompareReplicas.__struct_config__.tag == "CompareKept"
