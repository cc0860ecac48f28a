"""How thinned ViTs are trained: HVT's choices, schedules, losses,
distillation."""

from .parts import Arm, Check, Claim, backbone, epochs
from .recipes import FINE_TUNED, SHARP, SHORT

# A single number stands for the share kept in EViT's usual blocks.
EVIT = {'07': 0.7, '05': 0.5}
LESSONS = {'all': {}, 'class': {'model.patch_weight': 0.0}}
# As its teacher has it.
_SHARP_BOTH = SHARP | {'model.teacher.qk_norm': 'learned'}
# After the distillation: how the classifier is trained.
SCHOOLS = {'frozen': {'model.backbone.frozen_stages': 8}, 'tuned': {}}
# Losses that DynamicViT goes without.
WITHOUT = {
    'without_ratio': {'model.ratio_weight': 0.0},
    'without_kl': {'model.kl_weight': 0.0},
    'without_token': {'model.token_weight': 0.0},
    'without_teacher': {'model.kl_weight': 0.0, 'model.token_weight': 0.0},
}
HVT = {
    'hvt_stages_0': dict(num_stages=0),
    'hvt_stages_1': dict(num_stages=1),
    'hvt_stages_2': dict(num_stages=2),
    'hvt_stages_3': dict(num_stages=3),
    'hvt_stages_4': dict(num_stages=4),
    'hvt_average': dict(num_stages=4, op='avg'),
    'hvt_convolution': dict(num_stages=4, op='conv'),
}


def _arms() -> dict[str, Arm]:
    arms = {
        name: Arm(
            'vit_cifar10.py',
            backbone(
                type='HVT',
                out_type='avg_featmap',
                with_cls_token=False,
                **options,
            )
            | SHORT,
        )
        for name, options in HVT.items()
    }
    arms['evit_constant'] = Arm(
        'vit_cifar10.py', backbone(type='EViT', keep=0.5) | SHORT
    )
    arms['evit_scheduled'] = Arm('evit_scheduled_cifar10.py', SHORT)
    for name, options in {'2': {}, **WITHOUT}.items():
        arms[f'dynamicvit_{name}'] = Arm(
            'dynamicvit_cifar10.py',
            backbone(keep=0.5) | options | FINE_TUNED,
            {'model.pretrained': 'vit'},
        )
    for share, keep in EVIT.items():
        for lesson, options in LESSONS.items():
            arms[f'distilled_{share}_{lesson}'] = Arm(
                'distill_evit_cifar10.py',
                backbone(keep=keep) | options | _SHARP_BOTH | epochs(2, 10000),
                {'model.teacher.init_cfg.checkpoint': 'vit_sharp'},
            )
        for lesson in (*LESSONS, 'none'):
            start = {'load_from': f'distilled_{share}_{lesson}'}
            for school, options in SCHOOLS.items():
                arms[f'student_{share}_{lesson}_{school}'] = Arm(
                    'vit_cifar10.py',
                    backbone(type='EViT', keep=keep)
                    | SHARP
                    | options
                    | epochs(3, 5000)
                    | {'val_dataloader.dataset.indices': 2000},
                    {} if lesson == 'none' else start,
                )
    return arms


ARMS = _arms()
CLAIMS = {
    'keep_schedule': Claim(
        "EViT's keep rate, falling or constant",
        'EViT: trained from scratch, a share that falls from 1 during the '
        'first two fifths of the training is better than a constant one.',
        ['vit_short', 'evit_constant', 'evit_scheduled'],
        [
            Check(
                'evit_scheduled',
                'evit_constant',
                'a share that falls beats a constant one',
            )
        ],
        deviation=0.6,
    ),
    'losses': Claim(
        'What each loss does for DynamicViT',
        'DynamicViT: the ratio loss and both distillations help (its '
        'supplement).',
        [
            'dynamicvit_2',
            *(f'dynamicvit_{name}' for name in WITHOUT),
        ],
        [
            Check(
                'dynamicvit_2',
                f'dynamicvit_without_{name}',
                f'all losses are better than without {what}',
            )
            for name, what in (
                ('ratio', 'the ratio loss'),
                ('kl', "the teacher's logits"),
                ('token', "the teacher's tokens"),
                ('teacher', 'a teacher'),
            )
        ],
        deviation=0.4,
    ),
    'hvt': Claim(
        "HVT's choices",
        'HVT: the mean of the tokens is better than a class token (table 2), '
        'max pooling better than average pooling and a convolution (table '
        '3), and on small pictures more stages are no worse (table 4). From '
        'scratch, for a short time.',
        ['vit_short', *HVT],
        [
            Check(
                'hvt_stages_0',
                'vit_short',
                'the mean beats the class token (table 2)',
            ),
            Check(
                'hvt_stages_4',
                'hvt_average',
                'max pooling beats average pooling (table 3)',
            ),
            Check(
                'hvt_stages_4',
                'hvt_convolution',
                'max pooling beats a convolution (table 3)',
            ),
            Check(
                'hvt_stages_1',
                'hvt_stages_0',
                'one stage loses no more than a point (table 4)',
                margin=1.0,
            ),
            Check(
                'hvt_stages_4',
                'hvt_stages_0',
                'four stages lose no more than a point (table 4)',
                margin=1.0,
            ),
        ],
        deviation=0.6,
    ),
    'distillation': Claim(
        'Distillation of all tokens, of the class token, of none',
        'The distillation of EViT: a student of all tokens learns a task '
        'better than one of the class token alone, and both better than one '
        'from scratch, with its trunk frozen or fine-tuned. The teacher is '
        'the dense ViT of "All thinned ViTs on one trunk"; 10,000 pictures '
        'without labels, 5000 with.',
        [
            f'student_{share}_{lesson}_{school}'
            for share in EVIT
            for lesson in (*LESSONS, 'none')
            for school in SCHOOLS
        ],
        [
            Check(
                f'student_{share}_{better}_{school}',
                f'student_{share}_{than}_{school}',
                f'{says} (keep {keep}, {school})',
            )
            for share, keep in EVIT.items()
            for school in SCHOOLS
            for better, than, says in (
                ('all', 'class', 'all tokens beat the class token'),
                ('class', 'none', 'the class token beats no distillation'),
            )
        ],
        deviation=0.6,
    ),
}
