"""The rooms of the package and what imports what, drawn from the imports.

    python -m tests.import_graph

writes the picture of docs/design.md.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / 'clustr_mm'
PICTURE = ROOT / 'docs/images/import_graph.svg'
# The modules that lie beside the folders, as one room.
BESIDE = 'beside the folders'
# From the top down: a room imports what stands below it, and nothing else.
FLOORS = (
    ('runs', 'swap', 'export', 'zoo', 'study'),
    ('visualization',),
    ('analysis',),
    ('shapes', 'training', 'toolboxes'),
    ('necks', 'backbones', 'checkpoints'),
    ('layers',),
    ('tokens',),
    (BESIDE,),
)


def room_of(path: Path) -> str:
    """Whose a file of the package is."""
    folder = path.relative_to(PACKAGE).parts[0]
    return folder if (PACKAGE / folder).is_dir() else BESIDE


def rooms() -> set[str]:
    return set(map(room_of, _files()))


def _files() -> list[Path]:
    """All but the file that makes the folder a package: it opens doors."""
    found = sorted(PACKAGE.glob('**/*.py'))
    return [p for p in found if p != PACKAGE / '__init__.py']


def imports() -> dict[tuple[str, str], list[str]]:
    """From one room to another: the files that import, wherever they do."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in _files():
        for target in sorted(_imported(path)):
            edge = room_of(path), target
            if edge[0] != target:
                name = str(path.relative_to(PACKAGE))
                found.setdefault(edge, []).append(name)
    return found


def _imported(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    package = ('clustr_mm', *path.relative_to(PACKAGE).parent.parts)
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1]
            base = '.'.join(start if node.level else ()).rstrip('.')
            base = '.'.join(filter(None, [base, node.module]))
            names |= {f'{base}.{alias.name}' for alias in node.names}
    parts = [name.split('.') for name in names]
    return {
        room_of(_file(part[1])) for part in parts if part[0] == 'clustr_mm'
    }


def _file(name: str) -> Path:
    """The folder or the module of that name; what is neither is beside."""
    folder = PACKAGE / name
    return (
        folder / '__init__.py' if folder.is_dir() else PACKAGE / f'{name}.py'
    )


def upward(edges) -> list[tuple[str, str]]:
    """The imports of what does not stand below."""
    floor = {room: i for i, row in enumerate(FLOORS) for room in row}
    return [(a, b) for a, b in edges if floor[a] >= floor[b]]


def reduced(edges) -> set[tuple[str, str]]:
    """Without those that follow from others by way of a third room."""
    edges = set(edges)
    targets: dict[str, set[str]] = {}
    for row in reversed(FLOORS):
        for room in row:
            direct = {b for a, b in edges if a == room}
            targets[room] = direct.union(*(targets[b] for b in direct))
    return {
        (a, b)
        for a, b in edges
        if not any(b in targets[c] for x, c in edges if x == a)
    }


def draw(edges) -> str:
    """An SVG: a row of boxes for each floor, a line for each import.

    Without the lowest floor, which all stand on.
    """
    width, height, gap, text = 640, 30, 34, []
    middle, top = {}, {}
    floors = [row for row in FLOORS if row != (BESIDE,)]
    edges = [edge for edge in edges if BESIDE not in edge]
    for i, row in enumerate(floors):
        for j, room in enumerate(row):
            middle[room] = round(width * (j + 1) / (len(row) + 1))
            top[room] = 10 + i * (height + gap)
    for a, b in sorted(reduced(edges)):
        x, y, u, v = middle[a], top[a] + height, middle[b], top[b]
        # Past the boxes of the floors between.
        bend = 110 * (1 if x >= width / 2 else -1) if v - y > gap else 0
        text.append(
            f'<path d="M{x} {y} C{x + bend} {y + gap} {u + bend} {v - gap} '
            f'{u} {v}"/>'
        )
    for room, x in middle.items():
        half = 10 + 4 * len(room)
        text.append(
            f'<rect x="{x - half}" y="{top[room]}" width="{2 * half}" '
            f'height="{height}" rx="4"/>\n'
            f'<text x="{x}" y="{top[room] + 20}">{room}</text>'
        )
    tall = 20 + len(floors) * (height + gap) - gap
    body = '\n'.join(text)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" \
viewBox="0 0 {width} {tall}" font-family="sans-serif" font-size="14">
<style>
path {{ fill: none; stroke: #777; marker-end: url(#tip); }}
rect {{ fill: #fff; stroke: #333; }}
text {{ text-anchor: middle; }}
</style>
<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" \
markerHeight="8" orient="auto"><polygon points="0,0 8,4 0,8" fill="#777"/>\
</marker>
<rect width="{width}" height="{tall}" stroke="none"/>
{body}
</svg>
"""


if __name__ == '__main__':
    PICTURE.write_text(draw(imports()))
    print(PICTURE)
