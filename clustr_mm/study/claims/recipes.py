"""Trainings on CIFAR-10 that the arms of several claims share."""

from .parts import Arm, backbone, epochs

# The trained ViT that others start from.
TRUNK = Arm('vit_cifar10.py', epochs(3))
FROM_TRUNK = {'load_from': 'vit'}
# One that attends sharply from the first step, for rules that choose by
# attention: see docs/study/thinning.md.
SHARP = backbone(qk_norm='learned')
SHARP_TRUNK = Arm('vit_cifar10.py', epochs(3) | SHARP)
FROM_SHARP_TRUNK = {'load_from': 'vit_sharp'}
# Between trainings a look at a part of the test pictures is enough.
_LOOK = {'val_dataloader.dataset.indices': 2000}
FINE_TUNED = {
    **epochs(1, 15000),
    **_LOOK,
    'param_scheduler.0.end': 0.1,
    'optim_wrapper.optimizer.lr': 2e-4,
}
# From scratch, for claims that need many of them.
SHORT = epochs(5, 10000) | _LOOK
