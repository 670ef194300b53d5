"""Devices as earlier versions of Fourfold wrote them, put in the form of today.

Every run keeps its job with all numbers of its machine, and machines that were calibrated are files of
their owners: both must stay readable. What has changed:

* rates of matrix products that follow the peak (`sustained`, `feed`, `write`) are shares of it;
* attention has rates by kernel; there was one kernel, `flash`, which knew no waste at short lengths but
  two blocks of columns for each block of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twin.description.units import parse_quantity, split_name

_ONLY_KERNEL = "flash"
_MASKED_BLOCKS = 2.0
_WIDE, _NARROW = 128.0, 64.0


def device_of_today(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's mapping in today's form; what is not an earlier one's is left as it is."""
    data = dict(raw)
    gemm, attention = data.get("gemm"), data.get("attention")
    if isinstance(gemm, Mapping) and "sustained" in gemm:
        data["gemm"] = _shares(gemm, data.get("peak"))
    if isinstance(attention, Mapping) and "half_head_size" in attention:
        data["attention"] = {_ONLY_KERNEL: _kernel(attention)}
        data.setdefault("usual_attention", _ONLY_KERNEL)
    return data


def _shares(gemm: Mapping[str, Any], peak: Any) -> dict[str, Any]:
    rate = _number(peak, "peak_flops_per_second")
    unit = rate / _number(gemm.get("units"), "units")
    data = {key: value for key, value in gemm.items() if key not in {"sustained", "feed", "write"}}
    for key, new, whole in (
        ("sustained_flops_per_second", "sustained_share", rate),
        ("feed_bytes_per_second", "feed_bytes_per_flop", unit),
        ("write_bytes_per_second", "write_bytes_per_flop", unit),
    ):
        old = split_name(key)[0]
        if old in gemm:
            share = _number(gemm[old], key) / whole
            data[new] = _with(gemm[old], min(share, 1.0) if old == "sustained" else share)
    return data


def _kernel(attention: Mapping[str, Any]) -> dict[str, Any]:
    half = _number(attention.get("half_head_size"), "half_head_size")
    rows = _number(attention.get("block_rows"), "block_rows")
    wide, narrow = _WIDE / (_WIDE + half), _NARROW / (_NARROW + half)
    return {
        **{
            key: _with(attention[key], _number(attention[key], key) * wide)
            for key in ("forward_share", "backward_share")
            if key in attention
        },
        "narrow_ratio": _with(attention["half_head_size"], narrow / wide),
        "half_length": _with(attention["block_rows"], 0.0),
        "masked_rows": _with(attention["block_rows"], _MASKED_BLOCKS * rows),
        "block_rows": attention["block_rows"],
    }


def _number(raw: Any, name: str) -> float:
    """Read a number of a mapping; raises ValueError where it is none."""
    value = raw.get("value") if isinstance(raw, Mapping) else raw
    number = parse_quantity(value, split_name(name)[1])
    if number <= 0 and name != "half_head_size":
        raise ValueError(f"{split_name(name)[0]}: {value!r} must be more than 0")
    return number


def _with(raw: Any, value: float) -> Any:
    """Put another value in place of a number, of the same kind and source."""
    return {**raw, "value": value} if isinstance(raw, Mapping) else value
