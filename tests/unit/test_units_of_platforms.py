"""Units that only platforms use: bandwidths, powers, frequencies, prices, time per size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.spec.units import (
    convert,
    parse_bandwidth,
    parse_frequency,
    parse_power,
    parse_price,
    parse_quantity,
    parse_time_per_size,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bandwidth, "1 Gbit/s", 125e6),
        (parse_bandwidth, "100Mbit/s", 12.5e6),
        (parse_bandwidth, "1 Tbit/s", 125e9),
        (parse_bandwidth, "20 MiB/s", 20 * 1048576),
        (parse_bandwidth, "60 MB/min", 1e6),
        (parse_time_per_size, "1 ms/MiB", 1e-3 / 1048576),
        (parse_time_per_size, "0 s/B", 0.0),
        (parse_power, "91.6 W", 91.6),
        (parse_power, "0.2 kW", 200.0),
        (parse_power, "1500mW", 1.5),
        (parse_frequency, "1200 MHz", 1.2e9),
        (parse_frequency, "2.3 GHz", 2.3e9),
    ],
)
def test_values(parse: Callable[[str], float], text: str, value: float):
    assert parse(text) == pytest.approx(value, rel=1e-12)


def test_prices():
    assert parse_price("0.36 EUR/h") == (pytest.approx(1e-4), "EUR")
    assert parse_price("86400 USD/d") == (pytest.approx(1), "USD")


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bandwidth, "0 MB/s"),
        (parse_bandwidth, "-1 MB/s"),
        (parse_bandwidth, "1 MB"),
        (parse_bandwidth, "1 s/MB"),
        (parse_bandwidth, "1e400 MB/s"),
        (parse_bandwidth, "125000000"),
        (parse_time_per_size, "1 ms"),
        (parse_time_per_size, "-1 ms/MiB"),
        (parse_power, "3 J"),
        (parse_power, "-3 W"),
        (parse_frequency, "0 Hz"),
        (parse_frequency, "1 s"),
        (parse_price, "0.1 EUR"),
        (parse_price, "0.1 s/h"),
        (parse_price, "-0.1 EUR/h"),
        (parse_price, "0.1 DEM/h"),
        (parse_quantity, "fast"),
        (parse_quantity, "3"),
    ],
)
def test_invalid_quantities_are_refused(parse: Callable[[str], object], text: str):
    with pytest.raises(ValueError, match=r"unit|such as"):
        parse(text)


def test_new_units_convert():
    assert convert(1, "kWh", "J") == 3.6e6
    assert convert(2.3, "GHz", "MHz") == pytest.approx(2300)
