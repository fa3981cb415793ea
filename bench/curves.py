"""Curves as a picture: panels side by side, each with a few lines over one axis, which may be logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import msgspec

PANEL_WIDTH = 400
PANEL_HEIGHT = 280
COLUMNS = 2
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 34, 80
LEGEND_COLUMNS = 2
COLOURS = ("#0b7a75", "#c8553d", "#7a6c9d", "#8d99ae", "#b08900", "#3d5a80")
GRID = "#ddd8cc"
TICKS = 4


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False
    colour: int = 0


class Panel(msgspec.Struct, frozen=True):
    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    is_x_log: bool = False
    is_y_log: bool = False
    bound: float | None = None
    """A target, drawn as a thin line."""


def draw(title: str, panels: Sequence[Panel]) -> str:
    """An SVG with the panels in rows of COLUMNS."""
    rows = -(-len(panels) // COLUMNS)
    width, height = PANEL_WIDTH * min(COLUMNS, len(panels)), PANEL_HEIGHT * rows
    parts = [
        f'<g transform="translate({PANEL_WIDTH * (number % COLUMNS)},{PANEL_HEIGHT * (number // COLUMNS)})">\n'
        f"{_panel(panel)}\n</g>"
        for number, panel in enumerate(panels)
    ]
    style = "font: 11px system-ui, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" style="{style}">\n'
        f'<title>{escape(title)}</title>\n<rect width="{width}" height="{height}" rx="8" fill="#fbfaf7"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points] + ([] if panel.bound is None else [panel.bound])
    right, bottom = PANEL_WIDTH - RIGHT, PANEL_HEIGHT - BOTTOM
    x_of, x_ticks = _scale(xs, LEFT, right, panel.is_x_log)
    y_of, y_ticks = _scale(ys, bottom, TOP, panel.is_y_log)
    parts = [_text(LEFT, 18, panel.title, 'font-weight="600"')]
    for value in y_ticks:
        y = y_of(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 6, y + 4, _short(value), 'text-anchor="end"'))
    for value in x_ticks:
        parts.append(_text(x_of(value), bottom + 15, _short(value), 'text-anchor="middle"'))
    parts.append(_text((LEFT + right) / 2, bottom + 31, panel.x_name, 'text-anchor="middle" fill="#666"'))
    parts.append(_text(right, 18, panel.y_name, 'text-anchor="end" fill="#666"'))
    if panel.bound is not None:
        y = y_of(panel.bound)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#999" stroke-dasharray="2 3"/>')
        parts.append(_text(LEFT + 4, y - 4, "target", 'fill="#777" font-size="10"'))
    for number, line in enumerate(panel.lines):
        parts += _line(line, number, x_of, y_of)
    return "\n".join(parts)


def _line(line: Line, number: int, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> list[str]:
    colour, dash = COLOURS[line.colour % len(COLOURS)], ' stroke-dasharray="5 3"' if line.is_dashed else ""
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
    x = LEFT + (PANEL_WIDTH - LEFT) // LEGEND_COLUMNS * (number % LEGEND_COLUMNS)
    y = PANEL_HEIGHT - BOTTOM + 50 + 14 * (number // LEGEND_COLUMNS)
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
        *(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in line.points),
        f'<line x1="{x}" y1="{y - 4}" x2="{x + 18}" y2="{y - 4}" stroke="{colour}" stroke-width="2"{dash}/>',
        _text(x + 24, y, line.name, f'fill="{colour}"'),
    ]


def _scale(
    values: Sequence[float], begin: float, end: float, is_log: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies between two places, and values worth a mark. A linear axis begins at 0."""
    if is_log:
        low = math.floor(math.log10(max(min(values, default=1.0), 1e-3)))
        high = max(low + 1, math.ceil(math.log10(max(max(values, default=1.0), 1e-3)) - 1e-9))
        ticks = [10.0**power for power in range(low, high + 1)]
        return lambda value: begin + (end - begin) * (math.log10(max(value, 10.0**low)) - low) / (high - low), ticks
    step = _round_step(max(values, default=1.0) or 1.0)
    count = math.ceil((max(values, default=1.0) or 1.0) / step - 1e-9)
    return lambda value: begin + (end - begin) * value / (step * count), [step * k for k in range(count + 1)]


def _round_step(highest: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are about TICKS steps."""
    power = 10.0 ** math.floor(math.log10(highest / TICKS))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= highest / TICKS)


def _short(value: float) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'
