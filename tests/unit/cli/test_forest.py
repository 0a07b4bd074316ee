from xml.etree import ElementTree

from rolloutkit.cli.forest import forest_plot
from rolloutkit.compare import Comparison, Estimate, Variant


def variant(name, mean, plus_minus):
    return Variant(
        settings={"key": name},
        makespans=(mean,),
        makespan_seconds=Estimate(mean, plus_minus),
        gap=None,
        change_percent=None,
        num_failed=0,
    )


def plot(*variants):
    comparison = Comparison(trace="t", seeds=(0,), confidence=0.9, variants=variants)
    return ElementTree.fromstring(forest_plot(comparison))


def test_shorter_batches_lie_further_left_and_names_are_escaped():
    svg = plot(variant("<a&b>", 200.0, 10.0), variant("b", 100.0, 5.0))

    slow, fast = (float(circle.get("cx")) for circle in svg.findall("{*}circle"))
    assert fast < slow
    assert svg.find("{*}text").text == "key=<a&b>"


def test_single_seed_has_a_point_and_no_interval():
    svg = plot(variant("a", 100.0, None))

    (interval,) = svg.findall("{*}line[@class='interval']")
    assert interval.get("x1") == interval.get("x2")
