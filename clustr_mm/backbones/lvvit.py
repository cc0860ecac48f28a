"""LV-ViT: a plain ViT with a convolutional stem, trained on token labels."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from clustr_mm.arguments import check_types
from clustr_mm.registry import MODELS
from .dynamic_vit import predicted_tokens
from .vit import INIT_LINEAR, ThinViT, vit_arch


@MODELS.register_module()
class LVViT(ThinViT):
    """LV-ViT, a trunk whose residual branches are halved.

    Args:
        arch (str | dict): See :class:`ThinViT`.
        stem_channels (int): Channels of the convolutional stem.
        out_type (str): See :class:`ThinViT`; :class:`TokenLabelHead` needs
            ``'raw'``.
        kwargs: More arguments of :class:`ThinViT`.
    """

    arch_zoo = {
        'lvvit-small': vit_arch(384, 16, 6, mlp_ratio=3),
        'lvvit-medium': vit_arch(512, 20, 8, mlp_ratio=3),
    }

    @check_types
    def __init__(
        self,
        arch: str | dict = 'lvvit-small',
        stem_channels: int = 64,
        out_type: str = 'raw',
        qkv_bias: bool = False,
        residual_scale: float = 0.5,
        norm_cfg: dict | None = None,
        **kwargs,
    ):
        super().__init__(
            arch,
            out_type=out_type,
            qkv_bias=qkv_bias,
            residual_scale=residual_scale,
            norm_cfg=norm_cfg or {'type': 'LN', 'eps': 1e-5},
            patch_cfg={'stem_channels': stem_channels},
            **kwargs,
        )


@MODELS.register_module()
class DynamicLVViT(LVViT):
    """DynamicViT on the trunk of LV-ViT.

    Args:
        arch (str | dict): See :class:`ThinViT`.
        keep (float | Sequence[float]): See :class:`DynamicViT`.
        reduce_at (Sequence[int], optional): See :class:`DynamicViT`.
        kwargs: More arguments of :class:`LVViT`.
    """

    @check_types
    def __init__(
        self,
        arch: str | dict = 'lvvit-small',
        keep: float | Sequence[float] = 0.7,
        reduce_at: Sequence[int] | None = None,
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        own = predicted_tokens(self, keep, reduce_at)
        self.place_reducers([*own, *self.reducers])


@MODELS.register_module()
class TokenLabelHead(BaseModule):
    """Classify by the class token and by the most confident patch tokens.

    Made for ``ImageClassifier`` and a backbone with ``out_type='raw'``, whose
    tokens the head gets.

    Args:
        num_classes (int): Number of classes.
        in_channels (int): Number of channels.
        token_weight (float): Weight of the patch tokens in the prediction.
        init_cfg (dict, optional): Initialisation.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        token_weight: float = 0.5,
        init_cfg: dict | list | None = None,
    ):
        super().__init__(init_cfg or dict(INIT_LINEAR))
        self.token_weight = token_weight
        self.fc = nn.Linear(in_channels, num_classes)
        self.token_fc = nn.Linear(in_channels, num_classes)

    def pre_logits(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Tokens [B, N, C] of the last output."""
        return feats[-1]

    def dense(self, feats: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Logits of the class token [B, K] and of the others [B, N, K]."""
        x = self.pre_logits(feats)
        return self.fc(x[:, 0]), self.token_fc(x[:, 1:])

    def forward(self, feats: tuple[Tensor, ...]) -> Tensor:
        """Logits [B, K]: each class where it is most likely."""
        logits, token_logits = self.dense(feats)
        if not token_logits.shape[1]:
            return logits
        return logits + self.token_weight * token_logits.amax(1)

    def loss(
        self, feats: tuple[Tensor, ...], data_samples: Sequence, **kwargs
    ) -> dict[str, Tensor]:
        """Cross entropy with the samples' labels or mixed label scores."""
        if all('gt_score' in sample for sample in data_samples):
            target = torch.stack([s.gt_score for s in data_samples])
        else:
            target = torch.cat([s.gt_label for s in data_samples])
        return {'loss': F.cross_entropy(self(feats), target)}

    def predict(
        self, feats: tuple[Tensor, ...], data_samples: Sequence
    ) -> Sequence:
        """Write scores and labels into the samples."""
        scores = self(feats).softmax(1)
        for sample, score in zip(data_samples, scores, strict=True):
            sample.set_pred_score(score)
            sample.set_pred_label(score.argmax(0, keepdim=True))
        return data_samples
