"""A plan as a picture: throughput and cache hits over the samples alive, as SVG.

Self-contained, with colours that follow the reader's light or dark setting.
"""

from __future__ import annotations

from rolloutkit.resources.plan import Plan
from rolloutkit.resources.steady import Point

_LEFT, _TOP = 70, 30  # pixels
_WIDTH, _HEIGHT = 560, 260
_RIGHT, _BOTTOM = 60, 60
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 } .axis { stroke: #bbb; fill: none }
.rate { stroke: #2563a8; stroke-width: 2; fill: none } .hits { stroke: #b45f1d; fill: none }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .axis { stroke: #555 } .rate { stroke: #7ab0ea } .hits { stroke: #e2a36b }
}"""


def plan_plot(found: Plan) -> str:
    """Output tokens a second (left, solid) and the share of hits (right, dashed)."""
    points = found.curve()
    output = found.worker.workload.output_tokens
    last = points[-1].num_samples
    top = 1.1 * output * max(point.turns_per_second for point in points)

    def x(num_samples: float) -> float:
        return round(_LEFT + _WIDTH * num_samples / last, 1)

    def y(share: float) -> float:
        return round(_TOP + _HEIGHT * (1 - share), 1)

    def path(name: str, heights: list[tuple[Point, float]], dash: str = "") -> str:
        steps = "L".join(f"{x(point.num_samples)} {y(share)}" for point, share in heights)
        return f'<path class="{name}"{dash} d="M{steps}"/>'

    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    rates = [(point, output * point.turns_per_second / top) for point in points]
    hits = [(point, point.hit_rate) for point in points]
    size = f'width="{width}" height="{height}" role="img" aria-label="Throughput over samples"'
    corner = f"M{_LEFT} {_TOP}V{_TOP + _HEIGHT}H{_LEFT + _WIDTH}V{_TOP}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<style>{_STYLE}</style>",
        f'<path class="axis" d="{corner}"/>',
        path("hits", hits, ' stroke-dasharray="5 4"'),
        path("rate", rates),
    ]
    marks = [("keep", found.num_reference), ("best", int(found.best.num_samples))]
    if found.num_collapse is not None:
        marks.append(("collapse", found.num_collapse))
    for row, (name, num) in enumerate(marks):
        level = _TOP + 14 + 15 * row
        parts.append(
            f'<path class="axis" stroke-dasharray="2 3" d="M{x(num)} {_TOP}V{_TOP + _HEIGHT}"/>'
        )
        parts.append(f'<text x="{x(num) + 4}" y="{level}">{name} {num}</text>')
    for step in range(5):
        share = step / 4
        parts.append(_text(x(last * share), _TOP + _HEIGHT + 18, f"{last * share:.0f}", "middle"))
        parts.append(_text(_LEFT - 8, y(share) + 4, f"{top * share:,.0f}", "end"))
        parts.append(_text(_LEFT + _WIDTH + 8, y(share) + 4, f"{share:.0%}", "start"))
    middle = _LEFT + _WIDTH / 2
    parts.append(_text(middle, height - 14, "samples alive on a worker", "middle"))
    parts.append(_text(_LEFT - 60, 16, "output tokens a second (solid)", "start"))
    parts.append(_text(width - 4, 16, "turns that find their cache (dashed)", "end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
