"""Transactions on the admin port: batches of publications, as JSON (payloads in base64), each published once.

A program with the admin port's token may publish to every topic: the port is for the operator's own programs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from braidmq.admin.contract import BatchPart, PartReceipt, Receipt
from braidmq.broker.transactions import RefusedPart
from braidmq.server.admin.responses import answer, is_json, not_json, read_body, refusal

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

BODY_MAX: Final = 32 * 2**20
"""Bytes of one part."""


class PublishRoutes:
    """`POST /publish` takes a `BatchPart`, and answers once it is durable."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._decode = msgspec.json.Decoder(BatchPart).decode

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_post("/publish", self._on_publish)

    async def _on_publish(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        body = await read_body(request, BODY_MAX)
        if body is None:
            return refusal(413, f"a part has at most {BODY_MAX // 2**20} MiB: send the batch in more parts")
        try:
            part = self._decode(body)
        except msgspec.MsgspecError as error:
            return refusal(400, f"this is no part of a batch: {error}")
        try:
            receipt = self._broker.transactions.accept(part)
        except RefusedPart as error:
            return refusal(422 if error.is_lasting else 503, str(error))
        if receipt is not Receipt.REPEATED:
            self._broker.flush()
        await self._until_copied()
        if self._broker.degraded:
            return refusal(503, "the broker's store cannot be written at the moment")
        return answer(PartReceipt(receipt, len(part.rows)))

    async def _until_copied(self) -> None:
        """Other brokers may hold copies of the store: by then they have it, too."""
        copied = asyncio.Event()
        self._broker.tick.when_copied(copied.set)
        await copied.wait()
