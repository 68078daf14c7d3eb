"""The page as HTML: everything is inside it, and nothing is fetched or run when it is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magmadnn.data import Preparation
from magmadnn.errors import ArgumentError, shown
from magmadnn.storage.disk import worded
from magmadnn.storage.durable import write_file
from magmadnn.training import Model

from .contents import (
    MOST_FILTERS,
    FeatureMaps,
    Mistake,
    confused_pairs,
    confusions,
    feature_maps,
    first_filters,
    is_picture,
    raw_images,
    worst_mistakes,
)
from .png_files import as_filter, as_map, as_pixels, data_uri

Array = NDArray[Any]
Matrix = NDArray[np.int64]

PAGE = "index.html"
_MOST_COLUMNS = 40  # classes of a matrix that is shown whole
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1c1c1c; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; text-align: right; border: 1px solid #ddd; }
th { font-weight: 600; } .name { text-align: left; } .scroll { overflow-x: auto; }
.beside { display: flex; flex-wrap: wrap; gap: 0 3rem; } .beside > div { min-width: 0; }
.sheet { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: 0; width: 8rem; } figcaption { font-size: .78rem; overflow-wrap: anywhere; }
img { image-rendering: pixelated; width: 100%; height: auto; border: 1px solid #ccc; }
.filters figure { width: 3.4rem; }
"""


def check_report(preparation: Preparation) -> None:
    """Look whether a report can be made, before anything is computed.

    Raises:
        ArgumentError: the network has no classes.
    """
    if preparation.task != "classification":
        raise ArgumentError(
            "--report: shows classes and how they are confused, and this network predicts quantities; "
            "leave it out"
        )


def write_report(
    folder: Path,
    model: Model,
    preparation: Preparation,
    x: Array,
    y: Array,
    *,
    title: str,
    result: Mapping[str, Any],
    files: Sequence[str] | None,
) -> None:
    """Write the page.

    Args:
        folder: where to; made if it is not there.
        model: what is looked at.
        preparation: of its data.
        x: rows, prepared.
        y: their class numbers.
        title: which rows these are.
        result: the figures by name.
        files: the name of each row's file, where there are some.

    Raises:
        FileError: it cannot be written.
    """
    probabilities = model.predict_probability(x, prepared=True)
    classes = preparation.classes
    matrix = confusions(y, probabilities.argmax(axis=1), len(classes))
    mistakes = worst_mistakes(y, probabilities)
    layer, filters = first_filters(model, preparation.prepared_shape)
    parts = [
        f"<h1>{_text(title)}</h1>",
        _figures(result),
        "<h2>Confusions</h2>",
        '<div class="beside">',
        _matrix(matrix, classes) if len(classes) <= _MOST_COLUMNS else "",
        _pairs(matrix, classes),
        "</div>",
        "<h2>Worst mistakes</h2>",
        _mistakes(mistakes, preparation, x, files),
    ]
    if filters:
        parts += [f"<h2>Filters of {_text(layer)}</h2>", _filters(filters)]
    row = mistakes[0].row if mistakes else 0
    maps = feature_maps(model, x[row : row + 1])
    if maps:
        picture = _picture(preparation, x, row)
        parts += ["<h2>Feature maps</h2>", _maps(maps, picture, _name(files, row))]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
    with worded("cannot write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / PAGE, page.encode())


def _text(words: object) -> str:
    """Text from outside, as a page may hold it."""
    return escape(shown(words, 200))


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _figures(result: Mapping[str, Any]) -> str:
    cells = []
    for name, value in result.items():
        if isinstance(value, (int, float)):
            number = f"{value:.2%}" if name.endswith("accuracy") else f"{value:,.6g}"
            cells.append([f'<th class="name">{_text(name)}</th>', f"<td>{number}</td>"])
    return _table(cells)


def _matrix(matrix: Matrix, classes: Sequence[str]) -> str:
    """Rows are true classes, columns predicted ones; darker cells hold a larger share of their row.

    Confusions are as dark as their share of the largest one, so that few are seen too.
    """
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    most = (shares * (1 - np.eye(len(classes)))).max(initial=0) or 1
    head = ["<th></th>", *(f"<th>{_text(c)}</th>" for c in classes), "<th>recall</th>"]
    rows = [head]
    for k, name in enumerate(classes):
        cells = [f'<th class="name">{_text(name)}</th>']
        for j, (count, share) in enumerate(
            zip(matrix[k].tolist(), shares[k].tolist(), strict=True)
        ):
            colour = (
                f"46,125,50,{0.75 * share:.2f}" if j == k else f"198,40,40,{0.5 * share / most:.2f}"
            )
            style = f' style="background:rgba({colour})"' if count else ""
            cells.append(f"<td{style}>{count or ''}</td>")
        recall = f"{shares[k, k]:.1%}" if matrix[k].any() else "no rows"
        rows.append([*cells, f"<td>{recall}</td>"])
    words = "Rows are the true classes, columns what was predicted."
    return f"<div><p>{words}</p>{_table(rows)}</div>"


def _pairs(matrix: Matrix, classes: Sequence[str]) -> str:
    rows = [['<th class="name">true</th>', '<th class="name">predicted</th>', "<th>rows</th>"]]
    rows += [
        [
            f'<td class="name">{_text(classes[t])}</td>',
            f'<td class="name">{_text(classes[p])}</td>',
            f"<td>{n}</td>",
        ]
        for t, p, n in confused_pairs(matrix)
    ]
    if len(rows) == 1:
        return ""
    return f"<div><p>The pairs that are confused most:</p>{_table(rows)}</div>"


def _mistakes(
    mistakes: Sequence[Mistake], preparation: Preparation, x: Array, files: Sequence[str] | None
) -> str:
    if not mistakes:
        return "<p>Every row is classified correctly.</p>"
    figures = []
    for one in mistakes:
        picture, name = _picture(preparation, x, one.row), _name(files, one.row)
        true, predicted = (_text(preparation.classes[k]) for k in (one.true, one.predicted))
        figures.append(
            f"<figure>{picture}<figcaption>{_text(name)}<br>{true} ({one.of_true:.1%}), taken for "
            f"<b>{predicted}</b> ({one.probability:.1%})</figcaption></figure>"
        )
    return (
        "<p>The rows whose own class got the least probability, the worst first.</p>"
        f'<div class="sheet">{"".join(figures)}</div>'
    )


def _picture(preparation: Preparation, x: Array, row: int) -> str:
    """The image of a row; nothing where rows are no pictures."""
    if not is_picture(preparation.prepared_shape):
        return ""
    image = raw_images(preparation, x[row])
    return f'<img alt="row {row}" src="{data_uri(as_pixels(image))}">'


def _name(files: Sequence[str] | None, row: int) -> str:
    return Path(files[row]).name if files is not None else f"row {row}"


def _maps(layers: Sequence[FeatureMaps], picture: str, name: str) -> str:
    """What layers make of the image that costs the loss most, or of the first."""
    words = f"What layers make of {_text(name)}. The least value of a picture is black, the largest white."
    parts = [f'<p>{words}</p><div class="sheet"><figure>{picture}</figure></div>']
    for one in layers:
        height, width = one.maps[0].shape
        shown_of = f"the first {len(one.maps)} of " if one.channels > len(one.maps) else ""
        words = f"{_text(one.layer)}: {height} x {width}, {shown_of}{one.channels} channels"
        figures = "".join(
            f'<figure><img alt="channel {k}" src="{data_uri(as_map(values))}"></figure>'
            for k, values in enumerate(one.maps)
        )
        parts.append(f'<h3>{words}</h3><div class="sheet filters">{figures}</div>')
    return "".join(parts)


def _filters(filters: Sequence[Array]) -> str:
    figures = "".join(
        f'<figure><img alt="filter {k}" src="{data_uri(as_filter(kernel))}"></figure>'
        for k, kernel in enumerate(filters)
    )
    first = f"The first {MOST_FILTERS}. " if len(filters) == MOST_FILTERS else ""
    words = f"<p>{first}Weights of 0 are grey, each filter is scaled by itself.</p>"
    return f'{words}<div class="sheet filters">{figures}</div>'
