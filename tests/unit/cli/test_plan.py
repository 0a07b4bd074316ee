"""`rolloutkit plan`: what it prints, what it writes, what it refuses."""

import json
import re
from xml.etree import ElementTree

from rolloutkit.cli import main
from tests.unit.replay.recordings import call, life, turn, write, write_lines

LING = ["model=ling-3.0-flash", "gpu=H200", "tp=2", "weights=fp8", "memory_gb=55"]
NUMBERS = [
    "turns=30",
    "first_prompt=4000",
    "new_tokens=1500",
    "output_tokens=500",
    "act_seconds=20",
]


def test_the_plan_is_told_in_figures_words_and_flags(capsys):
    assert main(["plan", *LING, *NUMBERS, "workers=4"]) == 0

    text = capsys.readouterr().out
    assert "ling-3.0-flash on 2 x H200 a replica, 4 workers" in text
    keep, total = re.search(r"samples to keep alive +(\d+) +(\d+)", text).groups()
    assert int(total) == 4 * int(keep)
    assert f"Keep {keep} alive on each worker" in " ".join(text.split())
    assert re.search(r"--max-mamba-cache-size \d+ --mamba-max-states-per-path 1", text)
    assert "vLLM raises its block to 1,024 tokens" in text


def test_json_is_all_that_is_printed(capsys):
    assert main(["plan", *LING, *NUMBERS, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["kv_bytes_per_token"] == 8_064
    assert document["num_reference"] < document["num_collapse"]
    assert document["reference"]["output_tokens_per_second"] > 0
    assert len(document["curve"]) > 20
    assert document["is_verified"] is True


def test_two_plans_of_one_question_are_equal(capsys):
    main(["plan", *LING, *NUMBERS, "--json"])
    first = capsys.readouterr().out
    main(["plan", *LING, *NUMBERS, "--json"])

    assert capsys.readouterr().out == first


def test_the_plot_is_a_picture_with_the_numbers(capsys, tmp_path):
    assert main(["plan", *LING, *NUMBERS, "--json", "--plot", str(tmp_path / "plan.svg")]) == 0

    document = json.loads(capsys.readouterr().out)
    picture = ElementTree.parse(tmp_path / "plan.svg")
    texts = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert f"keep {document['num_reference']}" in texts
    assert f"collapse {document['num_collapse']}" in texts


def test_a_trace_gives_the_workload(capsys, tmp_path):
    line = {"trace_id": "x", "turns": [turn(prompt_tokens_new=2_000) for _ in range(5)]}
    path = write_lines(tmp_path / "n.jsonl.gz", line)

    assert main(["plan", "model=qwen3-8b", "gpu=H100", f"workload={path}"]) == 0

    assert "an idle sample of" in " ".join(capsys.readouterr().out.split())


def test_unverified_facts_are_said(capsys):
    main(["plan", "model=ling-2.6-flash", "gpu=B200", "weights=fp8", *NUMBERS])

    assert "unverified: Hugging Face card" in capsys.readouterr().out


def test_models_are_listed(capsys):
    assert main(["plan", "--models"]) == 0

    assert "qwen3-next-80b-a3b\n" in capsys.readouterr().out


def test_a_gpu_may_be_given_by_figures(capsys):
    figures = ["gpu.name=mine", "gpu.memory_bytes=48e9", "gpu.bytes_per_second=1e12"]

    assert main(["plan", "model=qwen3-8b", *figures, "gpu.flops=1e14", *NUMBERS]) == 0
    assert "qwen3-8b on 1 x mine" in capsys.readouterr().out


def test_bad_input_is_one_line_and_writes_nothing(capsys, tmp_path):
    silent = write(tmp_path / "t.jsonl.gz", life("a#0", call("a#0", 1.0, context_tokens=0)))
    (tmp_path / "config.json").write_text('{"model_type": "novel", "hidden_size": 8}')
    plot = tmp_path / "plan.svg"
    cases = {
        "lacks layer_types": [f"model={tmp_path}", "gpu=H200", *NUMBERS],
        "tp: 3 does not divide the 32": [*LING, "tp=3", *NUMBERS],
        "needs 141 GB of weights": ["model=llama-3.1-70b", "gpu=H200", *NUMBERS],
        "holds no token counts": [*LING, f"workload={silent}"],
        "cannot read nowhere.gz": [*LING, "workload=nowhere.gz"],
        "slots=9 and ratio=0.5 both set": [*LING, "slots=9", "ratio=0.5", *NUMBERS],
        "both say what samples ask for": [*LING, f"workload={silent}", *NUMBERS],
        "memory_gb and memory_fraction": [*LING, "memory_fraction=0.9", *NUMBERS],
        "keeps no recurrent state": ["model=qwen3-8b", "gpu=H200", "ratio=0.5", *NUMBERS],
        "workload: not set": LING,
        "gpu: not set: give it a value": ["model=qwen3-8b", *NUMBERS],
        "unknown: 'H900'": ["model=qwen3-8b", "gpu=H900", *NUMBERS],
        "tps: unknown key: did you mean 'tp'?": [*LING, "tps=2", *NUMBERS],
        "expected key=value, got 'fast'": [*LING, "fast", *NUMBERS],
        "turns: expected `int` >= 1, got 0": [*LING, "turns=0"],
        "interpolation": [*LING, "tp=${none}", *NUMBERS],
    }
    for message, arguments in cases.items():
        code = main(["plan", *arguments, "--plot", str(plot)])

        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) == (2, 1), message
        assert message.lower() in lines[0].lower()
        assert not plot.exists()


def test_a_plot_that_cannot_be_written_is_bad_input(capsys, tmp_path):
    where = tmp_path / "missing" / "plan.svg"

    assert main(["plan", *LING, *NUMBERS, "--plot", str(where)]) == 2
    assert "--plot: cannot write" in capsys.readouterr().err
