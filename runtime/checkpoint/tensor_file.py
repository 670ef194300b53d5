"""safetensors files, written in one pass and read chunk by chunk with plain reads.

A file is 8 bytes (length of the header, little-endian), a JSON header, and the tensors one after
the other. Reads are not memory-mapped: a disk that fails while a mapped page is fetched kills the
process, a read that fails can be told and another checkpoint be used.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch

MAX_HEADER_BYTES = 100_000_000
"""As the format's own library allows."""
LENGTH_BYTES = 8
METADATA = "__metadata__"

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
OTHER_DTYPES = frozenset(
    {
        "BOOL",
        "U8",
        "I8",
        "U16",
        "I16",
        "U32",
        "I32",
        "U64",
        "I64",
        "C64",
        "F4",
        "F6_E2M3",
        "F6_E3M2",
        "F8_E5M2",
        "F8_E4M3",
        "F8_E8M0",
        "F8_E4M3FNUZ",
        "F8_E5M2FNUZ",
    }
)
"""The rest of the format's dtypes: tensors that may lie in a file and are skipped over, never read."""
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class UnusableFileError(Exception):
    """A file cannot be used; the message begins with its path."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading if it is one: no link, no pipe, no device."""
    try:
        # non-blocking, because opening a pipe would wait for somebody to write into it
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UnusableFileError(path, "no such file") from None
    except OSError as error:
        reason = "is a link" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise UnusableFileError(path, reason) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnusableFileError(path, "is not a regular file")
    return os.fdopen(descriptor, "rb")


Header = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of every tensor of a file."""


def write_tensors(path: Path, header: Header, values: Iterable[torch.Tensor], metadata: Mapping[str, str]) -> list[int]:
    """Write a new file and bring it to the disk; return the CRC-32 of each tensor.

    `values` are contiguous tensors in host memory, in the order of `header`, asked for one at a time.
    """
    return write_pieces(path, header, ((value,) for value in _fitting(path, header, values)), metadata)


def _fitting(path: Path, header: Header, values: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for (_, shape), value in zip(header.values(), values, strict=True):
        if value.shape != shape:
            raise ValueError(f"{path}: {tuple(value.shape)} {value.dtype} is not {shape}")
        yield value


def write_pieces(
    path: Path, header: Header, values: Iterable[Iterable[torch.Tensor]], metadata: Mapping[str, str]
) -> list[int]:
    """Write a new file and bring it to the disk; return the CRC-32 of each tensor.

    Of every tensor, in the order of `header`, come pieces in host memory, one at a time: its elements in order.
    """
    table: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in header.items():
        begin, end = end, end + prod(shape) * DTYPES[dtype].itemsize
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sums = []
    with path.open("xb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for (name, (dtype, shape)), pieces in zip(header.items(), values, strict=True):
            crc32 = written = 0
            for piece in pieces:
                if DTYPE_NAMES[piece.dtype] != dtype:
                    raise ValueError(f"{path}: {name}: {piece.dtype} is not {dtype}")
                raw = piece.contiguous().reshape(-1).view(torch.uint8).numpy().data
                crc32, written = zlib.crc32(raw, crc32), written + len(raw)
                file.write(raw)
            if written != prod(shape) * DTYPES[dtype].itemsize:
                raise ValueError(f"{path}: {written} bytes of {name} are not {shape} {dtype}")
            sums.append(crc32)
        file.flush()
        os.fsync(file.fileno())
    return sums


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte in the file."""
    end: int


class TensorFile:
    """A file opened for reading, its header checked against its size.

    Raises UnusableFileError with the reason if it is none, or truncated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        """Of rectangles."""
        self._file = open_regular(path)
        try:
            self.entries, self.metadata = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _refuse(self, reason: str) -> UnusableFileError:
        return UnusableFileError(self.path, reason)

    def _header(self) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._bytes(0, LENGTH_BYTES, size), "little")
        if length > MAX_HEADER_BYTES:
            raise self._refuse("is no safetensors file: its header is too long")
        text = self._bytes(LENGTH_BYTES, length, size)
        try:
            table = json.loads(text.decode())
        except (ValueError, RecursionError):
            raise self._refuse("is no safetensors file: its header is not JSON") from None
        if not isinstance(table, dict):
            raise self._refuse("is no safetensors file: its header is not a mapping")
        metadata = table.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self._refuse("has metadata that is not text")
        start = LENGTH_BYTES + length
        entries = {name: self._entry(name, raw, start) for name, raw in table.items()}
        end = start
        for entry in sorted(entries.values(), key=lambda e: (e.begin, e.end)):
            if entry.begin != end:
                raise self._refuse("has tensors that overlap or leave a gap")
            end = entry.end
        if end != size:
            raise self._refuse(f"is truncated or damaged: {size} bytes, but its header says {end}")
        return entries, metadata

    def _entry(self, name: str, raw: Any, start: int) -> TensorEntry:
        if isinstance(raw, dict) and raw.keys() == {"dtype", "shape", "data_offsets"}:
            dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
            if (
                isinstance(dtype, str)
                and (dtype in DTYPES or dtype in OTHER_DTYPES)
                and _counts(shape)
                and _counts(offsets)
                and len(offsets) == 2
            ):
                begin, end = offsets
                known = DTYPES.get(dtype)  # other dtypes are skipped over, never read
                if end >= begin and (known is None or end - begin == prod(shape) * known.itemsize):
                    return TensorEntry(dtype, tuple(shape), start + begin, start + end)
        raise self._refuse(f"has a damaged entry for {name!r} in its header")

    def _bytes(self, position: int, count: int, size: int) -> bytearray:
        """Read so many bytes, after a look at the size: no header makes us allocate too much."""
        if position + count > size:
            raise self._refuse(f"is truncated: it has only {size} bytes")
        buffer = bytearray(count)
        try:
            self._file.seek(position)
            read = self._file.readinto(buffer)  # type: ignore[attr-defined]  # BinaryIO lacks it
        except OSError as error:
            raise self._refuse(f"cannot be read: {error.strerror}") from None
        if read != count:
            raise self._refuse("became shorter while it was read")
        return buffer

    def read(self, name: str) -> tuple[torch.Tensor, int]:
        """Read one tensor into host memory; return it with the CRC-32 of its bytes."""
        entry = self.entries[name]
        raw = self._bytes(entry.begin, entry.end - entry.begin, entry.end)
        return _tensor(raw, entry.dtype, entry.shape), zlib.crc32(raw)

    def read_rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Read rows `first` … `first + count - 1` of one tensor."""
        entry = self.entries[name]
        row_bytes = (entry.end - entry.begin) // entry.shape[0]
        raw = self._bytes(entry.begin + first * row_bytes, count * row_bytes, entry.end)
        return _tensor(raw, entry.dtype, (count, *entry.shape[1:]))

    def read_rectangle(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """Read a rectangle of a tensor of one or two dimensions, its bytes and no others."""
        entry = self.entries[name]
        each = DTYPES[entry.dtype].itemsize
        columns = prod(entry.shape[1:])
        width = sizes[1] if len(sizes) == 2 else 1
        row, column = offsets[0], offsets[1] if len(offsets) == 2 else 0
        buffer = bytearray(sizes[0] * width * each)
        rows, width = (1, len(buffer)) if width == columns else (sizes[0], width * each)
        view = memoryview(buffer)
        for index in range(rows):
            begin = entry.begin + ((row + index) * columns + column) * each
            self._fill(view[index * width : (index + 1) * width], begin)
        return _tensor(buffer, entry.dtype, sizes)

    def ends(self, name: str, count: int) -> bytes:
        """Read the first and the last so many bytes of a tensor, or all of a smaller one."""
        entry = self.entries[name]
        first = min(entry.end, entry.begin + count)
        last = max(first, entry.end - count)
        buffer = bytearray(first - entry.begin + entry.end - last)
        view = memoryview(buffer)
        self._fill(view[: first - entry.begin], entry.begin)
        self._fill(view[first - entry.begin :], last)
        return bytes(buffer)

    def _fill(self, view: memoryview, position: int) -> None:
        """Read bytes from a place on, without those around them."""
        while view:
            try:
                count = os.preadv(self._file.fileno(), [view], position)
            except OSError as error:
                raise self._refuse(f"cannot be read: {error.strerror}") from None
            if not count:
                raise self._refuse("became shorter while it was read")
            self.bytes_read += count
            view, position = view[count:], position + count

    def expect_places(self) -> None:
        """Tell the system that reads come from anywhere: it would fetch several times what is asked for."""
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)


def _tensor(raw: bytearray, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    if not raw:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.frombuffer(raw, dtype=DTYPES[dtype]).view(shape)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
