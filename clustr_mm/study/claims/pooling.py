"""Token Pooling, in a trained ViT and after fine-tuning."""

from .parts import Arm, Check, Claim, backbone
from .recipes import FINE_TUNED, FROM_TRUNK, SHORT, TRUNK

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
    arms = {
        'vit': TRUNK,
        'vit_tuned': Arm('vit_cifar10.py', FINE_TUNED, FROM_TRUNK),
    }
    for budget in BUDGETS:
        for name, how in POOLINGS.items():
            options = _pooled(budget, **how)
            arms[f'{name}_{budget}'] = Arm(
                'vit_cifar10.py', options, FROM_TRUNK, trained=False
            )
            arms[f'{name}_{budget}_tuned'] = Arm(
                'vit_cifar10.py', options | FINE_TUNED, FROM_TRUNK
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


def _checks(suffix: str) -> list[Check]:
    return [
        check
        for budget in BUDGETS
        for check in (
            Check(
                f'kmedoids_{budget}{suffix}',
                f'power_bert_{budget}{suffix}',
                f'K-Medoids beats keeping the most significant ({budget})',
            ),
            Check(
                f'kmeans_{budget}{suffix}',
                f'power_bert_{budget}{suffix}',
                f'K-Means beats keeping the most significant ({budget})',
            ),
            Check(
                f'kmedoids_{budget}{suffix}',
                f'kmedoids_unweighted_{budget}{suffix}',
                f'weights help K-Medoids ({budget})',
            ),
            Check(
                f'kmedoids_carry_{budget}{suffix}',
                f'kmedoids_{budget}{suffix}',
                f'carrying the sizes helps (appendix E, {budget})',
            ),
            Check(
                f'importance_{budget}{suffix}',
                f'random_{budget}{suffix}',
                f'a draw by significance beats a random one ({budget})',
            ),
        )
    ]


def _names(suffix: str) -> list[str]:
    return [
        'vit' + suffix,
        *(f'{name}_{b}{suffix}' for b in BUDGETS for name in POOLINGS),
    ]


ARMS = _arms()
CLAIMS = {
    'pooling': Claim(
        'Token Pooling in a trained ViT, without training',
        'Token Pooling: at an equal number of tokens, cluster centres keep '
        'more of the accuracy than any selection of tokens.',
        _names(''),
        _checks(''),
        deviation=0.4,
    ),
    'pooling_tuned': Claim(
        'Token Pooling after fine-tuning',
        'Token Pooling: the same holds after fine-tuning (figure 4 of its '
        'paper), with smaller differences.',
        _names('_tuned'),
        _checks('_tuned'),
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
