"""The report: a table, a picture and verdicts for each claim, from the
results alone."""

import json
import math
from collections import Counter
from pathlib import Path

from . import timing
from .claims import CLAIMS, Check, Claim, expected_hours
from .claims.pooling import BUDGETS
from .estimates import Estimate

# By arm and seed.
Results = dict[str, dict[int, dict]]

HOLDS, NOT, OPEN = 'holds', 'does not hold', 'cannot be told at this size'
NOT_RUN = 'not run'


def verdict(check: Check, difference: Estimate) -> str:
    """What the paired differences ``better`` - ``than`` say of a check.

    It holds if the whole interval lies above -margin. It does not if the
    interval leaves no room for a difference that matters.
    """
    if math.isinf(difference.half):
        return OPEN
    if difference.low > -check.margin:
        return HOLDS
    least = -check.margin if check.margin else check.matters
    return NOT if difference.high < least else OPEN


def read(folder: Path) -> Results:
    """Results of arms that were tested."""
    found: Results = {}
    for path in sorted(folder.glob('*/*.json')):
        result = json.loads(path.read_text())
        if result['value'] is not None:
            found.setdefault(result['arm'], {})[result['seed']] = result
    return found


def differences(check: Check, results: Results) -> list[float]:
    """``better`` - ``than`` of each seed that both have."""
    better, than = (results.get(a, {}) for a in (check.better, check.than))
    return [
        better[seed]['value'] - than[seed]['value']
        for seed in sorted(better.keys() & than.keys())
    ]


def write(folder: Path, page: Path) -> None:
    """Write the page and its pictures from what is in a folder."""
    results, times = read(folder), timing.read(folder / timing.TIMES)
    begun = {
        name: claim
        for name, claim in CLAIMS.items()
        # An arm alone may be another claim's, too.
        if any(differences(check, results) for check in claim.checks)
    }
    parts = ['# What the backbones learn', *_by_hand(folder, 'introduction')]
    if begun:
        parts += [
            '## In short',
            *_by_hand(folder, 'conclusions'),
            _summary(begun, results),
        ]
    for name, claim in begun.items():
        timed = times.get(name)
        parts += [
            f'## {claim.title}',
            claim.says,
            _extent(claim, results),
            _table(claim, results, timed),
            *_how_timed(timed),
            _checks(claim, results),
            *_by_hand(folder, name),
        ]
        picture = folder / f'{name}.svg'
        _plot(claim, results, timed, picture)
        parts.append(f'![{claim.title}]({picture.relative_to(page.parent)})')
    rest = [name for name in CLAIMS if name not in begun]
    if rest:
        parts += ['## Not run yet', *map(outlook, rest)]
    page.write_text('\n\n'.join(parts) + '\n')


def _by_hand(folder: Path, name: str) -> list[str]:
    """What stands above the claims, follows from them, or was looked at
    because of one."""
    path = folder / f'{name}.md'
    return [path.read_text().strip()] if path.is_file() else []


def _verdicts(claim: Claim, results: Results) -> list[str]:
    found = [differences(check, results) for check in claim.checks]
    return [
        verdict(check, Estimate.of(values)) if values else NOT_RUN
        for check, values in zip(claim.checks, found)
    ]


def _summary(begun: dict[str, Claim], results: Results) -> str:
    """How many checks of each claim came out how."""
    heads = (HOLDS, NOT, OPEN, NOT_RUN)
    lines = [
        f'| | {" | ".join(heads)} |',
        f'|---|{"---|" * len(heads)}',
    ]
    for claim in begun.values():
        counts = Counter(_verdicts(claim, results))
        cells = ' | '.join(str(counts[head] or '') for head in heads)
        lines.append(f'| {claim.title} | {cells} |')
    return '\n'.join(lines)


def _extent(claim: Claim, results: Results) -> str:
    """What was planned, and how much of it there is."""
    seeds = [len(results.get(arm, {})) for arm in claim.arms]
    planned = len(claim.seeds)
    text = (
        f'{planned} seeds were expected to tell differences of '
        f'{claim.resolves:.1f} points.'
    )
    missing = sum(not number for number in seeds)
    if missing:
        text += f' {missing} of the {len(seeds)} arms were not run yet.'
    fewest = min(filter(None, seeds))
    if fewest < planned:
        text += (
            f' So far there are no more than {fewest} of {planned} seeds of '
            'some arms: the verdicts may change.'
        )
    return text


def outlook(name: str) -> str:
    """What it takes to decide a claim."""
    claim, hours = CLAIMS[name], expected_hours()[name]
    return (
        f'**{claim.title}.** {claim.says} {len(claim.arms)} arms, '
        f'{len(claim.seeds)} seeds, to tell differences of '
        f'{claim.resolves:.1f} points; some {hours:.1f} hours of two cores '
        'after the claims before it.'
    )


def _table(claim: Claim, results: Results, timed: dict | None) -> str:
    metric = next(
        run['metric']
        for arm in claim.arms
        for run in results.get(arm, {}).values()
    )
    speedups = timed['speedup'] if timed else {}
    heads = ['arm', metric, 'MACs']
    if timed:
        heads.append(f'times as fast as {timed["first"]}')
    heads.append('seeds')
    lines = [f'| {" | ".join(heads)} |', '|---' * len(heads) + '|']
    for arm in claim.arms:
        runs = list(results.get(arm, {}).values())
        cells = [arm, NOT_RUN, '']
        if runs:
            value = Estimate.of([run['value'] for run in runs])
            cells = [arm, str(value), f'{runs[0]["macs"] / 1e6:.1f} M']
        if timed:
            cells.append(f'{speedups[arm][0]:.2f}' if arm in speedups else '')
        cells.append(str(len(runs) or ''))
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def _how_timed(timed: dict | None) -> list[str]:
    if not timed:
        return []
    return [
        f'The backbone alone, all arms in turns, {timed["rounds"]} rounds, '
        f'batches of {timed["batch"]}: {timed["processor"]}, '
        f'{timed["threads"]} threads, torch {timed["torch"]}. '
        f'{timed["first"]} took {timed["milliseconds"]:.1f} ms.'
    ]


def _checks(claim: Claim, results: Results) -> str:
    lines = ['| what | difference in points | verdict |', '|---|---|---|']
    for check, word in zip(claim.checks, _verdicts(claim, results)):
        found = differences(check, results)
        difference = str(Estimate.of(found)) if found else ''
        lines.append(f'| {check.says} | {difference} | {word} |')
    return '\n'.join(lines)


def _plot(
    claim: Claim, results: Results, timed: dict | None, path: Path
) -> None:
    """The metric of each arm over its cost, and over its time if known."""
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    known = [arm for arm in claim.arms if arm in results]
    costs = {
        'million multiply-accumulates of the backbone, an image': {
            arm: next(iter(results[arm].values()))['macs'] / 1e6
            for arm in known
        }
    }
    if timed:
        costs[f'time of the backbone, over that of {timed["first"]}'] = {
            arm: 1 / timed['speedup'][arm][0]
            for arm in known
            if arm in timed['speedup']
        }
    size = 5 * len(costs) + 1.5, 4
    figure = Figure(figsize=size, layout='constrained')
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for axes, (label, cost) in zip(panels, costs.items()):
        families = _families(cost)
        colours = colormaps['tab10' if len(families) <= 10 else 'tab20']
        axes.set_prop_cycle(color=colours.colors)
        for name, family in families.items():
            _draw(axes, name, family, cost, results)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    metric = next(iter(results[known[0]].values()))['metric']
    panels[0].set_ylabel(metric)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc='outside right upper', fontsize=8)
    # The same results give the same file.
    with rc_context({'svg.hashsalt': 'clustr_mm'}):
        figure.savefig(path, metadata={'Date': None})


def _families(arms: dict[str, float]) -> dict[str, list[str]]:
    """Arms that differ in their budget alone, together."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        stem, _, budget = arm.rpartition('_')
        is_one = stem and (budget.isdigit() or budget in BUDGETS)
        found.setdefault(stem if is_one else arm, []).append(arm)
    return found


def _draw(
    axes, name: str, family: list[str], cost: dict, results: Results
) -> None:
    """The means of a family's arms, joined by a line, and each seed."""
    values = {
        arm: [run['value'] for run in results[arm].values()] for arm in family
    }
    (line,) = axes.plot(
        [cost[arm] for arm in family],
        [Estimate.of(values[arm]).mean for arm in family],
        'o-',
        label=name.replace('_', ' '),
    )
    for arm, seeds in values.items():
        costs = [cost[arm]] * len(seeds)
        axes.scatter(costs, seeds, s=9, alpha=0.4, color=line.get_color())
