"""What the routes of the admin port share: bodies with a bound, and answers as the contract has them."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from braidmq.admin.contract import JSON, ErrorAnswer

NOT_JSON: Final = "expected JSON: Content-Type: application/json"


def is_json(request: web.Request) -> bool:
    """Whether it says that it is JSON: a page of another web site cannot send that without asking first (CORS)."""
    return request.content_type == JSON


async def read_body(request: web.Request, bytes_max: int) -> bytes | None:
    """The body; None if it is too long."""
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > bytes_max:
            return None
        parts.append(part)
    return b"".join(parts)


def answer(content: msgspec.Struct, status: int = 200) -> web.Response:
    return web.json_response(msgspec.to_builtins(content), status=status)


def refusal(status: int, text: str) -> web.Response:
    return answer(ErrorAnswer(text), status)


def not_json() -> web.Response:
    return refusal(415, NOT_JSON)
