import pytest

from epp.units import parse_duration_s, parse_quantity, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("200ms", 0.2),
        ("5s", 5.0),
        ("1h30m", 5400.0),
        ("1.5s", 1.5),
        ("-2s", -2.0),
        ("3µs", 3e-6),
    ],
)
def test_durations_are_those_of_go(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "5", "s", "5 s", "1d", 5, 5.0, None, True, "٣s"])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration_s(value)


def test_a_duration_is_finite() -> None:
    with pytest.raises(ValueError, match="beyond all numbers"):
        parse_duration_s(f"{'9' * 400}s")


@pytest.mark.parametrize(
    ("value", "units"),
    [
        (500, 500),
        ("500", 500),
        ("1k", 1000),
        ("10Gi", 10 * 2**30),
        ("1.5Ki", 1536),
        ("1e3", 1000),
        ("500m", 1),
        (-3, -3),
    ],
)
def test_quantities_are_those_of_kubernetes(value: object, units: int) -> None:
    assert parse_quantity(value) == units


@pytest.mark.parametrize("value", ["", "k", "1kb", "1 k", "1Kk", None, True, [], "1e999", "٣"])
def test_what_is_no_quantity_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a quantity"):
        parse_quantity(value)


@pytest.mark.parametrize(
    ("text", "size"), [("10MiB", 10 * 2**20), ("25MB", 25_000_000), ("1048576b", 1048576), ("0", 0)]
)
def test_sizes_may_end_in_bytes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "B", "-1", "10XiB", "MiB", "1e400"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_size_bytes(text)
