import pytest

from epp.units import parse_duration_s, parse_quantity, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("2s", 2), ("1m30s", 90), ("1.5h", 5400), ("0", 0), ("0s", 0), ("10us", 1e-5)]
)
def test_durations_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1d", "1s2", "nan", "1e3s"])
def test_what_is_no_duration_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "value"), [("10Mi", 10 * 2**20), ("1k", 1000), ("500", 500), ("1.5Gi", 3 * 2**29), ("0", 0)]
)
def test_quantities_read_as_kubernetes_writes_them(text: str, value: int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(("text", "value"), [("10MiB", 10 * 2**20), ("25MB", 25_000_000), ("1048576b", 1048576)])
def test_sizes_may_end_in_bytes(text: str, value: int) -> None:
    assert parse_size_bytes(text) == value


@pytest.mark.parametrize("text", ["", "-1", "10Xi", "Mi", "1e400", "B"])
def test_what_is_no_quantity_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_size_bytes(text)
