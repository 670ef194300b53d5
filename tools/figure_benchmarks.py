"""Tables of what the benchmarks have measured: training, simulation, search."""

from __future__ import annotations

from collections.abc import Callable

from tools.figure_tables import Answer, percent, table

FOUR_D, OWN, PYTORCH = "4D", "own strategy", "PyTorch"
SAME_PRODUCTS = ", PyTorch's products"
SPEED, MEMORY = "tokens/s, best", "memory, MB a rank"
MEGABYTES = ("peak_megabytes", ".0f")
"""A figure's key and how it is written."""


def against(answer: Answer, ours: str, other: str) -> list[list[str]]:
    """Write speed, ratios and memory of two, a line for each contest in which both are."""
    rows: list[list[str]] = []
    for title, who in answer["contestants"].items():
        if ours in who and other in who:
            found = answer["rows"][title]
            speeds = [f"{found[f'{name}: {SPEED}']:,}" for name in (ours, other)]
            ratios = [f"{found[f'{ours} / {other}, {how}']:.2f}" for how in ("best", "median")]
            memory = [f"{found[f'{name}: {MEMORY}']:.0f}" for name in (ours, other)]
            rows.append([who[ours], who[other], *speeds, *ratios, *memory])
    return rows


def beside_strategies(answer: Answer) -> str:
    """Write 4D against the product's other strategies."""
    head = ("4D", "other strategy", "tokens/s, best", "other", "ratio, best", "ratio, median", "MB a rank", "other")
    return table(head, against(answer, FOUR_D, OWN))


BREAKING = "Schedule<wbr>Interleaved<wbr>ZeroBubble"
"""A name that would make its column wider than the page."""


def beside_pytorch(answer: Answer) -> str:
    """Write all strategies against plain PyTorch: of each contest first 4D, then the other."""
    both = zip(*(against(answer, name, PYTORCH) for name in (FOUR_D, OWN)), strict=True)
    titles = [title for title, who in answer["contestants"].items() if PYTORCH in who]
    rows = []
    for pair, title in zip(both, titles, strict=True):
        for row, name in zip(pair, (FOUR_D, OWN), strict=True):
            found = answer["rows"][title]
            best, median = (found[f"{name}{SAME_PRODUCTS} / {PYTORCH}, {how}"] for how in ("best", "median"))
            where = row[1].replace("`ScheduleInterleavedZeroBubble`", BREAKING)
            rows.append(
                [row[0], where, *row[2:4], f"{row[4]} ({row[5]})", f"{best:.2f} ({median:.2f})", ", ".join(row[6:])]
            )
    head = ("strategy", "PyTorch", "tokens/s, best", "PyTorch", "ratio, best (median)", "by PyTorch's products")
    return table((*head, "MB a rank, PyTorch's"), rows)


WANTED = {
    "z=4 against FSDP2": 1.25,
    "y=4 against tensor parallelism": 1.5,
    "z=2 y=2 against FSDP2 x TP": 1.5,
    "x=4 against tensor parallelism": 1.1,
    "x=4, divided, against tensor parallelism": 1.1,
    "x=4, flat, against tensor parallelism": 1.1,
    "z=2 x=2 against FSDP2 x TP": 1.2,
    "z=2 x=2, flat, against FSDP2 x TP": 1.2,
    "data=4 against DDP": 1.05,
    "one rank against a plain loop": 1.0,
}
"""How many times as fast as PyTorch 4D is wanted, by contest."""


def by_the_same_products(answer: Answer) -> str:
    """Write which ratios that are wanted of 4D are reached by PyTorch's products, and what the others lack."""
    reached, lacking = [], []
    for title, wanted in WANTED.items():
        row, name = answer["rows"][title], answer["contestants"][title][FOUR_D]
        best, median = (row[f"{FOUR_D}{SAME_PRODUCTS} / {PYTORCH}, {how}"] for how in ("best", "median"))
        shown = f"{name} {best:.2f} ({median:.2f}) of {wanted:g}"
        (reached if round(best, 2) >= wanted else lacking).append(shown)
    return f"reached {'; '.join(reached) or 'by none'}; not reached {'; '.join(lacking) or 'by none'}"


def x_as_published(answer: Answer) -> str:
    """Write 4D over x alone, without an option, against PyTorch."""
    row = answer["rows"]["x=4 against tensor parallelism"]
    best, median = (row[f"{FOUR_D} / {PYTORCH}, {how}"] for how in ("best", "median"))
    return f"{best:.2f} ({median:.2f} in the median)"


def tracing_costs(answer: Answer) -> str:
    """Write what a trace costs, of the median step and of the best."""
    found = next(row for title, row in answer["rows"].items() if title.startswith("tracing"))
    median, best = (percent(found[f"overhead, {how}"], digits=1) for how in ("median", "best"))
    return f"{median} of a step (best against best {best})"


def measured_where(answer: Answer) -> str:
    """Write date, machine, how busy it was, and how many steps each was timed."""
    before, after = answer["load"]
    where = f"{answer['date']}, {answer['machine']}, load {before} before and {after} after"
    return f"{where}, {answer['steps']} steps of each"


def of_series(answer: Answer, series: str) -> list[tuple[Answer, Answer]]:
    """Pair the cases of a series: one rank of each class, and every rank on its own."""
    rows = [row for row in answer["scale"] if row["series"] == series]
    folded, every = ([row for row in rows if row["engine"] == engine] for engine in ("folded", "ranks"))
    return list(zip(folded, every, strict=True))


def growth(answer: Answer) -> str:
    """Write what simulation takes of processor and memory as ranks become more."""
    rows = [
        [
            f"{folded['ranks']:,}",
            *(f"{case[key]:{form}}" for case in (folded, every) for key, form in (("cpu_seconds", ".2f"), MEGABYTES)),
            rate(every["events_per_second"]),
        ]
        for folded, every in of_series(answer, "ranks")
    ]
    head = ("ranks", "one rank of each class: CPU s", "MB", "every rank on its own: CPU s", "MB")
    return table((*head, "rank-ops per second"), rows)


def rate(per_second: float) -> str:
    """Write ops per second in millions, two digits of it."""
    millions = per_second / 1e6
    return f"{millions:.1f} million" if millions < 10 else f"{millions:.0f} million"


def growth_of_layers(answer: Answer) -> str:
    """Write processor seconds against layers, for both ways to simulate."""
    rows = [
        [str(folded["layers"]), f"{folded['cpu_seconds']:.2f}", f"{every['cpu_seconds']:.2f}"]
        for folded, every in of_series(answer, "layers")
    ]
    return table(("layers", "one rank of each class: CPU s", "every rank: CPU s"), rows)


def other_grids(answer: Answer) -> str:
    """Write the least and most processor seconds of other grids."""
    pairs = of_series(answer, "grid")
    spans = []
    for which in (0, 1):
        seconds = [pair[which]["cpu_seconds"] for pair in pairs]
        spans.append(f"{min(seconds):.2f} to {max(seconds):.2f} s")
    return f"{spans[0]} folded, {spans[1]} with every rank"


def peer_work(*names: str) -> Callable[[Answer], str]:
    """Make a writer of what work that peers were measured on takes here: processor seconds and memory."""

    def words(answer: Answer) -> str:
        said = []
        for name in names:
            found = next(row for row in answer["peers"] if row["work"] == name)
            way = "".join(f"{way} " for way in ("folded", "every rank") if name.endswith(f", {way}"))
            said.append(f"{way}{found['cpu_seconds']:.2f} s, {found['peak_megabytes']:.0f} MB")
        return "; ".join(said)

    return words


def largest_run(answer: Answer) -> str:
    """Write what the most ranks take, every one on its own."""
    _, every = of_series(answer, "ranks")[-1]
    return (
        f"{every['ranks']:,} ranks, every one, GPT-320B: {every['cpu_seconds']:.1f} s, {every['peak_megabytes']:.0f} MB"
    )


def processes(part: str) -> Callable[[Answer], str]:
    """Make a writer of simulations that were processes of their own: examples, or pipelines."""

    def words(answer: Answer) -> str:
        rows = [
            [
                row["job"],
                f"{row['ranks']:,}",
                str(row["classes"]),
                *(f"{row[key]:{form}}" for key, form in (("wall_seconds", ".2f"), ("cpu_seconds", ".2f"), MEGABYTES)),
            ]
            for row in answer[part]
        ]
        return table(("job", "ranks", "classes of ranks", "wall s", "CPU s", "peak MB"), rows)

    return words


def whereabouts(answer: Answer) -> str:
    """Write date, machine and, where it is known, how busy it was."""
    load = f", load {answer['load']:.1f} before" if "load" in answer else ""
    return f"{answer['date']}, {answer['machine']}{load}"


def search_of_all(answer: Answer) -> str:
    """Write what a search over all strategies took, and what each of them was asked."""
    counts = ", ".join(
        f"{one['strategy']} {one['candidates']:,} candidates, {one['feasible']:,} fit, {one['simulated']:,} simulated, "
        f"best {one['best']['step_seconds']:.2f} s"
        for one in answer["strategies"]
    )
    took = f"{answer['wall_seconds']:.0f} s by the clock, {answer['cpu_seconds']:.0f} CPU s, "
    return f"{took}{answer['peak_megabytes']:.0f} MB of all processes ({counts})"


def host_of_a_block(answer: Answer) -> str:
    """Write what the host does for a block, in a plain loop and in ours, at best."""
    rows = []
    for case, found in answer["cases"].items():
        other, own = (found[name][0] for name in ("plain loop", "four_d"))
        rows.append([case, f"{other * 1e6:.0f}", f"{own * 1e6:.0f}", f"{own / other:.2f}"])
    return table(("", "plain loop, µs", "4D, µs", "4D to plain"), rows)


def libraries_on_cpus(answer: Answer) -> str:
    """Write what a core multiplies by either library, a line for each layer: forward, and both gradients."""
    rows: dict[tuple[int, int, int], list[str]] = {}
    for product in answer["products"]:
        line = rows.setdefault((product["tokens"], product["out"], product["in"]), [])
        other, own = (product[f"{name}_flops_per_second"] / 1e9 for name in ("pytorch", "onednn"))
        line.append(f"{other:.0f}, {own:.0f}" + ("" if product["taken"] else " (not taken)"))
    head = ("tokens × out × in", "forward: PyTorch's choice, oneDNN", "gradient of inputs", "of weights")
    return table(head, [[" × ".join(f"{size:,}" for size in linear), *line] for linear, line in rows.items()])


BENCHMARKS: dict[str, tuple[str, Callable[[Answer], str]]] = {
    "train-strategies": ("train", beside_strategies),
    "train-pytorch": ("train", beside_pytorch),
    "train-x": ("train", x_as_published),
    "train-wanted": ("train", by_the_same_products),
    "train-tracing": ("train", tracing_costs),
    "train-where": ("train", measured_where),
    "products-where": ("products", whereabouts),
    "products-cpu": ("products", libraries_on_cpus),
    "scale-where": ("scale", whereabouts),
    "scale-ranks": ("scale", growth),
    "scale-layers": ("scale", growth_of_layers),
    "scale-grids": ("scale", other_grids),
    "scale-all-reduce": ("scale", peer_work("1 GiB all-reduce, 32,768 ranks")),
    "scale-twelve": ("scale", peer_work("12 layers, 8 × 512 ranks, folded", "12 layers, 8 × 512 ranks, every rank")),
    "scale-whole": (
        "scale",
        peer_work("96 layers (175B), 32,768 ranks, folded", "96 layers (175B), 32,768 ranks, every rank"),
    ),
    "scale-largest": ("scale", largest_run),
    "simulate-where": ("simulate-examples", whereabouts),
    "simulate-examples": ("simulate-examples", processes("examples")),
    "simulate-pipelines": ("simulate-examples", processes("pipelines")),
    "simulate-help": ("simulate-examples", lambda a: f"{a['help_seconds']:.2f} s"),
    "host-where": ("host", whereabouts),
    "host-block": ("host", host_of_a_block),
    "search-where": ("search-all", whereabouts),
    "search-all": ("search-all", search_of_all),
}
"""Figures by name: whose results they are made of, and how they are written."""
