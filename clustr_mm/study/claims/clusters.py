"""ClusTR: clusters as keys and values, and what its dials cost."""

from .parts import Arm, Check, Claim, backbone, epochs

# What the first is not: spatial reduction is the baseline of table 6.
KINDS = {
    'clusters_two_scales': {},
    'clusters_one_scale': dict(reduction=[64, 16, 4, 1]),
    'clusters_joint': dict(joint=True),
    'clusters_normalised': dict(merge_norm=True),
    'clusters_nearest': dict(assign='nearest'),
    # Not the paper's: see docs/study/clusters.md.
    'clusters_carry': dict(reduction=[64, 16, 4, 1], carry=True),
    # All tokens alike attend to the mean of all: what there is to lose.
    'one_cluster': dict(reduction=[256, 64, 16, 4]),
    'spatial_reduction': dict(attention='sra'),
    # Half of the 4 keys that are left of 64 x 64 pixels in each stage, as the
    # paper of k-NN attention has it.
    'spatial_reduction_knn': dict(attention='sra_knn', num_keys=2),
}
# Of these, what is compared in segmentation, at 128 x 128.
DENSE = {
    name: KINDS[name]
    for name in (
        'clusters_two_scales',
        'clusters_one_scale',
        'spatial_reduction',
    )
} | {'one_cluster': dict(reduction=[1024, 256, 64, 16])}
# At 128 x 128 the first stage has 32 x 32 tokens.
DIALS = {
    'exact': {},
    'reuse': dict(reuse=True),
    'window': dict(window=16),
    'window_reuse': dict(window=16, reuse=True),
}
# In detection, at 128 x 128 and at 400 x 400, and the classifier that each
# starts from.
DETECTORS = {
    name: (DIALS[name], DIALS[name], 'clusters_two_scales')
    for name in ('exact', 'window_reuse')
} | {
    'one_cluster': (
        DENSE['one_cluster'],
        dict(reduction=[100**2, 50**2, 25**2, 13**2]),
        'one_cluster',
    )
}
GROWTHS = {'growth_1': 1.0, 'growth_half': 0.5, 'growth_0': 0.0}
_CIFAR = epochs(5, 12000) | {'val_dataloader.dataset.indices': 2000}
_GARMENTS = epochs(6, 1500) | {'val_dataloader.dataset.indices': 100}
# An evaluation is of all test pictures, and the test is one.
_MASKS = epochs(3, 1500) | {'train_cfg.val_begin': 4}
_CROWNS = {
    'train_cfg.max_epochs': 20,
    'param_scheduler.1.T_max': 20,
    'train_cfg.val_interval': 20,
}


def _from(arm: str) -> dict[str, str]:
    return {'load_from': arm}


# Dense tasks start from what classification has taught, as in practice: the
# dials add no weights.
_EXACT = _from('clusters_two_scales')


def _arms() -> dict[str, Arm]:
    arms = {}
    for name, options in KINDS.items():
        arms[name] = Arm('clustr_cifar10.py', backbone(**options) | _CIFAR)
    for name, options in DENSE.items():
        arms[f'{name}_fpn'] = Arm(
            'fpn_clustr_garments.py',
            backbone(**options) | _GARMENTS,
            _from(name),
        )
    for name, options in DIALS.items():
        options = backbone(**options)
        if options:
            arms[f'{name}_fpn'] = Arm(
                'fpn_clustr_garments.py', options | _GARMENTS, _EXACT
            )
    for name, (small, large, start) in DETECTORS.items():
        arms[f'{name}_masks'] = Arm(
            'mask_rcnn_clustr_garments.py',
            backbone(**small) | _MASKS,
            _from(start),
        )
        # There are few trees: what a detector is comes from the garments.
        arms[f'{name}_boxes'] = Arm(
            'mask_rcnn_clustr_crowns.py',
            backbone(**large) | _CROWNS,
            _from(f'{name}_masks'),
        )
    for name, growth in GROWTHS.items():
        # From what small pictures have taught, where the dial does nothing.
        arms[f'{name}_fpn'] = Arm(
            'fpn_clustr_large_garments.py',
            backbone(growth=growth)
            | epochs(4, 400)
            | {'val_dataloader.dataset.indices': 100},
            _from('window_reuse_fpn'),
        )
        if growth < 1:
            arms[f'{name}_boxes'] = Arm(
                'mask_rcnn_clustr_crowns.py',
                backbone(growth=growth, **DIALS['window_reuse']) | _CROWNS,
                _from('window_reuse_masks'),
            )
    return arms


def _several(arm: str, suffix: str) -> Check:
    return Check(
        arm,
        f'one_cluster{suffix}',
        'several clusters beat a single one (or there is nothing to tell)',
    )


def _tables(suffix: str) -> list[Check]:
    return [
        Check(
            f'clusters_one_scale{suffix}',
            f'spatial_reduction{suffix}',
            'clusters beat spatial reduction (table 6)',
        ),
        Check(
            f'clusters_two_scales{suffix}',
            f'clusters_one_scale{suffix}',
            'two scales beat one (table 7)',
        ),
        _several(f'clusters_one_scale{suffix}', suffix),
    ]


def _readings() -> list[Check]:
    return [
        Check(
            'clusters_one_scale',
            'spatial_reduction_knn',
            'clusters beat spatial reduction with k-NN attention (table 6)',
        ),
        Check(
            'clusters_two_scales',
            'clusters_joint',
            'a softmax for each scale (equation 8) loses no more than half a '
            'point against one for all (equation 7)',
            margin=0.5,
        ),
        Check(
            'clusters_two_scales',
            'clusters_normalised',
            'merged tokens as they are lose no more than half a point '
            'against normalised ones',
            margin=0.5,
        ),
        Check(
            'clusters_two_scales',
            'clusters_nearest',
            'the cluster of the nearest denser token loses no more than half '
            'a point against that of the nearest centre',
            margin=0.5,
        ),
        Check(
            'clusters_carry',
            'clusters_one_scale',
            'clusters that count for as many tokens as they have beat those '
            'that do not (one scale)',
        ),
        Check(
            'clusters_carry',
            'spatial_reduction',
            'clusters that count beat spatial reduction',
        ),
    ]


def _within(names: list[str], exact: str, than: str) -> list[Check]:
    return [
        Check(
            name,
            exact,
            f'{name} stays within a point of {than}',
            margin=1.0,
        )
        for name in names
    ]


ARMS = _arms()
CLAIMS = {
    'clusters': Claim(
        'Clusters as keys and values, in classification',
        'ClusTR: clusters beat spatial reduction and k-NN attention (table '
        '6), and several scales beat one (table 7). On 256 tokens; the '
        'paper has 3136. The readings that the paper leaves open, equation '
        '8, merged tokens that are not normalised and the cluster of the '
        'nearest denser token, lose nothing against the others.',
        list(KINDS),
        [*_tables(''), *_readings()],
        deviation=0.5,
    ),
    'clusters_dense': Claim(
        'Clusters as keys and values, in segmentation',
        'ClusTR: the same of spatial reduction and of several scales in '
        'segmentation, on 1024 tokens, each started from its own classifier.',
        [f'{name}_fpn' for name in DENSE],
        _tables('_fpn'),
        deviation=0.8,
    ),
    'dials': Claim(
        'What the dials of ClusTR cost in segmentation',
        'This project: the detection configs use windows and cluster once a '
        'stage. They should lose no more than a point by it.',
        [
            'clusters_two_scales_fpn',
            'reuse_fpn',
            'window_fpn',
            'window_reuse_fpn',
            'one_cluster_fpn',
        ],
        [
            *_within(
                ['reuse_fpn', 'window_fpn', 'window_reuse_fpn'],
                'clusters_two_scales_fpn',
                'exact clustering',
            ),
            _several('clusters_two_scales_fpn', '_fpn'),
        ],
        deviation=0.8,
    ),
    'growth': Claim(
        'Fewer clusters in large pictures, in segmentation',
        'This project: growth below 1 should lose no more than a point. '
        'Pictures of 384 x 384, with windows and clusters once a stage.',
        [f'{name}_fpn' for name in GROWTHS],
        _within(
            ['growth_half_fpn', 'growth_0_fpn'], 'growth_1_fpn', 'growth 1'
        ),
        deviation=0.8,
    ),
    'dials_masks': Claim(
        'What the dials of ClusTR cost in Mask R-CNN',
        'This project: the detection configs use windows and cluster once a '
        'stage. They should lose no more than a point by it. Garments on '
        'photographs of 128 x 128.',
        [f'{name}_masks' for name in DETECTORS],
        [
            *_within(
                ['window_reuse_masks'], 'exact_masks', 'exact clustering'
            ),
            _several('exact_masks', '_masks'),
        ],
        deviation=0.8,
    ),
    'dials_boxes': Claim(
        'What the dials of ClusTR cost for tree crowns',
        'This project: the same, and growth below 1, for small and crowded '
        'objects: tree crowns in tiles of 400 x 400, by detectors of '
        'garments. Growth comes with windows and clusters once a stage.',
        [
            *(f'{name}_boxes' for name in DETECTORS),
            'growth_half_boxes',
            'growth_0_boxes',
        ],
        [
            *_within(
                ['window_reuse_boxes'], 'exact_boxes', 'exact clustering'
            ),
            *_within(
                ['growth_half_boxes', 'growth_0_boxes'],
                'window_reuse_boxes',
                'growth 1',
            ),
            _several('exact_boxes', '_boxes'),
        ],
        deviation=2.0,
    ),
}
