"""Tables of what `python -m tests.benchmarks.train` has measured."""

from __future__ import annotations

from tools.figure_tables import Answer, percent, table

FOUR_D, OWN, PYTORCH = "4D", "own strategy", "PyTorch"
SPEED, MEMORY = "tokens/s, best", "memory, MB a rank"


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


def beside_pytorch(answer: Answer) -> str:
    """Write the product's other strategies against plain PyTorch; last 4D against it, which took turns with them."""
    rows = against(answer, OWN, PYTORCH)
    titles = [title for title, who in answer["contestants"].items() if OWN in who and PYTORCH in who]
    for row, title in zip(rows, titles, strict=True):
        ratios = [f"{answer['rows'][title][f'{FOUR_D} / {PYTORCH}, {how}']:.2f}" for how in ("best", "median")]
        row += [answer["contestants"][title][FOUR_D], *ratios]
    head = ("strategy", "PyTorch", "tokens/s, best", "PyTorch", "ratio, best", "ratio, median", "MB a rank", "PyTorch")
    return table((*head, "in turn with 4D", "4D to PyTorch, best", "median"), rows)


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
