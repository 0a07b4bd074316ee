import pytest

from rolloutkit.engines.http import retry_after_seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0.0),
        ("2", 2.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("soon", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float) -> None:
    assert retry_after_seconds(value) == seconds
