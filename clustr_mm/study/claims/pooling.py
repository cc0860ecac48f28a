"""Token Pooling, in a trained ViT and after fine-tuning."""

from .parts import Arm, Check, Claim, backbone
from .recipes import (
    FINE_TUNED,
    FROM_SHARP_TRUNK,
    FROM_TRUNK,
    SHARP,
    SHORT,
    TRUNK,
)

# At most how many of 64 tokens each of the eight blocks keeps.
BUDGETS = {
    'half': [64, 64, 48, 40, 32, 24, 20, 16],
    'quarter': [64, 48, 32, 24, 16, 12, 8, 4],
}
POOLINGS = {
    'kmedoids': dict(method='kmedoids'),
    'kmedoids_unweighted': dict(method='kmedoids', weighted=False),
    'kmeans': dict(method='kmeans'),
    'kmedoids_carry': dict(method='kmedoids', carry=True),
    'power_bert': dict(method='significance'),
    'importance': dict(method='importance'),
    'random': dict(method='random'),
}
# Clusters usually start from the most significant tokens.
STARTS = {
    f'{name}_random_start': dict(POOLINGS[name], init='random')
    for name in ('kmedoids', 'kmedoids_carry')
}
# Of queries and keys (appendix F).
NORMS = {
    '': {},
    '_fixed': {'qk_norm': 'fixed'},
    '_learned': {'qk_norm': 'learned'},
    # What `learned` was when the claim was first run.
    '_learned_from_one': {'qk_norm': 'learned', 'qk_alpha': 1.0},
}


def _pooled(budget: str, **options) -> dict:
    return backbone(type='TokenPoolingDeiT', keep=BUDGETS[budget], **options)


def _arms() -> dict[str, Arm]:
    arms = {'vit': TRUNK}
    for budget in BUDGETS:
        for name, how in POOLINGS.items():
            arms[f'{name}_{budget}'] = Arm(
                'vit_cifar10.py',
                _pooled(budget, **how),
                FROM_TRUNK,
                trained=False,
            )
    for name, how in (POOLINGS | STARTS).items():
        arms[f'{name}_tuned'] = Arm(
            'vit_cifar10.py',
            _pooled('quarter', **how) | SHARP | FINE_TUNED,
            FROM_SHARP_TRUNK,
        )
    for suffix, norm in NORMS.items():
        arms[f'vit_short{suffix}'] = Arm(
            'vit_cifar10.py', backbone(**norm) | SHORT
        )
        for name in ('kmedoids', 'power_bert'):
            arms[f'{name}_short{suffix}'] = Arm(
                'vit_cifar10.py',
                _pooled('half', **POOLINGS[name], **norm),
                {'load_from': f'vit_short{suffix}'},
                trained=False,
            )
    return arms


def _checks(suffix: str, says: str) -> list[Check]:
    """Of arms with this at the end of their names."""
    return [
        Check(f'{better}{suffix}', f'{than}{suffix}', f'{what} ({says})')
        for better, than, what in (
            (
                'kmedoids',
                'power_bert',
                'K-Medoids beats keeping the most significant',
            ),
            (
                'kmeans',
                'power_bert',
                'K-Means beats keeping the most significant',
            ),
            ('kmedoids', 'kmedoids_unweighted', 'weights help K-Medoids'),
            (
                'kmedoids_carry',
                'kmedoids',
                'carrying the sizes helps, as appendix E says',
            ),
            (
                'importance',
                'random',
                'a draw by significance beats a random one',
            ),
        )
    ]


ARMS = _arms()
CLAIMS = {
    'pooling': Claim(
        'Token Pooling in a trained ViT, without training',
        'Token Pooling: at an equal number of tokens, cluster centres keep '
        'more of the accuracy than any selection of tokens.',
        ['vit', *(f'{name}_{b}' for b in BUDGETS for name in POOLINGS)],
        [check for b in BUDGETS for check in _checks(f'_{b}', b)],
        deviation=0.4,
    ),
    'pooling_tuned': Claim(
        'Token Pooling after fine-tuning',
        'Token Pooling: the same holds after fine-tuning (figure 4 of its '
        'paper), with smaller differences. Pooled to a quarter, from a trunk '
        'that attends more sharply; and clusters may start from random '
        'tokens.',
        [
            'vit_sharp_tuned',
            *(f'{name}_tuned' for name in (*POOLINGS, *STARTS)),
        ],
        [
            *_checks('_tuned', 'quarter'),
            Check(
                'kmedoids_random_start_tuned',
                'kmedoids_tuned',
                'a random start is better for K-Medoids than the most '
                'significant tokens',
            ),
            Check(
                'kmedoids_carry_random_start_tuned',
                'random_tuned',
                'K-Medoids from a random start, with sizes carried, beats '
                'random tokens',
            ),
        ],
        deviation=0.4,
    ),
    'normalised': Claim(
        'Token Pooling with normalised queries and keys',
        'Token Pooling, appendix F: with queries and keys of length 1 and a '
        'learnt factor a ViT is as good as without, with a fixed factor '
        'slightly worse, and clusters beat a selection all the same. ViTs '
        'trained for a short time, pooled to the first budget without '
        'training.',
        [
            f'{name}_short{suffix}'
            for suffix in NORMS
            for name in ('vit', 'kmedoids', 'power_bert')
        ],
        [
            Check(
                'vit_short_learned',
                'vit_short',
                'with a learnt factor it loses no more than a point',
                margin=1.0,
            ),
            Check(
                'vit_short_learned',
                'vit_short_fixed',
                'a learnt factor beats a fixed one',
            ),
            Check(
                'vit_short_learned',
                'vit_short_learned_from_one',
                'a learnt factor that starts from 10 beats one from 1',
            ),
            *(
                Check(
                    f'kmedoids_short{suffix}',
                    f'power_bert_short{suffix}',
                    f'K-Medoids beats keeping the most significant ({kind})',
                )
                for suffix, kind in (
                    ('', 'as usual'),
                    ('_fixed', 'fixed factor'),
                    ('_learned', 'learnt factor'),
                    ('_learned_from_one', 'learnt factor from 1'),
                )
            ),
        ],
        deviation=0.6,
    ),
}
