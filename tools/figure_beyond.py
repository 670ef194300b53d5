"""Tables of what goes beyond the published 4D algorithm: predicted for the paper's runs, measured on the test bed."""

from __future__ import annotations

from tools.figure_tables import Answer, percent, table

NEAR = 0.05


def predicted(answer: Answer) -> str:
    """Write the fastest as published beside the fastest found, a line for each run."""
    rows = []
    for run in answer["runs"]:
        before, after = run["published"], run["beyond"]
        options = [_recomputed(after)] + ["two halves"] * after["halves"]
        options += [f"{what} divided" for what in after["divided"]] + ["1d"] * (after["tensor"] == "1d")
        rows.append(
            [
                run["name"],
                *(f"{each['grid']}, {each['micro_sequences']} at once" for each in (before,)),
                f"{before['step_seconds']:.2f} ({before['exposed_seconds']:.2f})",
                *_memory_and_energy(before),
                f"{after['grid']}, {after['micro_sequences']} at once, {', '.join(options)}",
                f"{after['step_seconds']:.2f} ({after['exposed_seconds']:.2f})",
                *_memory_and_energy(after),
                percent(run["faster"], digits=1),
            ]
        )
    columns = ("s (exposed)", "GB a rank", "MJ a step")
    return table(("run", "as published", *columns, "beyond", *columns, "less time"), rows)


def _recomputed(figures: Answer) -> str:
    """Say what of the forward pass is computed again."""
    whole, lean, layers = (figures[key] for key in ("recompute_layers", "products_kept_layers", "layers"))
    if lean:
        return "products kept" if lean == layers else f"products kept of {lean} of {layers}, all of the others"
    if not whole:
        return "nothing recomputed"
    kept = "attention kept of " if figures["attention_kept_layers"] else ""
    early = " but MLP down" if figures["stops_early"] else ""
    return f"{kept}{whole} of {layers} recomputed{early}"


def kept(answer: Answer) -> str:
    """Say how much less the published algorithm takes, on its fastest grids, if it recomputes nothing."""
    found = []
    for run in answer["runs"]:
        gain = run["kept"] and 1 - run["kept"]["step_seconds"] / run["published"]["step_seconds"]
        found.append(f"{run['name']} {percent(gain, digits=1) if gain else 'does not fit'}")
    return ", ".join(found)


def _memory_and_energy(figures: Answer) -> tuple[str, str]:
    """Write what a rank holds, and what all devices together draw in a step."""
    return f"{figures['memory_bytes'] / 1e9:.0f}", f"{figures['energy_joules'] / 1e6:.1f}"


def of_320b(answer: Answer) -> str:
    """Say how much less time the largest run takes."""
    return percent(next(run["faster"] for run in answer["runs"] if run["name"].startswith("gpt-320b")))


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


def over_data(answer: Answer) -> str:
    """Write each run in the four ways in which gradients are summed over data, a line for each run."""
    runs: dict[str, dict[str, Answer]] = {}
    for point in answer["points"]:
        run, _, mode = point["name"].rpartition(": ")
        runs.setdefault(run, {})[mode] = point
    rows = []
    for run, ways in runs.items():
        cells = []
        for point in ways.values():
            exposed = f"{point['step_seconds']:.2f} ({point['exposed_data_seconds']:.2f})"
            cells.append(f"{exposed}, {point['memory_per_rank_bytes'] / 1e9:.1f} GB")
        gain = 1 - ways["sharded_overlapped"]["step_seconds"] / ways["sharded"]["step_seconds"]
        rows.append([run, *cells, percent(gain, digits=1)])
    modes = next(iter(runs.values()))
    return table(("run", *(f"`{mode}`" for mode in modes), "less time than `sharded`"), rows)


def mean_gain(answer: Answer, scenario: str) -> str:
    """Say how much faster the second of a pair is on average."""
    pairs = answer["gains"][scenario]
    said, seen = (sum(pair[i] for pair in pairs) / len(pairs) for i in (1, 2))
    return f"{seen:.2f} times as fast, predicted {said:.2f} times"


def within(answer: Answer, scenario: str) -> str:
    """Count the pairs whose gain is predicted within five points."""
    pairs = answer["gains"][scenario]
    near = sum(abs(said - seen) <= NEAR for _, said, seen in pairs)
    return f"{near} of {len(pairs)}"


def mean_error(answer: Answer, scenario: str) -> str:
    """Write the mean absolute error of all steps, and the correlation of their ranks."""
    found = _scenario(answer, scenario)
    error = percent(found["mean_absolute_error"], digits=1)
    return f"{error}, the rank correlation {found['spearman']:.3f}"


def _scenario(answer: Answer, name: str) -> Answer:
    found: Answer = next(each for each in answer["scenarios"] if each["name"] == name)
    return found


def steps_measured(answer: Answer, scenario: str) -> str:
    """Write how long each way's step took on the test bed, predicted and measured."""
    rows = [
        [
            f"`{row['grid']}`",
            f"{1e3 * row['predicted_seconds']:,.0f} ms",
            f"{1e3 * row['measured_seconds']:,.0f} ms",
            percent(row["error"], digits=1, signed=True),
        ]
        for row in sorted(_scenario(answer, scenario)["rows"], key=lambda row: float(row["measured_seconds"]))
    ]
    return table(("way", "predicted", "measured", "error"), rows)


def measured(answer: Answer, scenario: str) -> str:
    """Write what each pair gained on the test bed, predicted and measured."""
    rows = [
        [pair, f"{said:.2f} ×", f"{seen:.2f} ×", f"{100 * (said - seen):+.0f}".replace("-", "−")]
        for pair, said, seen in answer["gains"][scenario]
    ]
    return table(("grid (others are 1), activations", "gain predicted", "measured", "points apart"), rows)
