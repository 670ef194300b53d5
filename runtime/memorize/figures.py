"""Pictures of a study, as plain data for plotly: no plotting library is loaded to make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runtime.memorize.bounds import all_right
from runtime.memorize.summary import Row, Spread
from twin.pages.picture import Picture
from twin.trace.palette import BLUE, DARK_GREY, GREEN, LIGHT_GREY, ORANGE, PURPLE, SKY, VERMILION

LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, DARK_GREY, LIGHT_GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MAX_LINES = 16


def pictures(rows: Sequence[Row], suffix: int) -> list[Picture]:
    """Return the pictures that fit what was compared."""
    found = [_by_repeats(rows)] if len({row.repeats for row in rows}) > 2 else []
    hashed = [row for row in rows if row.setting.mask in (None, "hash")]
    if len({row.setting.k for row in hashed}) > 1:
        found += [
            _by_k(hashed, "Exact match against k", lambda row: row.exact, "share of texts repeated without an error"),
            _by_k(
                hashed,
                "Common subsequence against k",
                lambda row: row.subsequence,
                "longest common subsequence over the suffix",
            ),
        ]
    if any(row.repeats for row in hashed):
        found.append(_survival(hashed, suffix))
    if len({row.setting.mask for row in rows} - {None}) > 1:
        found.append(_by_mask(rows))
    return found


def _by_k(rows: Sequence[Row], title: str, of: Callable[[Row], Spread], what: str) -> Picture:
    series: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.setting.k is None, row.setting.k or 0)):
        series.setdefault(_named(row.setting.model, _times(row)), []).append(row)
    values = list(dict.fromkeys(k for members in series.values() for k in (_k(row) for row in members)))
    data = [_line(name, [_k(r) for r in members], [of(r) for r in members], n) for n, (name, members) in _first(series)]
    layout = {
        "xaxis": {
            "title": {"text": "k: one of so many targets is dropped"},
            "type": "category",
            "categoryorder": "array",
            "categoryarray": values,
        },
        "yaxis": {"title": {"text": what}, "range": [-0.03, 1.03]},
    }
    return Picture(title, "Mask hash. Means over seeds; bars from the least to the most.", data, layout)


def _survival(rows: Sequence[Row], suffix: int) -> Picture:
    """Draw how many texts are right so far, place by place, beside the closed form."""
    shown = [row for row in rows if row.repeats == max(r.repeats for r in rows)]
    data: list[dict[str, Any]] = []
    places = list(range(suffix + 1))
    for number, row in enumerate(shown[: MAX_LINES // 2]):
        colour, name = LINES[number % len(LINES)], _named(row.setting.model, f"k {_k(row)}")
        texts = row.texts * row.seeds
        right = [1 - sum(error < place for error in row.first_errors) / texts for place in places]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": places,
                "y": right,
                "line": {"color": colour, "shape": "hv"},
            }
        )
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name}, no drop so far",
                "x": places,
                "y": [all_right(row.setting.k, place) for place in places],
                "line": {"color": colour, "width": 1, "dash": "dot"},
                "showlegend": False,
                "hoverinfo": "skip",
            }
        )
    return Picture(
        "First errors against first drops",
        "Share of texts that are right so far, by the number of tokens written, for texts that came most often. "
        "Dotted: share of texts of which no token was dropped so far, (1 − 1/k)^i. Where both agree the mask alone "
        "decides where a text ends.",
        data,
        {
            "xaxis": {"title": {"text": "tokens written"}},
            "yaxis": {"title": {"text": "share of texts right so far"}, "range": [-0.03, 1.03]},
        },
    )


def _by_mask(rows: Sequence[Row]) -> Picture:
    most = max(row.repeats for row in rows)
    compared = {row.setting.k for row in rows if row.setting.mask not in (None, "hash")}
    shown = [row for row in rows if row.repeats == most and (row.setting.k in compared or row.setting.k is None)]
    names = [_of_setting(row) for row in shown]
    data = [
        _bars("exact match", names, [row.exact for row in shown], BLUE),
        _bars("tokens right", names, [row.accuracy for row in shown], ORANGE),
        _bars("common subsequence", names, [row.subsequence for row in shown], GREEN),
    ]
    return Picture(
        "Masks compared",
        "Texts that came most often. A mask that is drawn anew each time drops no target for good.",
        data,
        {"barmode": "group", "xaxis": {"type": "category", "automargin": True}, "yaxis": {"range": [0, 1.03]}},
    )


def _by_repeats(rows: Sequence[Row]) -> Picture:
    """Draw a line for each model and mask: of several models each has a colour, and each mask a dash."""
    series: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.repeats):
        series.setdefault(_of_setting(row), []).append(row)
    models = list(dict.fromkeys(row.setting.model for row in rows))
    masks = sorted({(row.setting.k is not None, row.setting.mask_name, row.setting.k or 0) for row in rows})
    data = []
    for n, (name, members) in _first(series):
        setting, colour, dash = members[0].setting, n, DASHES[0]
        if len(models) > 1:
            mask = masks.index((setting.k is not None, setting.mask_name, setting.k or 0))
            colour, dash = models.index(setting.model), DASHES[mask % len(DASHES)]
        times, exact = [str(row.repeats) for row in members], [row.exact for row in members]
        data.append(_line(name, times, exact, colour, dash))
    return Picture(
        "Exact match against repetitions",
        "0 times: the control. Means over seeds; bars from the least to the most.",
        data,
        {
            "xaxis": {"title": {"text": "times that a text was trained on"}, "type": "category"},
            "yaxis": {"title": {"text": "share of texts repeated without an error"}, "range": [-0.03, 1.03]},
        },
    )


def _first(series: dict[str, list[Row]]) -> list[tuple[int, tuple[str, list[Row]]]]:
    return list(enumerate(list(series.items())[:MAX_LINES]))


def _line(name: str, x: Sequence[Any], spreads: Sequence[Spread], number: int, dash: str = DASHES[0]) -> dict[str, Any]:
    colour = LINES[number % len(LINES)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        **_with_bars(spreads),
        "line": {"color": colour} if dash == DASHES[0] else {"color": colour, "dash": dash},
        "marker": {"color": colour, "size": 8},
    }


def _bars(name: str, x: Sequence[str], spreads: Sequence[Spread], colour: str) -> dict[str, Any]:
    return {"type": "bar", "name": name, "x": list(x), **_with_bars(spreads), "marker": {"color": colour}}


def _with_bars(spreads: Sequence[Spread]) -> dict[str, Any]:
    up, down = [s.most - s.mean for s in spreads], [s.mean - s.least for s in spreads]
    return {"y": [s.mean for s in spreads], "error_y": {"type": "data", "array": up, "arrayminus": down}}


def _times(row: Row) -> str:
    return f"{row.repeats} times" if row.repeats else "control"


def _k(row: Row) -> str:
    return "∞" if row.setting.k is None else str(row.setting.k)


def _of_setting(row: Row) -> str:
    return _named(row.setting.model, f"{row.setting.mask_name} k {_k(row)}")


def _named(model: str, words: str) -> str:
    """Name a line; what plotly would read as markup is escaped.

    >>> _named("<b>", "k 4")
    '&lt;b&gt;, k 4'
    """
    text = f"{model}, {words}" if model else words
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
