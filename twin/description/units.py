"""Quantities as people write them in YAML, read into plain SI floats.

The list of units is closed: a name that is not on it is an error, never a guess. Inside
Fourfold a number is a float whose *name* carries its unit (`_bytes_per_second`); the suffix
of a field's name says which units its YAML value may use.

* GB is 1e9 bytes, GiB is 2**30 bytes; Gbit and Gb are bits and are divided by eight.
* A bare number is taken to be in the SI unit of the field.
* Booleans, NaN and infinities are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache

DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

_NUMBER = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*$")


def _bytes_units() -> dict[str, float]:
    units = {prefix + "B": factor for prefix, factor in (DECIMAL | BINARY).items()}
    for prefix, factor in (DECIMAL | BINARY).items():
        units[prefix + "bit"] = factor / 8
        units[prefix + "b"] = factor / 8
    del units["b"]  # a lone "b" is ambiguous
    return units


_BYTES = _bytes_units()
_FLOPS = {prefix + name: f for prefix, f in DECIMAL.items() for name in ("FLOP", "flop")}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Dimension:
    """A kind of quantity: its SI unit, and the factor of every unit it may be written in."""

    name: str
    si: str
    factors: dict[str, float] = field(repr=False)


DIMENSIONS = (
    Dimension(
        "bandwidth",
        "B/s",
        {u + "/s": f for u, f in _BYTES.items()} | {u[:-3] + "bps": f for u, f in _BYTES.items() if u.endswith("bit")},
    ),
    Dimension(
        "compute rate",
        "FLOP/s",
        {u + "/s": f for u, f in _FLOPS.items()} | {u + "S": f for u, f in _FLOPS.items() if u.endswith("FLOP")},
    ),
    Dimension("size", "B", _BYTES),
    Dimension("time", "s", _SECONDS),
    Dimension("power", "W", {"W": 1.0, "kW": 1e3, "MW": 1e6, "mW": 1e-3}),
    Dimension("frequency", "Hz", {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}),
    Dimension("tokens", "token", {p + "token" + s: f for p, f in DECIMAL.items() for s in ("", "s")}),
)

# The longest suffix that fits a field's name decides its dimension.
SUFFIXES = {
    "_bytes_per_second": DIMENSIONS[0],
    "_flops_per_second": DIMENSIONS[1],
    "_bytes": DIMENSIONS[2],
    "_seconds": DIMENSIONS[3],
    "_watts": DIMENSIONS[4],
    "_hertz": DIMENSIONS[5],
    "_tokens": DIMENSIONS[6],
}


@lru_cache(maxsize=1024)
def split_name(name: str) -> tuple[str, Dimension | None]:
    """Split a field name into its YAML key and its dimension.

    >>> key, dimension = split_name("bandwidth_bytes_per_second")
    >>> key, dimension.si
    ('bandwidth', 'B/s')
    >>> split_name("layers")
    ('layers', None)
    """
    for suffix, dimension in SUFFIXES.items():
        if name.endswith(suffix) and name != suffix[1:]:
            return name[: -len(suffix)], dimension
    return name, None


def parse_quantity(text: object, dimension: Dimension | None = None) -> float:
    """Read a number, with a unit if the dimension has one, into an SI float.

    Raises ValueError naming the text, the rule and the units that would do.

    >>> parse_quantity("200 Gbit/s", SUFFIXES["_bytes_per_second"])
    25000000000.0
    >>> parse_quantity("3.7 us", SUFFIXES["_seconds"])
    3.7e-06
    """
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise ValueError(f"{text!r} is not a number")  # noqa: TRY004 - pydantic wants ValueError
    if isinstance(text, str):
        match = _NUMBER.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a number{_examples(dimension)}")
        number, unit = float(match[1].replace("_", "")), match[2]
        value = number * _factor(text, unit, dimension)
    else:
        try:
            value = float(text)
        except OverflowError:
            value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def _factor(text: str, unit: str, dimension: Dimension | None) -> float:
    if not unit:
        return 1.0
    if dimension is None:
        raise ValueError(f"{text!r} has a unit, but a plain number is expected")
    try:
        return dimension.factors[unit]
    except KeyError:
        raise ValueError(f"{text!r}: {unit!r} is not a unit of {dimension.name}{_examples(dimension)}") from None


def _examples(dimension: Dimension | None) -> str:
    if dimension is None:
        return ""
    shown = {
        "B/s": "'25 GB/s', '200 Gbit/s'",
        "FLOP/s": "'312 TFLOP/s'",
        "B": "'64 MiB', '40 GB'",
        "s": "'3.7 us', '2 h'",
        "W": "'400 W'",
        "Hz": "'1.4 GHz'",
        "token": "'2 Ttokens'",
    }
    return f"; write for example {shown[dimension.si]}"


def counted(number: int, thing: str) -> str:
    """Say how many there are of a thing.

    >>> counted(1, "op"), counted(1234, "op")
    ('1 op', '1,234 ops')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def format_amount(value: float, decimals: int = 1) -> str:
    """Write an amount with so many decimals, and two digits at least: so that little does not look like nothing.

    >>> format_amount(1234.56), format_amount(12.3, 0), format_amount(0.0123), format_amount(0.0)
    ('1,234.6', '12', '0.012', '0.0')
    >>> format_amount(1.43, 0), format_amount(9.96, 0)
    ('1.4', '10')
    """
    if 0.0 < abs(value) < 1.0:
        return f"{value:.2g}"
    return f"{value:,.{1 if 1.0 <= abs(value) < 9.95 and decimals == 0 else decimals}f}"


def format_si(value: float, unit: str = "", *, digits: int = 4) -> str:
    """Write a value with an SI prefix, for people.

    >>> format_si(25e9, "B/s")
    '25 GB/s'
    >>> format_si(3.7e-6, "s")
    '3.7 us'
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".strip()
    prefixes = [
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "u"),
        (1e-9, "n"),
    ]
    if unit in {"", "s"}:  # nobody says "kiloseconds"
        prefixes = prefixes[6:]
    for factor, prefix in prefixes:
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.{digits}g} {prefix}{unit}".strip()
    return f"{value:.{digits}g} {unit}".strip()


def format_seconds(value: float, *, digits: int = 3) -> str:
    """Write a time for people, in the unit that suits it: the one way that terminal, pages and dashboard write times.

    >>> format_seconds(0.00123456), format_seconds(-3.7e-6), format_seconds(2469.4), format_seconds(0.9999)
    ('1.23 ms', '-3.7 µs', '2,469 s', '1 s')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} s"
    least = 1 - 0.5 * 10.0**-digits  # what is written as 1
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    factor, unit = next((one for one in units if abs(value / one[0]) >= least), units[-1])
    scaled = value / factor
    return f"{scaled:,.0f} {unit}" if abs(scaled) >= 10.0**digits - 0.5 else f"{scaled:.{digits}g} {unit}"


def format_memory(size: float, *, commas: bool = False) -> str:
    """Write bytes in GB with one digit behind the point; less than one in a smaller unit, with three digits.

    >>> format_memory(38.04e9), format_memory(72.38e6), format_memory(1.425e6), format_memory(0)
    ('38.0 GB', '72.4 MB', '1.43 MB', '0 B')
    """
    if abs(size) < 0.9995e9:  # a small job's 50 to 149 MB were 0.1 GB, all of them
        return format_si(size, "B", digits=3)
    return f"{size / 1e9:,.1f} GB" if commas else f"{size / 1e9:.1f} GB"
