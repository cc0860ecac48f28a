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
    # Every evaluation is of all test pictures; the test is one.
    epochs(1, 800) | {'train_cfg.val_interval': 2},
)
_LR = {'optim_wrapper.optimizer.lr': 3e-4}


def _merging() -> list[tuple[str, int]]:
    """What thins by merging, and at which budgets."""
    return [('evit_fused', 2), *product(MERGING, (1, 2))]


def _arms(
    task: str, vit: str, dynamic: str, trunk: str, whole: dict, tuned: dict
) -> dict[str, Arm]:
    arms = {f'vit_{task}': Arm(vit, whole | SHARP, {'load_from': trunk})}
    tuned = tuned | _LR | SHARP
    start = {'load_from': f'vit_{task}'}
    arms[f'vit_{task}_tuned'] = Arm(vit, tuned, start)
    for name, (kind, budgets) in THINNED.items():
        for number, options in enumerate(budgets, 1):
            arms[f'{name}_{task}_{number}'] = Arm(
                vit, backbone(type=kind, **options) | tuned, start
            )
    arms[f'evit_fused_{task}_2'] = Arm(
        vit,
        backbone(type='EViT', keep=0.5, reduce_at=[2, 4, 6]) | tuned,
        start,
    )
    # Whether each patch keeps what it was beyond its token.
    for name, budget in _merging():
        plain = arms[f'{name}_{task}_{budget}']
        for suffix, detail in ('', False), ('_detail', True):
            arms[f'{name}_{task}{suffix}_{budget}'] = Arm(
                vit, plain.options | backbone(detail=detail), start
            )
    # As many tokens in the same blocks as `evit` keeps, and `pooling`.
    kind, budgets = THINNED['pooling']
    arms[f'random_{task}_2'] = Arm(
        vit,
        backbone(type=kind, method='random', **budgets[1]) | tuned,
        start,
    )
    alone = {'custom_hooks.0.weight': 0.0}
    for number, keep in enumerate(DYNAMIC, 1):
        arms[f'dynamicvit_{task}_{number}'] = Arm(
            dynamic, backbone(keep=keep) | alone | tuned, start
        )
    options = backbone(keep=DYNAMIC[1]) | tuned
    arms[f'dynamicvit_ratio_{task}_2'] = Arm(dynamic, options, start)
    arms[f'dynamicvit_trained_{task}_2'] = Arm(
        dynamic,
        options | alone | _PREDICTORS,
        {'model.backbone.init_cfg.checkpoint': 'dynamicvit_sharp_2', **start},
    )
    return arms


def _claim(task: str, title: str, says: str, deviation: float) -> Claim:
    names = (*THINNED, 'dynamicvit')
    return Claim(
        title,
        says,
        [
            f'vit_{task}_tuned',
            *(f'{name}_{task}_{n}' for name in names for n in (1, 2)),
            f'evit_fused_{task}_2',
            f'dynamicvit_ratio_{task}_2',
            f'dynamicvit_trained_{task}_2',
            f'random_{task}_2',
            *(f'{name}_{task}_detail_{budget}' for name, budget in _merging()),
        ],
        [
            *(
                Check(
                    f'{name}_{task}_1',
                    f'vit_{task}_tuned',
                    f'{name} at its first budget stays within 2 points of '
                    'dense',
                    margin=2.0,
                )
                for name in names
            ),
            Check(
                f'evit_{task}_2',
                f'evit_fused_{task}_2',
                'EViT is better when the others keep their values than when '
                'they are fused',
            ),
            Check(
                f'dynamicvit_{task}_2',
                f'dynamicvit_ratio_{task}_2',
                "the task's loss alone loses no more than a point against "
                'the ratio loss',
                margin=1.0,
            ),
            Check(
                f'dynamicvit_trained_{task}_2',
                f'dynamicvit_{task}_2',
                'trained predictors are a better start than untrained ones',
            ),
            *(
                Check(
                    f'{name}_{task}_2',
                    f'random_{task}_2',
                    f'{name} beats as many random tokens (or the choice does '
                    'not matter here)',
                )
                for name in ('evit', 'pooling')
            ),
            *(
                Check(
                    f'{name}_{task}_detail_{budget}',
                    f'{name}_{task}_{budget}',
                    f'{name} is better when patches keep their detail '
                    f'(budget {budget})',
                )
                for name, budget in _merging()
            ),
            *(
                Check(
                    f'{name}_{task}_detail_1',
                    f'vit_{task}_tuned',
                    f'with their detail, {name} at its first budget stays '
                    'within 2 points of dense',
                    margin=2.0,
                )
                for name in MERGING
            ),
        ],
        deviation,
    )


ARMS = _arms('fpn', *_SEGMENTATION) | _arms('masks', *_DETECTION)
CLAIMS = {
    'thinning_dense': _claim(
        'fpn',
        'All thinned ViTs in segmentation',
        'At equal cost, which rule keeps most of the mIoU? Nobody has '
        'published this. All start from one trained Semantic FPN; no order '
        'is expected but that each of the first budget stays within 2 points '
        'of dense. The choices of this project are that EViT does not fuse '
        'its tokens here, and that DynamicViT learns from the loss of the '
        'task alone.',
        deviation=0.8,
    ),
    'thinning_masks': _claim(
        'masks',
        'All thinned ViTs in instance segmentation',
        'The same in one trained Mask R-CNN, which starts from the Semantic '
        'FPN, by the AP of masks.',
        deviation=0.8,
    ),
}
