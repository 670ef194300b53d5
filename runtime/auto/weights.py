"""Full weights and their shards: cutting, putting together, and being equal on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from runtime.auto.linear import LayerCut, ParallelLinear
from runtime.parallel.collectives import Collectives
from runtime.parallel.mesh import Communicator
from runtime.parallel.ops import Place
from runtime.weights.shards import Rectangle, Shard
from twin.description.problems import fail

EVERY_AXIS: tuple[Communicator, ...] = ("x", "y", "z_scatter", "data")
CHECK = Place("initial_weights")


def cut(full: torch.Tensor, shard: Shard) -> torch.Tensor:
    """Take a rank's shard (stored,) out of a full weight (n, k); padding is zero."""
    flat = full.new_zeros(shard.stored)
    for rectangle in shard.rectangles():
        part = flat[rectangle.first : rectangle.first + rectangle.count]
        part.view(rectangle.sizes).copy_(full[_window(rectangle)])
    return flat


def _window(rectangle: Rectangle) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(rectangle.offsets, rectangle.sizes, strict=True))


def assemble(layout: LayerCut, shard: torch.Tensor) -> torch.Tensor:
    """Gather a full weight (n, k) from all ranks' shards; every rank must call it."""
    rows, columns = layout.shard.local_shape
    flat = shard.detach()
    if layout.context.mesh.grid.size("z") > 1:
        flat = layout.context.collectives.all_gather(layout.place, "z_gather", flat).wait()
    block = flat[: rows * columns].view(rows, columns)
    wide = layout.gather(block, 1, "fwd")  # (n/G_o, k)
    return layout.gather(wide.t().contiguous(), 0, "fwd").t().contiguous()


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's state with full weights, as the serial model has it."""
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    full: dict[ParallelLinear, torch.Tensor] = {}
    for key, layer in parallel_weights(model):
        if layer not in full:
            full[layer] = assemble(layer.layout, layer.weight)
        state[key] = full[layer]
    return state


def load_full_state(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load what `full_state` returned; raises DescriptionError for a weight of another shape."""
    shards = dict(state)
    for key, layer in parallel_weights(model):
        if (found := shards.get(key)) is None:
            continue  # load_state_dict says what is missing
        if tuple(found.shape) != (expected := layer.layout.shard.spec.shape):
            raise fail(key, f"expected the full weight of shape {expected}", tuple(found.shape))
        shards[key] = cut(found, layer.layout.shard)
    model.load_state_dict(shards)


def parallel_weights(model: nn.Module) -> Iterator[tuple[str, ParallelLinear]]:
    """Keys in the model's state of the weights that are cut."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, ParallelLinear):
            yield f"{path}.weight" if path else "weight", module


def check_equal(collectives: Collectives, tensors: Sequence[tuple[str, torch.Tensor]], device: torch.device) -> None:
    """Check that all ranks declared the same model with the same numbers in it.

    Checksums alone are exchanged, on `device`. Raises DescriptionError on every rank if not.
    """
    for name, tensor in tensors:
        if tensor.is_meta:
            raise fail(
                name,
                "is on the meta device and has no numbers to compare; make the model on a "
                "real one, or pass verify_weights=False and load a full state",
            )
    described = "\n".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in tensors)
    if differing(collectives, [zlib.crc32(described.encode())], device):
        raise fail(
            "auto_parallelize",
            "the ranks declared different models (names, shapes or "
            "types of parameters); declare the same one on every rank",
        )
    different = differing(collectives, [checksum(tensor) for _, tensor in tensors], device)
    if different:
        others = f" and {len(different) - 1} more" if len(different) > 1 else ""
        raise fail(
            "auto_parallelize",
            f"{tensors[different[0]][0]}{others} started with different numbers "
            "on different ranks; call torch.manual_seed with the same seed on every rank before "
            "the model is made",
        )


def checksum(tensor: torch.Tensor) -> int:
    """Sum up a tensor's bits."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


def differing(collectives: Collectives, numbers: Sequence[int], device: torch.device) -> list[int]:
    """Return the places of the numbers that are not the same on all ranks."""
    mine = torch.tensor(numbers, dtype=torch.int64, device=device)
    extremes = torch.stack((mine, -mine))  # the largest, and minus the smallest
    for communicator in EVERY_AXIS:
        if collectives.mesh.size(communicator) > 1 and numbers:
            collectives.all_reduce(CHECK, communicator, extremes, reduction="max").wait()
    return torch.nonzero(extremes[0] != -extremes[1]).flatten().tolist()
