"""What the routes of the admin port share: bodies with a bound, and answers that say what was wrong."""

from __future__ import annotations

from aiohttp import web


def is_json(request: web.Request) -> bool:
    """Whether it is said to be JSON: what a page of another web site cannot send without being asked for leave."""
    return request.content_type == "application/json"


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


def refusal(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def not_json() -> web.Response:
    return refusal(415, "expected JSON: Content-Type: application/json")
