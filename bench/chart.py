"""The rates as a picture: for each scenario a bar for each broker, its length relative to the fastest there."""

from __future__ import annotations

from html import escape

from bench.peers import BASELINE, OURS
from bench.scenarios import SCENARIOS
from bench.table import Report, Row

WIDTH = 860
LEFT = 210
BAR_MAX = 430
BAR = 15
GAP = 14
TOP = 20
COLOURS = {OURS: "#0b7a75", BASELINE: "#c8553d"}
OTHERS = ("#7a6c9d", "#8d99ae")


def draw(report: Report) -> str:
    """An SVG of what each broker delivered a second."""
    rates = {scenario.name for scenario in SCENARIOS if scenario.measure == "out_per_s"}
    y = TOP
    parts: list[str] = []
    for name in dict.fromkeys(row.scenario for row in report.rows if row.scenario in rates):
        rows = [row for row in report.rows if row.scenario == name and row.median is not None]
        fastest = max((row.median.out_per_s for row in rows if row.median), default=0) or 1
        parts.append(_text(LEFT - 12, y + BAR * len(rows) / 2 + 4, name, 'text-anchor="end" font-weight="600"'))
        for row in rows:
            parts.append(_bar(row, y, fastest))
            y += BAR
        y += GAP
    style = "font: 12px system-ui, sans-serif"
    frame = f'<rect width="{WIDTH}" height="{y}" rx="8" fill="#fbfaf7"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" style="{style}">\n'
        f"<title>Messages delivered a second</title>\n{frame}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _bar(row: Row, y: float, fastest: int) -> str:
    assert row.median is not None
    rate = row.median.out_per_s
    length = max(1.0, BAR_MAX * rate / fastest)
    colour = COLOURS.get(row.peer) or OTHERS[hash_free_index(row.peer)]
    ratio = f"  {row.ratio:.1f}×" if row.peer == OURS and row.ratio is not None else ""
    label = f"{row.peer}  {_short(rate)}/s{ratio}"
    rect = f'<rect x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR - 2}" rx="2" fill="{colour}"/>'
    return rect + _text(LEFT + length + 6, y + BAR - 4, label, f'fill="{colour}" font-size="11"')


def hash_free_index(peer: str) -> int:
    """One of the other colours, the same in every process."""
    return sum(peer.encode()) % len(OTHERS)


def _short(rate: int) -> str:
    return f"{rate / 1e6:.2f} M" if rate >= 1_000_000 else f"{rate / 1e3:.0f} k"


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:g}" {attributes}>{escape(text)}</text>'
