"""A space-time diagram as SVG: a line downwards for each host, an arrow for each message.

Time runs downwards, so the slope of an arrow is the time that it took. A kind of message has its own colour; a reply is
thin. What was lost is dashed and ends in a cross, on the way where the network lost it and at the line of a host that
was not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atan2, ceil, cos, floor, log10, sin
from xml.sax.saxutils import escape

from braidmq.host import Address
from braidmq.sim.journey import Journey

HOSTS_MAX = 64
"""How many hosts fit side by side."""

JOURNEYS_MAX = 1000
"""How many arrows can be told apart, at the most."""

LABELS_MAX = 60
"""With more arrows than this the legend alone tells what they are."""

COLOURS = ("#2f6fde", "#d9480f", "#2b8a3e", "#862e9c", "#c2255c", "#0b7285", "#a17300", "#495057")
LEFT, RIGHT, COLUMN_LEAST, COLUMN_MOST = 92, 56, 44, 150
ROW, HEIGHT_LEAST, HEIGHT_MOST = 34, 260, 1600
DOT, PILL, TICKS = 3.2, 26, 8
LOST_WAY = 0.55
"""How far a lost message is drawn to have come, as a share of its way."""

STYLE = """
text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #343a40 }
.title { font-size: 16px; font-weight: 600; fill: #212529 }
.tick { font-size: 11px; fill: #868e96; text-anchor: end }
.grid { stroke: #e9ecef }
.life { stroke: #ced4da; stroke-width: 1.4 }
.pill { fill: #f1f3f5; stroke: #ced4da }
.host { font-weight: 600; text-anchor: middle }
.label { font-size: 10.5px; text-anchor: middle; stroke: #fff; stroke-width: 3px; paint-order: stroke }
.way { stroke-width: 1.8; fill: none }
.reply { stroke-width: 1 }
.lost { stroke-dasharray: 5 4 }
""".strip()


def draw(journeys: Sequence[Journey], hosts: Sequence[Address] | None = None, title: str = "", now: float = 0.0) -> str:
    """The picture of these journeys; `now` tells what is still under way from what was not heard."""
    if not journeys:
        raise ValueError("there is nothing to draw: no message was sent, or `only` leaves none")
    if len(journeys) > JOURNEYS_MAX:
        raise ValueError(f"{len(journeys)} messages cannot be told apart: choose {JOURNEYS_MAX} at most with `only`")
    shown: list[Address] = list(dict.fromkeys(hosts or _in_order(journeys)))
    if len(shown) > HOSTS_MAX:
        raise ValueError(f"{len(shown)} hosts do not fit side by side: choose {HOSTS_MAX} at most with `hosts`")
    between = [journey for journey in journeys if journey.sender in shown and journey.receiver in shown]
    return _Picture(between, shown, title, now).svg()


def _in_order(journeys: Sequence[Journey]) -> list[Address]:
    """All hosts that take part: numbers in order, then names in order."""
    found = dict.fromkeys(end for journey in journeys for end in (journey.sender, journey.receiver))
    return sorted(found, key=lambda a: (isinstance(a, str), a if isinstance(a, int) else 0, str(a)))


class _Picture:
    """The geometry of one diagram."""

    def __init__(self, journeys: list[Journey], hosts: list[Address], title: str, now: float) -> None:
        self.journeys = journeys
        self.now = now
        self.title = title
        kinds = dict.fromkeys(type(journey.message).__name__ for journey in journeys)
        self.colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
        widest = max(len(str(host)) for host in hosts)
        roomy = max(COLUMN_LEAST, min(COLUMN_MOST, 900 // len(hosts)))
        self.column = max(roomy, 8 * widest + 24)
        self.xs = {host: LEFT + self.column * (i + 0.5) for i, host in enumerate(hosts)}
        self.top = (46 if title else 18) + PILL
        times = [t for j in journeys for t in (j.sent_s, j.arrives_s) if t is not None] or [0.0]
        self.begin_s, self.end_s = min(times), max(times)
        self.span_s = (self.end_s - self.begin_s) or 1.0
        moments = len(set(times))
        self.tall = float(min(HEIGHT_MOST, max(HEIGHT_LEAST, ROW * moments)))
        self.width = LEFT + self.column * len(hosts) + RIGHT
        self.bottom = self.top + 26 + self.tall + 18

    def y(self, time_s: float) -> float:
        return self.top + 26 + (time_s - self.begin_s) / self.span_s * self.tall

    def svg(self) -> str:
        legend, legend_height = self._legend()
        height = self.bottom + legend_height
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'width="{self.width:.0f}" height="{height:.0f}">',
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            *([f'<text class="title" x="20" y="30">{escape(self.title)}</text>'] if self.title else []),
            *self._axis(),
            *self._lives(),
            *(part for journey in self.journeys for part in self._way(journey)),
            *self._labels(),
            *legend,
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _axis(self) -> list[str]:
        step_s = _round_step(self.span_s / TICKS)
        unit, scale = ("s", 1.0) if self.span_s >= 2 else ("ms", 1000.0)
        decimals = max(0, -floor(log10(step_s * scale) + 1e-9))
        parts = []
        for i in range(ceil(self.begin_s / step_s - 1e-9), floor(self.end_s / step_s + 1e-9) + 1):
            y = self.y(i * step_s)
            parts.append(f'<line class="grid" x1="{LEFT - 8}" y1="{y:.1f}" x2="{self.width - 20}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 14}" y="{y + 4:.1f}">{i * step_s * scale:.{decimals}f} {unit}</text>'
            )
        return parts

    def _lives(self) -> list[str]:
        parts = []
        for host, x in self.xs.items():
            wide = 8 * len(str(host)) + 16
            parts += [
                f'<line class="life" x1="{x:.1f}" y1="{self.top}" x2="{x:.1f}" y2="{self.bottom:.1f}"/>',
                f'<rect class="pill" x="{x - wide / 2:.1f}" y="{self.top - PILL}" rx="13" '
                f'width="{wide}" height="{PILL}"/>',
                f'<text class="host" x="{x:.1f}" y="{self.top - 9}">{escape(str(host))}</text>',
            ]
        return parts

    def _ends(self, journey: Journey) -> tuple[float, float, float, float]:
        """From where to where an arrow goes; one that was lost shows the way it would have taken."""
        took_s = self.span_s / 12 if journey.arrives_s is None else journey.arrives_s - journey.sent_s
        x1, x2 = self.xs[journey.sender], self.xs[journey.receiver]
        y1, y2 = self.y(journey.sent_s), self.y(journey.sent_s + took_s)
        if journey.arrives_s is None:
            return x1, y1, x1 + (x2 - x1) * LOST_WAY, y1 + (y2 - y1) * LOST_WAY
        return x1, y1, x2, y2

    def _is_lost(self, journey: Journey) -> bool:
        return journey.arrives_s is None or (not journey.heard and journey.arrives_s <= self.now)

    def _way(self, journey: Journey) -> list[str]:
        kind = type(journey.message).__name__
        colour = self.colours[kind]
        lost = self._is_lost(journey)
        x1, y1, x2, y2 = self._ends(journey)
        classes = "way" + (" reply" if not journey.hops else "") + (" lost" if lost else "")
        if journey.sender == journey.receiver:
            bow = f"M{x1:.1f} {y1:.1f} C{x1 + 30:.1f} {y1:.1f} {x2 + 30:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
            angle = 3.1416
        else:
            bow = f"M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}"
            angle = atan2(y2 - y1, x2 - x1)
        return [
            f"<g><title>{escape(_told(journey))}</title>",
            f'<path class="{classes}" d="{bow}" stroke="{colour}"/>',
            f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="{DOT}" fill="{colour}"/>',
            _cross(x2, y2, colour) if lost else _head(x2, y2, angle, colour),
            "</g>",
        ]

    def _labels(self) -> list[str]:
        """The kind of each message along its arrow, where there is room for it."""
        if len(self.journeys) > LABELS_MAX:
            return []
        parts: list[str] = []
        placed: list[tuple[float, float]] = []
        for journey in self.journeys:
            kind = type(journey.message).__name__
            x1, y1, x2, y2 = self._ends(journey)
            if abs(x2 - x1) < 7 * len(kind):
                continue
            share = 0.5 if len(self.xs) < 4 else max(0.5, 1 - 0.5 * self.column / abs(x2 - x1))
            x, y = x1 + (x2 - x1) * share, y1 + (y2 - y1) * share
            if any(abs(x - other_x) < 6 * len(kind) and abs(y - other_y) < 11 for other_x, other_y in placed):
                continue
            placed.append((x, y))
            slope = atan2(y2 - y1, x2 - x1) * 57.29578
            slope = slope if abs(slope) <= 90 else slope - 180 * (1 if slope > 0 else -1)
            parts.append(
                f'<text class="label" style="fill:{self.colours[kind]}" x="{x:.1f}" y="{y:.1f}" dy="-4" '
                f'transform="rotate({slope:.1f} {x:.1f} {y:.1f})">{escape(kind)}</text>'
            )
        return parts

    def _legend(self) -> tuple[list[str], float]:
        entries = [(kind, colour, "way") for kind, colour in self.colours.items()]
        if any(not journey.hops for journey in self.journeys):
            entries.append(("a reply", "#868e96", "way reply"))
        if any(self._is_lost(journey) for journey in self.journeys):
            entries.append(("lost", "#868e96", "way lost"))
        parts, x, y = [], 20.0, self.bottom + 26
        for name, colour, classes in entries:
            wide = 48 + 7.5 * len(name)
            if x + wide > self.width and x > 20:
                x, y = 20.0, y + 22
            parts.append(f'<path class="{classes}" d="M{x:.1f} {y - 4:.1f} h26" stroke="{colour}"/>')
            parts.append(f'<text x="{x + 33:.1f}" y="{y:.1f}">{escape(name)}</text>')
            x += wide
        return parts, y - self.bottom + 18


def _told(journey: Journey) -> str:
    arrived = "lost" if journey.arrives_s is None else f"{journey.arrives_s:.6f} s"
    return f"{journey.sender} → {journey.receiver}, {journey.sent_s:.6f} s → {arrived}: {journey.message!r}"[:400]


def _head(x: float, y: float, angle: float, colour: str) -> str:
    """An arrow's head; drawn, for not every viewer colours markers."""
    corners = [(x, y), *((x - 10 * cos(angle + turn), y - 10 * sin(angle + turn)) for turn in (0.36, -0.36))]
    return f'<polygon points="{" ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners)}" fill="{colour}"/>'


def _cross(x: float, y: float, colour: str) -> str:
    arms = f"M{x - 4.5:.1f} {y - 4.5:.1f} l9 9 m0 -9 l-9 9"
    return f'<path d="{arms}" stroke="{colour}" stroke-width="2.2" stroke-linecap="round"/>'


def _round_step(least: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(least))
    return next((f * power for f in (1.0, 2.0, 5.0) if f * power >= least * 0.999), 10 * power)
