"""Tables as plain text."""

from collections.abc import Sequence


def format_table(
    head: Sequence[str], rows: Sequence[Sequence], rule_at: int | None = None
) -> str:
    """Align columns: the first to the left, the others to the right.

    Args:
        head (Sequence[str]): Names of the columns.
        rows (Sequence[Sequence]): Cells; None is left blank.
        rule_at (int, optional): Row above which to draw another line.
    """
    cells = [['' if c is None else str(c) for c in row] for row in rows]
    columns = list(zip(head, *cells))
    widths = [max(map(len, column)) for column in columns]

    def line(row: Sequence[str]) -> str:
        first = row[0].ljust(widths[0])
        rest = (c.rjust(w) for c, w in zip(row[1:], widths[1:]))
        return '  '.join([first, *rest]).rstrip()

    rule = '-' * (sum(widths) + 2 * (len(widths) - 1))
    lines = [line(row) for row in cells]
    if rule_at is not None:
        lines.insert(rule_at, rule)
    return '\n'.join([line(list(head)), rule, *lines])
