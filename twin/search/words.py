"""A search in words, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from twin.description.grid import Axes
from twin.description.units import format_amount
from twin.search.candidates import Candidate, Hindrance
from twin.search.entries import Figures
from twin.search.fleet import DAY_SECONDS, Fleet
from twin.search.search import TOP, By, Search
from twin.search.tables import model_top
from twin.strategies import strategy_of

HINDRANCES: dict[Hindrance, str] = {
    "divisibility": "a rule of divisibility",
    "memory": "memory",
    "size": "a step too long to be simulated",
    "refused": "what does not train",
}


def tokens_words(tokens: float) -> str:
    """Write a number of tokens as people say it: 300 B are 300 billion.

    >>> tokens_words(3e11), tokens_words(1.5e12), tokens_words(200)
    ('300 B tokens', '1.5 T tokens', '200 tokens')
    """
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{_four_digits(tokens / size)} {letter} tokens"
    return f"{_four_digits(tokens)} tokens"


def _four_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def grid_words(grid: Axes) -> str:
    """A grid with its axes named."""
    return str(grid)


def axes_title(found: Search | None) -> str:
    """Name the axes of a search's grids, outermost first."""
    return " × ".join(found.entries[0].candidate.grid.axes) if found and found.entries else "grid"


def options_words(candidate: Candidate, varied: Sequence[str]) -> list[str]:
    """The micro-batch and the options that differ between candidates."""
    words = candidate.options.words_on(candidate.grid)
    micro = "" if candidate.micro_sequences is None else f"micro-batch {candidate.micro_sequences}"
    return [word for word in (micro, *(words.get(name, "") for name in varied)) if word]


def joules_per_token(found: Search, figures: Figures) -> str:
    """Write what a search by energy decides by: joules of the devices, or of all that is billed, for each token."""
    return f"{figures.billed_joules / found.job.tokens_per_step:#.4g}"


def hindered(found: Search) -> list[str]:
    """Count the candidates that cannot run, by what hinders them."""
    count = Counter(e.candidate.hindrance for e in found.entries if e.candidate.hindrance)
    words = [f"{count[kind]:,} for {text}" for kind, text in HINDRANCES.items() if count[kind]]
    failed = sum(bool(entry.failure) for entry in found.entries)
    return words + ([f"{failed:,} for too many events to be simulated"] if failed else [])


BEST_WORDS: dict[By, str] = {"simulation": "fastest", "energy": "fewest joules", "axonn": "first by the model"}
"""What the first candidate is."""


def model_words(found: Search) -> str:
    """Where the published communication model's best lie in the order of simulated time, which it is about."""
    top = model_top(found)
    model = strategy_of(found.job).ordered_by
    if found.by == "axonn" or not top["simulated_ranks"] or not model:
        return ""
    places = ", ".join("–" if rank is None else f"{rank:,}" for rank in top["simulated_ranks"])
    best, slower = len(top["simulated_ranks"]), top["best_slower_than_fastest"]
    order = "" if found.by == "simulation" else " in step time"  # the table that it stands by has another order
    said = (
        f"The {model}'s {best} best lie at places {places} of {found.simulated:,}{order}; "
        f"{top['among_fastest']} of them are among the {TOP} fastest"
    )
    if not slower:
        return f"{said}, and so is the fastest of all."
    return f"{said}; the fastest of them takes {100 * slower:.1f} % longer than the fastest of all."


def facts_of(fleet: Fleet) -> list[tuple[str, str]]:
    """What a reader should know first: (what, value)."""
    found = fleet.chosen.found
    assert found is not None
    entry, bill = found.entries[0], fleet.bill(fleet.chosen)
    assert entry.figures is not None
    facts = [
        (BEST_WORDS[found.by], grid_words(entry.candidate.grid)),
        ("options", ", ".join(options_words(entry.candidate, ()))),
        ("step", f"{entry.figures.step_seconds:.3f} s"),
        ("candidates", f"{len(found.entries):,}"),
        ("feasible", f"{found.feasible:,}"),
        ("simulated", f"{found.simulated:,} in {found.wall_seconds:.1f} s"),
    ]
    if bill is not None and fleet.tokens is not None:
        facts.append((f"days for {tokens_words(fleet.tokens)}", format_amount(bill.seconds / DAY_SECONDS)))
    return facts
