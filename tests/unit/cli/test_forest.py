from xml.etree import ElementTree

from rolloutkit.cli.forest import forest_plot
from rolloutkit.compare import Comparison, Estimate, Variant


def variant(name, change=None, plus_minus=None):
    return Variant(
        settings={"key": name},
        makespans=(100.0,),
        makespan_seconds=Estimate(100.0, None),
        gap=None,
        change_percent=None if change is None else Estimate(change, plus_minus),
        num_failed=0,
    )


def plot(*variants):
    comparison = Comparison(trace="t", seeds=(0,), confidence=0.9, variants=variants)
    return ElementTree.fromstring(forest_plot(comparison))


def test_shorter_batches_lie_further_left_and_names_are_escaped():
    svg = plot(variant("<a&b>"), variant("b", -10.0, 5.0))

    first, faster = (float(circle.get("cx")) for circle in svg.findall("{*}circle"))
    assert faster < first
    assert svg.find("{*}text").text == "key=<a&b>"


def test_first_variant_is_a_point_without_interval():
    svg = plot(variant("a"))

    (interval,) = svg.findall("{*}line[@class='interval']")
    assert interval.get("x1") == interval.get("x2")
