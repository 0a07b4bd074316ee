"""A comparison as a picture: each variant's change against the first, with its interval, as SVG.

Self-contained, with colours that follow the reader's light or dark setting.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from rolloutkit.compare import Comparison, Estimate, Variant

_ROW = 26  # pixels
_LABEL = 320  # pixels left of the plot
_PLOT = 420
_MARGIN = 40
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 }
.axis { stroke: #bbb } .interval { stroke: #2563a8; stroke-width: 2 } circle { fill: #2563a8 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .axis { stroke: #555 } .interval { stroke: #7ab0ea } circle { fill: #7ab0ea }
}"""


def forest_plot(comparison: Comparison) -> str:
    """One row a variant, the first on top; left of the dashed line is shorter than the first."""
    spans = [_span(variant) for variant in comparison.variants]
    low, high = min(span.low for span in spans), max(span.high for span in spans)
    pad = 0.05 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def x(percent: float) -> float:
        return round(_LABEL + _PLOT * (percent - low) / (high - low), 1)

    height = _MARGIN + _ROW * len(spans) + _MARGIN
    bottom = height - _MARGIN
    reference = x(0.0)
    width = _LABEL + _PLOT + _MARGIN
    size = f'width="{width}" height="{height}" role="img" aria-label="Change of makespan"'
    top = _MARGIN - 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<style>{_STYLE}</style>",
        f'<line class="axis" x1="{_LABEL}" x2="{_LABEL + _PLOT}" y1="{bottom}" y2="{bottom}"/>',
        f'<path class="axis" stroke-dasharray="4" d="M{reference} {top}V{bottom}"/>',
    ]
    for index, (variant, span) in enumerate(zip(comparison.variants, spans, strict=True)):
        y = _MARGIN + _ROW * index
        parts += [
            f'<text x="{_LABEL - 12}" y="{y + 4}" text-anchor="end">{escape(variant.name)}</text>',
            f'<line class="interval" x1="{x(span.low)}" x2="{x(span.high)}" y1="{y}" y2="{y}"/>',
            f'<circle cx="{x(span.mean)}" cy="{y}" r="4"/>',
        ]
    for step in range(5):
        percent = low + (high - low) * (step + 0.5) / 5
        mark = f'x="{x(percent)}" y="{bottom + 18}" text-anchor="middle"'
        parts.append(f"<text {mark}>{percent:+.1f} %</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Span(NamedTuple):
    low: float
    mean: float
    high: float


def _span(variant: Variant) -> _Span:
    """The variant's change in percent; the first is where it is."""
    change = variant.change_percent or Estimate(0.0, None)
    half = change.plus_minus or 0.0
    return _Span(change.mean - half, change.mean, change.mean + half)
