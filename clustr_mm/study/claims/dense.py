"""Thinned ViTs in segmentation and detection, which nobody has published."""

from itertools import product

from .parts import Arm, Check, Claim, backbone, epochs
from .recipes import SHARP

# Two budgets for 256 tokens, of about the same multiply-accumulates.
THINNED = {
    'evit': (
        'EViT',
        [dict(keep=k, reduce_at=[2, 4, 6], fuse=False) for k in (0.7, 0.5)],
    ),
    'tome': ('ToMe', [dict(merge=r) for r in (22, 29)]),
    'pooling': (
        'TokenPoolingDeiT',
        [
            dict(keep=keep)
            for keep in (
                [256, 256, 180, 180, 126, 126, 89, 89],
                [256, 256, 128, 128, 64, 64, 32, 32],
            )
        ],
    ),
    'hvt': (
        'HVT',
        [dict(reduce_at=[at], with_cls_token=False) for at in (2, 0)],
    ),
}
# Those that merge or pool tokens.
MERGING = ('tome', 'pooling', 'hvt')
DYNAMIC = (0.7, 0.5)
# DynamicViT's predictors may come from the classifier of that budget.
_PREDICTORS = {
    'model.backbone.init_cfg.type': 'Pretrained',
    'model.backbone.init_cfg.prefix': 'backbone.',
}
# Of each task: config of the ViT, of DynamicViT, what the dense ViT starts
# from, and what the trainings last.
_SEGMENTATION = (
    'fpn_vit_garments.py',
    'fpn_dynamicvit_garments.py',
    # Only its patches, twice as wide here, are new.
    'vit_sharp',
    epochs(10, 2000) | {'val_dataloader.dataset.indices': 100},
    epochs(1, 1200) | {'val_dataloader.dataset.indices': 100},
)
_DETECTION = (
    'mask_rcnn_vit_garments.py',
    'mask_rcnn_dynamicvit_garments.py',
    # The same pictures, and the same neck.
    'vit_fpn',
    epochs(6, 1500) | {'train_cfg.val_interval': 6},
    # An evaluation is of all test pictures, and the test is one.
    epochs(1, 800) | {'train_cfg.val_begin': 2},
)
_LR = {'optim_wrapper.optimizer.lr': 3e-4}


def _name(rule: str, task: str, budget: int, detail: bool = False) -> str:
    return f'{rule}_{task}{"_detail" if detail else ""}_{budget}'


def _merging(*budgets: int) -> list[tuple[str, int]]:
    """What thins by merging, and at which budgets."""
    return [('evit_fused', 2), *product(MERGING, budgets)]


def _arms(
    task: str, vit: str, dynamic: str, trunk: str, whole: dict, tuned: dict
) -> dict[str, Arm]:
    """All that a claim of the task may ask for."""
    arms = {f'vit_{task}': Arm(vit, whole | SHARP, {'load_from': trunk})}
    tuned = tuned | _LR | SHARP
    start = {'load_from': f'vit_{task}'}
    arms[f'vit_{task}_tuned'] = Arm(vit, tuned, start)
    for rule, (kind, budgets) in THINNED.items():
        for budget, options in enumerate(budgets, 1):
            arms[_name(rule, task, budget)] = Arm(
                vit, backbone(type=kind, **options) | tuned, start
            )
    arms[_name('evit_fused', task, 2)] = Arm(
        vit,
        backbone(type='EViT', keep=0.5, reduce_at=[2, 4, 6]) | tuned,
        start,
    )
    # Whether each patch keeps what it was beyond its token.
    for rule, budget in _merging(1, 2):
        plain = arms[_name(rule, task, budget)]
        for detail in False, True:
            arms[_name(rule, task, budget, detail)] = Arm(
                vit, plain.options | backbone(detail=detail), start
            )
    # As many tokens in the same blocks as `evit` keeps, and `pooling`.
    kind, budgets = THINNED['pooling']
    arms[_name('random', task, 2)] = Arm(
        vit,
        backbone(type=kind, method='random', **budgets[1]) | tuned,
        start,
    )
    return arms | _dynamic(task, dynamic, tuned, start)


def _dynamic(
    task: str, config: str, tuned: dict, start: dict
) -> dict[str, Arm]:
    """DynamicViT with the ratio loss or by the loss of the task alone, its
    predictors untrained or the classifier's."""
    arms = {}
    for loss, weight in ('', {'custom_hooks.0.weight': 0.0}), ('_ratio', {}):
        for budget, keep in enumerate(DYNAMIC, 1):
            arms[_name(f'dynamicvit{loss}', task, budget)] = Arm(
                config, backbone(keep=keep) | weight | tuned, start
            )
        untrained = arms[_name(f'dynamicvit{loss}', task, 2)]
        arms[_name(f'dynamicvit_trained{loss}', task, 2)] = Arm(
            config,
            untrained.options | _PREDICTORS,
            {
                'model.backbone.init_cfg.checkpoint': 'dynamicvit_sharp_2',
                **start,
            },
        )
    return arms


def _within(
    rule: str, task: str, detail: bool = False, says: str = ''
) -> Check:
    return Check(
        _name(rule, task, 1, detail),
        f'vit_{task}_tuned',
        f'{says}{rule} at its first budget stays within 2 points of dense',
        margin=2.0,
    )


def _beats_random(rule: str, task: str, detail: bool = False) -> Check:
    return Check(
        _name(rule, task, 2, detail),
        _name('random', task, 2),
        f'{rule} beats as many random tokens (or the choice does not matter '
        'here)',
    )


def _better_with_detail(task: str, *budgets: int) -> list[Check]:
    return [
        Check(
            _name(rule, task, budget, detail=True),
            _name(rule, task, budget),
            f'{rule} is better when patches keep their detail '
            f'(budget {budget})',
        )
        for rule, budget in _merging(*budgets)
    ]


def _better_start(task: str, loss: str) -> Check:
    return Check(
        _name(f'dynamicvit_trained{loss}', task, 2),
        _name(f'dynamicvit{loss}', task, 2),
        'trained predictors are a better start than untrained ones',
    )


def _segmentation() -> Claim:
    rules = (*THINNED, 'dynamicvit')
    return Claim(
        'All thinned ViTs in segmentation',
        'At equal cost, which rule keeps most of the mIoU? Nobody has '
        'published this. All start from one trained Semantic FPN; no order '
        'is expected but that each of the first budget stays within 2 points '
        'of dense. The choices of this project are that EViT does not fuse '
        'its tokens here, and that DynamicViT learns from the loss of the '
        'task alone.',
        [
            'vit_fpn_tuned',
            *(
                _name(rule, 'fpn', budget)
                for rule in rules
                for budget in (1, 2)
            ),
            'evit_fused_fpn_2',
            'dynamicvit_ratio_fpn_2',
            'dynamicvit_trained_fpn_2',
            'random_fpn_2',
            *(
                _name(rule, 'fpn', budget, True)
                for rule, budget in _merging(1, 2)
            ),
        ],
        [
            *(_within(rule, 'fpn') for rule in rules),
            Check(
                'evit_fpn_2',
                'evit_fused_fpn_2',
                'EViT is better when the others keep their values than when '
                'they are fused',
            ),
            Check(
                'dynamicvit_fpn_2',
                'dynamicvit_ratio_fpn_2',
                "the task's loss alone loses no more than a point against "
                'the ratio loss',
                margin=1.0,
            ),
            _better_start('fpn', loss=''),
            *(_beats_random(rule, 'fpn') for rule in ('evit', 'pooling')),
            *_better_with_detail('fpn', 1, 2),
            *(
                _within(rule, 'fpn', detail=True, says='with their detail, ')
                for rule in MERGING
            ),
        ],
        deviation=0.8,
    )


def _detection() -> Claim:
    return Claim(
        'All thinned ViTs in instance segmentation',
        'The same in one trained Mask R-CNN, which starts from the Semantic '
        'FPN, by the AP of masks. Its defaults are those that segmentation '
        'has taught: patches keep their detail, and DynamicViT has the ratio '
        'loss; what each is worth is asked again at the second budget.',
        [
            'vit_masks_tuned',
            'evit_masks_1',
            'evit_masks_2',
            'evit_fused_masks_detail_2',
            *(
                _name(rule, 'masks', budget, detail=True)
                for rule, budget in product(MERGING, (1, 2))
            ),
            'dynamicvit_ratio_masks_1',
            'dynamicvit_ratio_masks_2',
            'random_masks_2',
            *(_name(rule, 'masks', budget) for rule, budget in _merging(2)),
            'dynamicvit_masks_2',
            'dynamicvit_trained_ratio_masks_2',
        ],
        [
            _within('evit', 'masks'),
            *(_within(rule, 'masks', detail=True) for rule in MERGING),
            _within('dynamicvit_ratio', 'masks'),
            _beats_random('evit', 'masks'),
            *(
                _beats_random(rule, 'masks', detail=True)
                for rule in ('pooling', 'tome')
            ),
            Check(
                'evit_fused_masks_detail_2',
                'evit_masks_2',
                'with its detail, an EViT that fuses loses no more than a '
                'point against one that does not',
                margin=1.0,
            ),
            *_better_with_detail('masks', 2),
            Check(
                'dynamicvit_ratio_masks_2',
                'dynamicvit_masks_2',
                "the ratio loss beats the task's loss alone",
            ),
            _better_start('masks', loss='_ratio'),
        ],
        deviation=0.8,
    )


CLAIMS = {'thinning_dense': _segmentation(), 'thinning_masks': _detection()}
_POSSIBLE = _arms('fpn', *_SEGMENTATION) | _arms('masks', *_DETECTION)
_ASKED = [name for claim in CLAIMS.values() for name in claim.arms]
ARMS = {name: _POSSIBLE[name] for name in ('vit_fpn', 'vit_masks', *_ASKED)}
