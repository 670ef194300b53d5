"""The time that one matrix product takes: tiles, waves, memory, power.

The library cuts C[m, n] into tiles, gives each to a unit (multiprocessor, compute unit) and
loops over k. A product therefore takes a whole number of waves of tiles; each tile is bounded
by arithmetic or by the operands reaching its unit; and everything together by memory traffic
and by the rate the power limit sustains. The library's choice of tile, and of splitting k so
that a small C still occupies the device, is taken to be the best of a menu.

* The constants are in `topologies/devices/*.yaml` and are fitted by `twin.calibrate.fit_gemm`.
* A product is never faster than the device's peak or than reading and writing its operands.
* Operand layout (`mode`) only matters on devices that list `slow_layouts`.
* CPU cores that were measured have no tiles, and a copy for operands stored by columns: `twin.cost.core_gemm`.

Letters: m tokens, n and k the other sizes; s parts of the contraction.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from twin.cost.core_gemm import core_gemm_seconds
from twin.description.device import Device, GemmModel
from twin.schedule.kernels import Gemm, Mode

Array = NDArray[np.float64]


class _Products(NamedTuple):
    """Sizes of one product, or columns of sizes of many."""

    m: int | Array
    n: int | Array
    k: int | Array
    batch: int = 1
    element_bytes: int = 2
    adds: bool = False
    result_ratio: float = 1.0
    """Width of a number of C over that of A and B."""
    promotes: bool = False


_OVERLAP_IN_TILE = 4.0
"""Order of the norm that joins arithmetic and operand supply inside a tile (∞: perfect overlap)."""
_OVERLAP_WITH_MEMORY = 3.0
"""The same for tiles and memory traffic: tiles of one wave wait for memory together."""
_PARTIAL_BYTES = 4.0
"""A partial sum of a split contraction is an fp32 number, written once."""


def gemm_seconds(device: Device, gemm: Gemm, *, tuned: bool = True) -> float:
    """Return the seconds of `gemm` on an otherwise idle device.

    With `tuned` the operand layout is the fastest of NN, NT and TN, a transposing copy of the
    operands that need one included; otherwise, and on CPU cores that were measured, it is `gemm.mode`.

    >>> from twin.description.load import load_device
    >>> rate = 2 * 8192**3 / gemm_seconds(load_device("a100-sxm4-80gb"), Gemm(8192, 8192, 8192))
    >>> 250e12 < rate < 312e12
    True
    """
    if device.gemm.core is not None:
        wide = _rate_of(device.gemm, gemm.element_bytes)
        return core_gemm_seconds(device.gemm.core, device.peak_flops_per_second * wide, gemm)
    products = _Products(gemm.m, gemm.n, gemm.k, gemm.batch, gemm.element_bytes, gemm.adds, _ratio(gemm), gemm.promotes)
    seconds = float(_menu_seconds(device, products).min())
    if not device.gemm.slow_layouts:
        return seconds
    modes: tuple[Mode, ...] = get_args(Mode) if tuned else (gemm.mode,)
    return min(
        max(seconds, _slow_layout_seconds(device, gemm, mode)) + _copy_seconds(device, gemm, mode) for mode in modes
    )


def products_seconds(device: Device, m: Array, n: Array, k: Array) -> Array:
    """Return the seconds of many two-byte products at once (for fitting and plotting)."""
    products = _Products(m[:, None], n[:, None], k[:, None])
    return np.asarray(_menu_seconds(device, products).min(axis=1))


@lru_cache(maxsize=64)
def _menu(tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> tuple[Array, Array, Array]:
    choices = [(rows, columns, parts) for rows, columns in tiles for parts in splits]
    rows, columns, parts = np.array(choices, dtype=float).T
    return rows, columns, parts


def _menu_seconds(device: Device, products: _Products) -> Array:
    """Return the seconds with each entry of the menu, along the last axis."""
    model = device.gemm
    m, n, k, batch, element_bytes, adds, result_ratio, _ = products
    rows, columns, parts = _menu(model.tiles, model.splits)
    down, across = np.ceil(m / rows), np.ceil(n / columns)
    wide = _rate_of(model, element_bytes)
    unit_peak = device.peak_flops_per_second / model.units
    step = model.tile_depth_bytes / element_bytes
    depth = np.ceil(k / parts / step) * step
    eight = model.eight_bits if element_bytes == 1 else None
    promoted = eight.promoted if eight is not None and products.promotes else None
    limits = model if promoted is None else promoted

    arithmetic = 2 * rows * columns * depth / (unit_peak * limits.main_loop_share * wide)
    supply = (rows + columns) * depth * (element_bytes / (unit_peak * model.feed_bytes_per_flop))
    writing = rows * columns * (element_bytes * result_ratio / (unit_peak * limits.write_bytes_per_flop))
    if promoted is not None:
        writing = (1 + adds) * writing  # of other kernels what is added to comes while they multiply
    tile = _joined(arithmetic, supply, _OVERLAP_IN_TILE) + writing + model.tile_seconds
    busy = _waves(model, down * across * parts * batch) * tile

    traffic = batch * element_bytes * _traffic(model, products)
    partial = np.where(parts > 1, parts * (_PARTIAL_BYTES * batch) * m * n, 0.0)
    rate = device.memory_bandwidth_bytes_per_second * model.memory_share
    seconds = _joined(busy, (traffic + partial) / rate, _OVERLAP_WITH_MEMORY)
    share = model.sustained_share if eight is None else eight.sustained_share
    sustained = device.peak_flops_per_second * share * wide
    seconds = np.maximum(seconds, 2 * batch * m * n * k / sustained)
    return seconds + model.launch_seconds + np.where(parts > 1, model.split_seconds, 0.0)


def _ratio(gemm: Gemm) -> float:
    return 1.0 if gemm.result_bytes is None else gemm.result_bytes / gemm.element_bytes


def _rate_of(model: GemmModel, element_bytes: int) -> float:
    """Peak with numbers of this width over that with two bytes; raises ValueError for a width that is not known."""
    if element_bytes == 1:
        if model.eight_bits is None:
            raise ValueError("the device's products of 8-bit numbers are not known (gemm.eight_bits)")
        return float(model.eight_bits.peak_ratio)
    return float(model.fp32_share) if element_bytes >= 4 else 1.0


def _joined(a: Array, b: Array, order: float) -> Array:
    """Two limits that overlap imperfectly: between their maximum (order ∞) and sum (order 1)."""
    joined: Array = (a**order + b**order) ** (1 / order)
    return joined


def _waves(model: GemmModel, tiles: Array) -> Array:
    """Number of tiles that the busiest unit works on, at least one."""
    share = tiles / model.units
    whole = np.ceil(share)
    smoothed = whole - model.wave_smoothing * (whole - share)
    return np.where(share > 1, smoothed, 1.0)


def _traffic(model: GemmModel, products: _Products) -> Array:
    """Elements read and written in memory by one product.

    The tiles of one wave cover a near-square block of C and share their operands through the
    cache; the next wave reads its own operands again, unless they are still in the cache.
    """
    m, n, k, _, element_bytes, adds, ratio, _ = products
    rows, columns, _ = _menu(model.tiles, model.splits)
    down, across = np.ceil(m / rows), np.ceil(n / columns)
    live = np.minimum(down * across, float(model.units))
    tall = np.clip(np.sqrt(live * columns / rows), 1, down)
    broad = np.clip(live / tall, 1, across)
    tall = np.clip(live / broad, 1, down)
    a, b = m * k, n * k
    evicted = np.maximum(1 - model.cache_bytes / ((a + b) * element_bytes), 0.0)
    a_reads = 1 + (np.maximum(across / broad, 1) - 1) * evicted
    b_reads = 1 + (np.maximum(down / tall, 1) - 1) * evicted
    elements: Array = a * a_reads + b * b_reads + (1 + adds) * m * n * ratio
    return elements


def _slow_layout_seconds(device: Device, gemm: Gemm, mode: Mode) -> float:
    """Least time of `gemm` in a layout this device is slow at; 0 if it is none."""
    for slow in device.gemm.slow_layouts:
        if mode == slow.mode and gemm.k * gemm.element_bytes % slow.leading_dimension_bytes == 0:
            return gemm.flops / (slow.peak_share * device.peak_flops_per_second)
    return 0.0


def _copy_seconds(device: Device, gemm: Gemm, mode: Mode) -> float:
    """Time to transpose the operands whose layout differs between `gemm.mode` and `mode`.

    The first letter of a mode is the operand of n × k elements, the second that of m × k.
    """
    sizes = (gemm.n * gemm.k, gemm.m * gemm.k)
    moved = [size for size, a, b in zip(sizes, gemm.mode, mode, strict=True) if a != b]
    rate = device.memory_bandwidth_bytes_per_second * device.elementwise_efficiency
    traffic = 2 * gemm.batch * gemm.element_bytes * sum(moved)
    return traffic / rate + len(moved) * device.kernel_latency_seconds
