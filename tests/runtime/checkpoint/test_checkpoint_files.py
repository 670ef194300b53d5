"""safetensors files: what we write the format's library reads, and the other way round."""

from __future__ import annotations

import json
import zlib
from contextlib import suppress

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from runtime.checkpoint.tensor_file import DTYPES, TensorFile, UnusableFileError, write_tensors
from tests.profiles import examples


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        f"t.{name}.{i}": torch.randn(shape, generator=generator).to(dtype)
        for name, dtype in DTYPES.items()
        for i, shape in enumerate([(3, 5), (7,), (1, 1)])
    }


def header(of: dict[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    names = {dtype: name for name, dtype in DTYPES.items()}
    return {name: (names[value.dtype], tuple(value.shape)) for name, value in of.items()}


def test_the_library_reads_what_we_write(tmp_path):
    expected = tensors()
    path = tmp_path / "a.safetensors"
    sums = write_tensors(path, header(expected), iter(expected.values()), {"who": "we"})
    found = safetensors.torch.load_file(path)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(value) for name, value in expected.items())
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"who": "we"}
    raw = [value.view(torch.uint8).numpy().tobytes() for value in expected.values()]
    assert sums == [zlib.crc32(text) for text in raw]


def test_we_read_what_the_library_writes(tmp_path):
    expected = tensors() | {"whole": torch.arange(4), "none": torch.zeros(0, 3)}
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file(expected, path, {"format": "pt"})
    with TensorFile(path) as file:
        assert file.metadata == {"format": "pt"}
        assert file.entries.keys() == expected.keys()
        for name in expected.keys() - {"whole"}:
            values, crc32 = file.read(name)
            assert values.equal(expected[name])
            assert crc32 == zlib.crc32(expected[name].view(torch.uint8).numpy().tobytes())
        assert file.entries["whole"].dtype == "I64"
        assert file.read_rows("t.BF16.0", 1, 2).equal(expected["t.BF16.0"][1:])


def test_what_is_written_must_be_what_was_announced(tmp_path):
    for value in (torch.zeros(3), torch.zeros(2, dtype=torch.float64)):
        with pytest.raises(ValueError, match="is not"):
            write_tensors(tmp_path / str(len(value)), {"a": ("F32", (2,))}, [value], {})


@examples(1.5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), length=st.integers(0, 10**6))
def test_no_damage_gets_further_than_it_gets_with_the_library(tmp_path, place, value, length):
    """What the library's own checks refuse, ours refuse, and in words."""
    path = tmp_path / "a.safetensors"
    path.unlink(missing_ok=True)
    write_tensors(path, header(tensors()), iter(tensors().values()), {})
    raw = bytearray(path.read_bytes())
    raw[place % len(raw)] = value
    path.write_bytes(raw[: len(raw) - (length % len(raw) if length % 3 == 0 else 0)])
    try:
        with TensorFile(path) as file:
            entries = dict(file.entries)
            for name, entry in entries.items():
                if entry.dtype in DTYPES:
                    file.read(name)
    except UnusableFileError:
        return
    with suppress(UnicodeDecodeError), safetensors.safe_open(path, "pt") as file:
        assert set(file.keys()) == entries.keys()


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ([], "not a mapping"),
        ({"a": 1}, "damaged entry for 'a'"),
        ({"a": entry(shape=[True, 2])}, "damaged entry"),
        ({"a": entry(shape=[-2])}, "damaged entry"),
        ({"a": entry(shape=[3])}, "damaged entry"),
        ({"a": entry(shape=2)}, "damaged entry"),
        ({"a": entry(data_offsets=[8, 0])}, "damaged entry"),
        ({"a": entry(data_offsets=[0])}, "damaged entry"),
        ({"a": entry(more=1)}, "damaged entry"),
        ({"a": entry(), "b": entry()}, "overlap"),
        ({"a": entry(data_offsets=[4, 12])}, "gap"),
        ({"a": entry(shape=[2**60], data_offsets=[0, 2**62])}, "truncated"),
        ({"__metadata__": {"a": 1}}, "metadata"),
    ],
)
def test_headers_are_read_strictly(tmp_path, table, reason):
    text = json.dumps(table).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(UnusableFileError, match=reason):
        TensorFile(path)


def test_a_header_makes_us_allocate_nothing(tmp_path):
    path = tmp_path / "a.safetensors"
    for length, reason in ((2**63, "too long"), (90_000_000, "truncated")):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(UnusableFileError, match=reason):
            TensorFile(path)
