"""Tables of what goes beyond the published 4D algorithm: predicted for the paper's runs, measured on the test bed."""

from __future__ import annotations

from tools.figure_tables import Answer, percent, table


def predicted(answer: Answer) -> str:
    """Write the fastest as published beside the fastest found, a line for each run."""
    rows = []
    for run in answer["runs"]:
        before, after = run["published"], run["beyond"]
        again = after["recompute_layers"]
        options = [f"{again} of {after['layers']} recomputed"] + ["two halves"] * after["halves"]
        rows.append(
            [
                run["name"],
                *(f"{each['grid']}, {each['micro_sequences']} at once" for each in (before,)),
                f"{before['step_seconds']:.2f} ({before['exposed_seconds']:.2f})",
                f"{before['memory_bytes'] / 1e9:.0f}",
                f"{after['grid']}, {after['micro_sequences']} at once, {', '.join(options)}",
                f"{after['step_seconds']:.2f} ({after['exposed_seconds']:.2f})",
                f"{after['memory_bytes'] / 1e9:.0f}",
                percent(run["faster"], digits=1),
            ]
        )
    head = ("run", "as published", "s (exposed)", "GB a rank", "beyond", "s (exposed)", "GB a rank", "less time")
    return table(head, rows)


def tornado(answer: Answer) -> str:
    """Write how the gain changes with what it rests on."""
    shown = [run for run in answer["runs"] if run["tornado"]]
    rows = []
    for name in shown[0]["tornado"]:
        cells = []
        for run in shown:
            low, high = run["tornado"][name]
            cells.append(f"{percent(low, digits=1)} to {percent(high, digits=1)}")
        rows.append([f"{name}, {answer['varied'][name]}", *cells])
    return table(("varied", *(f"{run['name']}: {percent(run['faster'], digits=1)}" for run in shown)), rows)


def measured(answer: Answer) -> str:
    """Write what each pair gained on the test bed, predicted and measured."""
    rows = [
        [pair, f"{said:.2f} ×", f"{seen:.2f} ×", f"{100 * (said - seen):+.0f}".replace("-", "−")]
        for pair, said, seen in answer["gains"]
    ]
    return table(("grid (others are 1), activations", "gain predicted", "measured", "points apart"), rows)
