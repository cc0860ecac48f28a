"""Task-agnostic distillation: tokens become those of a frozen teacher.

Without labels, and whether or not the student thins its tokens: each of
those it retains is compared with the teacher's token at the same place.
"""

import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from clustr_mm.registry import MODELS
from clustr_mm.tokens.trail import Trail
from .global_batch import global_count
from .teacher import Teacher


@MODELS.register_module()
class TokenDistiller(BaseModel):
    """A backbone that learns to see what a larger one sees.

    A linear layer, needed in this training only, takes each kind of token to
    the teacher's channels. The loss is 1 - the cosine of the angle to the
    teacher's token, in the mean over tokens.

    Args:
        backbone (dict): The student, a :class:`ThinViT` with a class token.
        teacher (dict): A backbone that returns, like one of ours or of
            MMPretrain with ``out_type='raw'``, its class token and all its
            patch tokens [B, 1 + N, C]; with an ``init_cfg`` that says where
            its weights are. A patch must cover the same part of the image
            as the student's.
        teacher_dims (int): Channels of the teacher.
        patch_weight (float): Weight of the loss of the retained patch
            tokens, beside that of the class token; 0 to distil the class
            token alone.
        data_preprocessor (dict, optional): Preprocessing of images.
        init_cfg (dict, optional): Initialisation.
    """

    def __init__(
        self,
        backbone: dict,
        teacher: dict,
        teacher_dims: int,
        patch_weight: float = 1.0,
        data_preprocessor: dict | None = None,
        init_cfg: dict | list | None = None,
    ):
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build({**backbone, 'out_type': 'raw'})
        if self.backbone.num_extra_tokens != 1:
            raise ValueError('the student needs a class token')
        self.teacher = Teacher(teacher)
        self.patch_weight = patch_weight
        dims = self.backbone.embed_dims
        self.project_class = nn.Linear(dims, teacher_dims)
        if patch_weight:
            self.project_patch = nn.Linear(dims, teacher_dims)

    def forward(
        self,
        inputs: Tensor,
        data_samples: list | None = None,
        mode: str = 'tensor',
    ) -> dict[str, Tensor] | tuple[Tensor, ...]:
        """Losses by name (``'loss'``), or the tokens (``'tensor'``)."""
        if mode == 'loss':
            return self.loss(inputs)
        if mode == 'tensor':
            return self.backbone(inputs)
        raise ValueError(
            f'a TokenDistiller has no labels to {mode!r}: fine-tune its '
            'backbone first'
        )

    def loss(self, inputs: Tensor) -> dict[str, Tensor]:
        """Losses, and the cosines that they are made of."""
        cosines = self.similarity(inputs)
        losses = {'loss_class': 1 - cosines['cosine_class']}
        if self.patch_weight:
            patch = 1 - cosines['cosine_patch']
            losses['loss_patch'] = self.patch_weight * patch
        losses.update({k: v.detach() for k, v in cosines.items()})
        return losses

    def similarity(self, inputs: Tensor) -> dict[str, Tensor]:
        """Mean cosine of student's and teacher's tokens, for each kind."""
        outs, trail = self.backbone.trace(inputs)
        x, target = outs[-1], self.teacher(inputs)[-1]
        if target.shape[1] != trail.num_patches + 1:
            raise ValueError(
                f'the student sees {trail.num_patches} patches and a class '
                f'token, the teacher {target.shape[1]} tokens: give them the '
                'same patch size, and the teacher no other extra tokens'
            )
        ours = self.project_class(x[:, 0])
        cosines = {'cosine_class': _cosine(ours, target[:, 0]).mean()}
        if self.patch_weight:
            x = x[:, 1:]
            stays = retained(trail, x)
            ours = self.project_patch(trail.spread(trail.bank(x)))
            cosine = _cosine(ours, target[:, 1:])
            cosines['cosine_patch'] = cosine.where(
                stays, 0
            ).sum() / global_count(stays)
        return cosines


def retained(trail: Trail, x: Tensor) -> Tensor:
    """Which patches still have a token of their own in ``x`` [B, N, C]:
    [B, h * w].

    Those that left have none, and those that were fused share one.
    """
    batch, length = x.shape[:2]
    owner = trail.owners(batch, x.device)
    if not length:
        return owner < 0
    alone = trail.sizes(x) == 1
    return (owner < length) & alone.gather(1, owner.clamp(max=length - 1))


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return F.cosine_similarity(x.float(), y.float(), dim=-1)
