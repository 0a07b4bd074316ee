from rolloutkit.engines.prometheus import Sample, read_samples

TEXT = """\
# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\", c"} 3.0
vllm:num_requests_running_total 9
up 1 1700000000
sglang:seconds_sum{stage="x"} 1.5e-05
"""


def test_samples_are_found_by_their_whole_name() -> None:
    found = list(read_samples(TEXT, {"vllm:num_requests_running", "up", "sglang:seconds_sum"}))

    assert found == [
        Sample("vllm:num_requests_running", {"engine": "0", "model_name": 'a \\"b\\", c'}, 3.0),
        Sample("up", {}, 1.0),
        Sample("sglang:seconds_sum", {"stage": "x"}, 1.5e-05),
    ]


def test_a_text_without_the_names_has_no_samples() -> None:
    assert list(read_samples("<html>", {"up"})) == []
