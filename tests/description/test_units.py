"""Quantities: a closed list of units, read exactly, refused clearly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.description.units import DIMENSIONS, SUFFIXES, format_amount, format_si, parse_quantity, split_name

moderate = examples(2, derandomize=True)

DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


def _truth() -> dict[tuple[str, str], Fraction]:
    """(suffix, unit) → SI factor, written down from the definitions of the units."""
    scales = {p: Fraction(10**e) for p, e in DECIMAL.items()}
    scales |= {p: Fraction(2**e) for p, e in BINARY.items()}
    table = {}
    for prefix, scale in scales.items():
        for end, suffix in (("", "_bytes"), ("/s", "_bytes_per_second")):
            table[suffix, f"{prefix}B{end}"] = scale
            table[suffix, f"{prefix}bit{end}"] = scale / 8
            if prefix:
                table[suffix, f"{prefix}b{end}"] = scale / 8
        table["_bytes_per_second", f"{prefix}bps"] = scale / 8
    for prefix, exponent in DECIMAL.items():
        for unit in ("FLOP/s", "flop/s", "FLOPS"):
            table["_flops_per_second", prefix + unit] = Fraction(10**exponent)
    table |= {("_seconds", u): Fraction(n) for u, n in {"s": 1, "min": 60, "h": 3600, "d": 86400}.items()}
    table |= {("_seconds", u): Fraction(1, 10**n) for u, n in {"ms": 3, "us": 6, "µs": 6, "ns": 9}.items()}
    table |= {("_watts", "W"): Fraction(1), ("_watts", "kW"): Fraction(1000), ("_watts", "MW"): Fraction(10**6)}
    table |= {("_hertz", p + "Hz"): Fraction(10 ** DECIMAL[p]) for p in ("", "k", "M", "G")}
    table |= {("_tokens", p + "tokens"): Fraction(10**e) for p, e in DECIMAL.items()}
    return table


TRUTH = _truth()
numbers = st.one_of(
    st.integers(-(10**6), 10**6).map(str),
    st.decimals(-(10**6), 10**6, places=3).map(str),
    st.tuples(st.integers(1, 9999), st.integers(-20, 20)).map(lambda t: f"{t[0]}e{t[1]}"),
)


@moderate
@given(st.sampled_from(sorted(TRUTH)), numbers, st.sampled_from(["", " ", "  "]))
def test_quantity_is_number_times_factor(unit, number, space):
    """Against exact rational arithmetic."""
    suffix, name = unit
    exact = Fraction(number) * TRUTH[unit]
    assert parse_quantity(f"{number}{space}{name}", SUFFIXES[suffix]) == pytest.approx(float(exact), rel=1e-15)


@moderate
@given(st.sampled_from(sorted(TRUTH)), st.sampled_from(sorted(SUFFIXES)))
def test_a_unit_belongs_to_one_dimension(unit, suffix):
    """A rate is not read as a size, nor the other way round."""
    if (suffix, unit[1]) in TRUTH:
        return
    with pytest.raises(ValueError, match="is not a unit of"):
        parse_quantity(f"1 {unit[1]}", SUFFIXES[suffix])


@moderate
@given(st.sampled_from(sorted(SUFFIXES)), st.text(min_size=1, max_size=6))
def test_the_list_of_units_is_closed(suffix, text):
    """Any other text after the number is refused."""
    unit = text.strip()
    dimension = SUFFIXES[suffix]
    if not unit or unit in dimension.factors or any(c in "0123456789._eE" for c in unit):
        return
    with pytest.raises(ValueError, match="not a"):
        parse_quantity(f"1 {text}", dimension)


@pytest.mark.parametrize(
    "unit",
    [
        "GBps",
        "gigabytes",
        "gb",
        "Gigabit/s",
        "GB/sec",
        "GB/h",
        "b",
        "b/s",
        "kbits",
        "GIB",
        "GB / s",
        "GB/s/s",
        "%",
        "25",
    ],
)
def test_ambiguous_and_unlisted_units_are_refused_with_an_example(unit):
    for suffix in ("_bytes_per_second", "_bytes"):
        with pytest.raises(ValueError, match=r"write for example '.+'") as caught:
            parse_quantity(f"8 {unit}", SUFFIXES[suffix])
        assert unit in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "200 Gbit/s",
        "200 Gb/s",
        "200 Gbps",
        "200Gb/s",
        "25 GB/s",
        "25e9",
        "25_000_000_000",
        "2.5e1 GB/s",
        " 25 GB/s ",
        "+25 GB/s",
        ".025 TB/s",
        "25. GB/s",
    ],
)
def test_ways_to_write_25_gigabytes_per_second(text):
    assert parse_quantity(text, SUFFIXES["_bytes_per_second"]) == pytest.approx(25e9, rel=1e-15)


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        [],
        {},
        (1,),
        b"1",
        1j,
        math.nan,
        math.inf,
        -math.inf,
        "nan",
        "inf",
        "-inf",
        "1e400",
        "",
        " ",
        "GB/s",
        "one",
        "0x10",
        "1,000",
        "1 2",
        "--1",
        "1e",
        "½",
        pytest.param(10**400, id="10**400"),
    ],
)
def test_what_is_not_a_finite_number_is_refused(value):
    """With a ValueError, the only error that the reader of files expects."""
    for dimension in (None, SUFFIXES["_bytes"]):
        with pytest.raises(ValueError, match=r"not a|plain number"):
            parse_quantity(value, dimension)


@moderate
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300))
def test_a_bare_number_is_in_si(value):
    for dimension in (None, *DIMENSIONS):
        assert parse_quantity(value, dimension) == float(value)


def test_a_unit_on_a_plain_number_is_refused():
    with pytest.raises(ValueError, match="plain number"):
        parse_quantity("5 s", None)


@pytest.mark.parametrize(
    ("name", "key", "si"),
    [
        ("bandwidth_bytes_per_second", "bandwidth", "B/s"),
        ("peak_flops_per_second", "peak", "FLOP/s"),
        ("memory_bytes", "memory", "B"),
        ("latency_seconds", "latency", "s"),
        ("idle_watts", "idle", "W"),
        ("clock_hertz", "clock", "Hz"),
        ("budget_tokens", "budget", "token"),
        ("layers", "layers", None),
        ("bytes", "bytes", None),
        ("seconds", "seconds", None),
    ],
)
def test_the_suffix_of_a_name_decides_its_units(name, key, si):
    found, dimension = split_name(name)
    assert (found, dimension and dimension.si) == (key, si)


@moderate
@given(st.from_regex(r"[a-z]+(_[a-z]+)*", fullmatch=True), st.sampled_from(sorted(SUFFIXES)))
def test_splitting_a_name_and_joining_it_again(stem, suffix):
    assert split_name(stem + suffix) == (stem, SUFFIXES[suffix])


def test_suffixes_and_dimensions_are_one_to_one():
    assert sorted(d.name for d in SUFFIXES.values()) == sorted(d.name for d in DIMENSIONS)


@moderate
@given(
    st.sampled_from(["_bytes_per_second", "_flops_per_second", "_bytes", "_seconds"]),
    st.floats(1e-12, 1e22),
    st.integers(3, 15),
    st.sampled_from([1, -1]),
)
def test_what_is_printed_reads_back(suffix, magnitude, digits, sign):
    """To the digits shown: a value printed for people is a value accepted from people.

    Sizes below one byte have no unit to be read in; nobody writes them.
    """
    dimension = SUFFIXES[suffix]
    if suffix != "_seconds":
        magnitude = max(magnitude, 1.0)
    value = sign * magnitude
    shown = format_si(value, dimension.si, digits=digits)
    assert parse_quantity(shown, dimension) == pytest.approx(value, rel=10.0 ** (1 - digits))


@moderate
@given(st.floats(1.0, 9.99e20))
def test_printed_numbers_stay_between_one_and_a_thousand(value):
    number = float(format_si(value, "B").split()[0])
    assert 0.99 <= number <= 1000


@given(st.floats(1e-12, 1e12))
def test_a_printed_amount_is_never_nothing(value):
    """Of a small run too the days, joules and money are there: within half of the last digit."""
    for decimals in (0, 1, 2):
        read = float(format_amount(value, decimals).replace(",", ""))
        assert read == pytest.approx(value, rel=0.05 if value < 1 else 1e-12, abs=0.0 if value < 1 else 0.5)
    assert format_amount(0.0) == "0.0"


def test_printing_zero_and_what_is_not_finite():
    assert format_si(0.0, "s") == "0 s"
    assert format_si(math.inf, "B") == "inf B"
    assert format_si(7.0) == "7"
