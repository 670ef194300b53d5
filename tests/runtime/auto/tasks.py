"""What the ranks do in the tests of single properties. Each task returns plain numbers."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from runtime.auto import ParallelLinear, auto_parallelize
from runtime.parallel.ops import Op
from twin.description.problems import DescriptionError
from twin.strategies.four_d.grid import Grid

Found = dict[str, Any]


def plain(seed: int = 3, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Three linears that divide by anything up to four, and by eight."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 8)).to(dtype)


def inputs(rows: int = 8, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)


def full_gradients(parallel: Any, model: nn.Module) -> dict[str, Any]:
    """Gradients as the serial model has them: put in place of the weights, and gathered."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
            mine.copy_(torch.full_like(mine, torch.nan) if theirs.grad is None else theirs.grad)
    return {
        n: t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy()
        for n, t in parallel.full_state_dict(copied).items()
    }


@dataclass
class Log:
    """Remembers what a rank did, in order."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    in_autograd: bool = False

    def compute(self, op: Op, run: Any) -> Any:
        self.entries.append(("compute", op.name))
        return run()

    def start(self, op: Op, run: Any) -> Any:
        self.entries.append(("start", op.name))
        return run()

    def wait(self, op: Op, run: Any) -> Any:
        self.entries.append(("wait", op.name))
        return run()


def gradients(worker: Any, grid: dict[str, int], **options: Any) -> Found:
    """One backward pass."""
    with auto_parallelize(worker.mesh(Grid(**grid)), **options) as parallel:
        model = plain()
    model(parallel.part(inputs())).square().mean().backward()
    parallel.reduce_gradients()
    return {"cut": sorted(parallel.layers), **full_gradients(parallel, model)}


def penalty(model: nn.Module) -> torch.Tensor:
    """What weights cost: a sum over their numbers."""
    return 0.1 * sum((p**2).sum() for p in model.parameters())


def penalized(worker: Any, grid: dict[str, int]) -> Found:
    """A loss with a term of weights alone, in two backward passes that are reduced after each."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain()
    for _ in range(2):
        (model(parallel.part(inputs())).square().mean() + penalty(model)).backward()
        parallel.reduce_gradients()
    return full_gradients(parallel, model)


def backward_only(worker: Any, grid: dict[str, int]) -> Found:
    """Gradients before anything but backward was called, and what happened in three passes."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain()
    log = Log()
    for _ in range(3):
        log.entries.clear()
        parallel.context.ops.listener = log
        model.zero_grad()
        model(parallel.part(inputs())).square().mean().backward()
        parallel.context.ops.listener = None
    return {"log": log.entries, **full_gradients(parallel, model)}


def quiet_passes(worker: Any, grid: dict[str, int]) -> Found:
    """Run without gradients, several times, so that the prefetch is at work."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = Backwards()
    log, found = Log(), []
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        log.entries.clear()
        parallel.context.ops.listener = log
        with mode():
            found.append(model(inputs()).detach().numpy())
        parallel.context.ops.listener = None
    return {"outputs": found, "log": log.entries}


class Backwards(nn.Module):
    """Runs its layers in the other order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.square = nn.ModuleList(nn.Linear(16, 16, dtype=torch.float64) for _ in range(3))

    def forward(self, x: torch.Tensor, layers: int = 3) -> torch.Tensor:
        for layer in list(reversed(self.square))[:layers]:
            x = layer(x).tanh()
        return x


def detour(worker: Any, grid: dict[str, int]) -> list[Any]:
    """A call that ends early, weights that change where no counter sees it, a layer by itself."""
    with auto_parallelize(worker.mesh(Grid(**grid))):
        model = Backwards()
    return detoured(model)


def detoured(model: nn.Module) -> list[Any]:
    with torch.no_grad():
        model(inputs())
        found = [model(inputs(), layers=1)]  # the second layer was expected
        for parameter in model.parameters():
            parameter.data.mul_(2.0)
        found += [model.square[1](inputs()), model(inputs()), model(inputs(), layers=2)]
    return [output.numpy() for output in found]


def flops(worker: Any, grid: dict[str, int]) -> int:
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain()
    return count_flops(model, parallel.part(inputs()))


def count_flops(model: nn.Module, x: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(x.requires_grad_()).square().mean().backward()
    return counter.get_total_flops()


def refusals(worker: Any, grid: dict[str, int]) -> dict[str, str]:
    """Messages of what is refused on every rank."""
    mesh, said, held = worker.mesh(Grid(**grid)), {}, []

    def attempt(name: str, make: Any, on: Any = mesh) -> None:
        try:
            with auto_parallelize(on):
                held.append(make())  # what nobody holds was not declared
        except DescriptionError as error:
            said[name] = str(error)

    attempt("seeds", lambda: plain(seed=worker.rank))
    attempt("models", lambda: nn.Linear(4 + worker.rank % 2, 4))
    attempt("world", plain, {"x": 2, "data": 8})
    return said


def compiled(worker: Any, grid: dict[str, int]) -> Found:
    """torch.compile, and a batch without rows."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain()
    fast = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        model.zero_grad()
        fast(parallel.part(inputs())).square().mean().backward()
    empty = model(inputs()[:0])
    assert empty.shape == (0, 8)
    empty.sum().backward()  # adds zero
    parallel.reduce_gradients()
    return full_gradients(parallel, model)


def sparse(worker: Any, grid: dict[str, int]) -> str:
    """What is said about an embedding with sparse gradients."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        torch.manual_seed(0)
        model = nn.Embedding(4, 4, sparse=True)
    model(torch.arange(4)).sum().backward()
    try:
        parallel.reduce_gradients()
    except DescriptionError as error:
        return str(error)
    return ""


def two_models(worker: Any, grid: dict[str, int]) -> Found:
    """Two models, interleaved, one of them copied and differentiated for its input alone."""
    mesh = worker.mesh(Grid(**grid))
    with auto_parallelize(mesh) as first:
        one, other = plain(1), plain(2)
    with auto_parallelize(mesh) as second:
        third = plain(4)
    x = first.part(inputs()).requires_grad_()
    for model in (one, other, third):
        model(x)  # so that all orders are known
    torch.autograd.grad(one(x).sum(), x)
    untouched = all(p.grad is None for p in one.parameters() if p.ndim == 1)
    joined = one(x).square().mean() + third(torch.cat((other(x), other(x)), -1)).square().mean()
    joined.backward(retain_graph=True)
    one.zero_grad()
    other.zero_grad()
    third.zero_grad()
    joined.backward()
    for parallel in (first, second):
        parallel.reduce_gradients()
    return {
        "untouched": untouched,
        "one": full_gradients(first, one),
        "other": full_gradients(first, other),
        "third": full_gradients(second, third),
    }


def uneven(worker: Any, grid: dict[str, int]) -> Found:
    """Two replicas with unequal numbers of rows, and a layer that the first alone uses."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain()
        extra = nn.Linear(16, 2, dtype=torch.float64)
    mine = inputs()[:1] if parallel.replica == 0 else inputs()[1:]
    loss = parallel.weigh(model(mine).square().mean(), len(mine))
    part = extra(inputs()).mean() if parallel.replica == 0 else torch.zeros(())
    (loss + part).backward()
    parallel.reduce_gradients()
    assert extra.bias.grad is not None
    return {**full_gradients(parallel, model), "mean": float(parallel.mean(loss)), "extra": extra.bias.grad.numpy()}


def padding(worker: Any, grid: dict[str, int]) -> Found:
    """An embedding whose padding row is looked up, and no head tied to it."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, 16, padding_idx=0), nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    model(parallel.part(torch.arange(6).repeat(2))).square().mean().backward()
    parallel.reduce_gradients()
    optimizer.step()
    table = model[0].weight.detach()
    return {"row": table[0].numpy(), "others": bool((table[1:] != before[1:]).all())}


def mixed(worker: Any, grid: dict[str, int], dtype: str) -> Found:
    """Autocast: what the products, outputs and gradients are made of."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain(dtype=torch.float32)
    kinds = set()
    model[0].register_forward_hook(lambda _m, _i, output: kinds.add(str(output.dtype)))
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", dtype=getattr(torch, dtype)):
            loss = model(parallel.part(inputs(dtype=torch.float32))).float().square().mean()
        loss.backward()
    parallel.reduce_gradients()
    kinds |= {f"gradient {p.grad.dtype}" for p in model.parameters() if p.grad is not None}
    return {"kinds": kinds, **full_gradients(parallel, model)}


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(8)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)


def encoded(model: nn.Module) -> list[Any]:
    """Evaluate a transformer as PyTorch's fused path would, with and without padding."""
    model.eval()
    x = inputs(8).view(2, 4, 16)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that nested tensors are a prototype
        return [model(x).numpy(), model(x, src_key_padding_mask=padding)[1, :2].numpy()]


def encode(worker: Any, grid: dict[str, int]) -> tuple[int, list[Any]]:
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = encoder()
    return len(parallel.layers), encoded(model)


def state(worker: Any, grid: dict[str, int], given: dict[str, Any] | None = None) -> Found:
    """Gather a model, or first load a full one into it; its optimizer was made inside the block."""
    with auto_parallelize(worker.mesh(Grid(**grid))) as parallel:
        model = plain(seed=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if given is not None:
        parallel.load_full_state_dict({n: torch.from_numpy(t) for n, t in given.items()})
    model(parallel.part(inputs())).square().mean().backward()
    parallel.reduce_gradients()
    optimizer.step()
    assert all(isinstance(m, ParallelLinear) for m in parallel.layers.values())
    return {n: t.detach().clone().numpy() for n, t in parallel.full_state_dict(model).items()}
