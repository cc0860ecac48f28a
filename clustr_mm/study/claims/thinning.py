"""All thinned ViTs on one trunk, in classification."""

from .parts import Arm, Check, Claim, backbone
from .recipes import FINE_TUNED, FROM_SHARP_TRUNK, SHARP, SHARP_TRUNK

# Three budgets, of about the same multiply-accumulates in each row.
THINNED = {
    'evit': (
        'EViT',
        [dict(keep=k, reduce_at=[2, 4, 6]) for k in (0.7, 0.5, 0.35)],
    ),
    'tome': ('ToMe', [dict(merge=r) for r in (5, 7, 9)]),
    'pooling': (
        'TokenPoolingDeiT',
        [
            dict(keep=keep)
            for keep in (
                [64, 64, 48, 44, 36, 32, 26, 24],
                [64, 56, 40, 32, 24, 18, 14, 10],
                [56, 40, 28, 20, 14, 10, 6, 4],
            )
        ],
    ),
    'hvt': (
        'HVT',
        [
            dict(reduce_at=at, out_type='avg_featmap', with_cls_token=False)
            for at in ([2], [0], [0, 4])
        ],
    ),
}
# They need a teacher and losses of their own.
DYNAMIC = (0.7, 0.5, 0.35)


def _arms() -> dict[str, Arm]:
    arms = {
        'vit_sharp': SHARP_TRUNK,
        'vit_sharp_tuned': Arm(
            'vit_cifar10.py', SHARP | FINE_TUNED, FROM_SHARP_TRUNK
        ),
    }
    for name, (kind, budgets) in THINNED.items():
        for number, options in enumerate(budgets, 1):
            arms[f'{name}_{number}'] = Arm(
                'vit_cifar10.py',
                backbone(type=kind, **options) | SHARP | FINE_TUNED,
                FROM_SHARP_TRUNK,
            )
    for number, keep in enumerate(DYNAMIC, 1):
        arms[f'dynamicvit_sharp_{number}'] = Arm(
            'dynamicvit_cifar10.py',
            backbone(keep=keep) | SHARP | FINE_TUNED,
            {'model.pretrained': 'vit_sharp'},
        )
    return arms


ARMS = _arms()
CLAIMS = {
    'thinning': Claim(
        'All thinned ViTs on one trunk',
        'At equal cost, which rule keeps most of the accuracy? Nobody has '
        'published this with one trunk and one recipe; no order is expected '
        'but that each of the first budget stays within 2 points of dense.',
        [
            'vit_sharp_tuned',
            *(
                f'{name}_{number}'
                for name in (*THINNED, 'dynamicvit_sharp')
                for number in (1, 2, 3)
            ),
        ],
        [
            Check(
                f'{name}_1',
                'vit_sharp_tuned',
                f'{name} at its first budget stays within 2 points of dense',
                margin=2.0,
            )
            for name in (*THINNED, 'dynamicvit_sharp')
        ],
        deviation=0.4,
    ),
}
