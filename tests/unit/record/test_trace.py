import gzip
from pathlib import Path

import msgspec
import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.record import read_trace
from tests.unit.report.recorded_runs import small_run

LINES = [msgspec.json.encode(event) for event in small_run()]


def packed(*lines: bytes) -> bytes:
    return gzip.compress(b"".join(line + b"\n" for line in lines))


def broken(content: bytes, tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(read_trace(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.gz: No such file"):
        list(read_trace(tmp_path / "none.gz"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no gzip at all", "is not a whole gzip file"),
        (b"", "holds no event"),
        (packed(LINES[0], b'{"event":"model_call"', LINES[1]), "line 2 is not a recorded event"),
        (packed(LINES[0], b'{"event":"model_call","t":1.0}'), "line 2 is not a recorded event"),
        (packed(LINES[0], b'{"event":"unheard_of","t":1.0}'), "line 2 is not a recorded event"),
        (packed(LINES[1]), "does not start a recorded run"),
        (packed(b'{"event":"run_ended","schema_version":1}'), "its event is 'run_ended'"),
        (packed(b'{"event":"run_started","schema_version":99,"t":0}'), "schema version 99"),
        (gzip.compress(LINES[0] + b"\n" + LINES[1][:20]), "goes on after its last whole event"),
        (packed(LINES[0]) + b"more", "goes on after its last whole event"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    assert says in broken(content, tmp_path)


def test_damage_inside_is_refused(tmp_path: Path) -> None:
    content = bytearray(packed(*LINES))
    content[-6] ^= 0xFF  # the checksum

    assert "is not a whole gzip file" in broken(bytes(content), tmp_path)


@pytest.mark.parametrize("num_missing_bytes", [1, 8, 20, 60])
def test_cut_off_trace_reads_as_a_prefix(num_missing_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(packed(*LINES)[:-num_missing_bytes])

    events = list(read_trace(path))

    assert events == small_run()[: len(events)]


def test_fields_of_later_versions_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(packed(LINES[0].replace(b'{"event"', b'{"later":1,"event"'), *LINES[1:]))

    assert list(read_trace(path)) == small_run()
