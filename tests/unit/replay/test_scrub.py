"""What is private leaves a trace, and what was different stays different."""

import pytest

from rolloutkit.record import read_trace
from rolloutkit.record.scrub import Scrubber
from tests.unit.replay.recordings import act, life, write

ANSWER = ({"role": "tool", "content": "mail ann@example.org"},)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (
            "by ann@example.org, bob@example.org, ann@example.org",
            "by <email-1>, <email-2>, <email-1>",
        ),
        ("in /home/ann/work and /Users/ann", "in /home/<user-1>/work and /Users/<user-1>"),
        ("sk-proj-0123456789abcdefXYZ!", "<key-1>!"),
        ("Authorization: Bearer abcdef123456.x", "Authorization: Bearer <key-1>"),
        ("https://ann:pw@host/x", "https://<key-1>@host/x"),
        ("PASSWORD=hunter2 next", "PASSWORD=<key-1> next"),
        ("a-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----b", "a<key-1>b"),
        ("task-12 of 3 in /tmp/home", "task-12 of 3 in /tmp/home"),
    ],
)
def test_private_texts_become_placeholders(text, clean):
    assert Scrubber().text(text) == clean


def test_responses_are_dropped_unless_kept_and_figures_stay(tmp_path):
    events = life("a#0", act("a#0", 1.0, responses=ANSWER), failure_message="see /home/ann/x")
    path = write(tmp_path / "t.gz", events)

    dropped = list(Scrubber().events(read_trace(path)))
    kept = list(Scrubber(keeps_responses=True).events(read_trace(path)))

    assert dropped[3].responses == ()
    assert (dropped[3].t, dropped[3].seconds) == (1.0, 1.0)
    assert dropped[4].failure_message == "see /home/<user-1>/x"
    assert kept[3].responses[0]["content"] == "mail <email-1>"
