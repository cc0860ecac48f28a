"""How DynamicViT is trained: a kept share, and a dense teacher."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.runner import CheckpointLoader
from mmpretrain.models import ImageClassifier
from torch import Tensor

from clustr_mm.backbones.lvvit import TokenLabelHead
from clustr_mm.checkpoint_fit import shapes
from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from .global_batch import global_count, global_mean
from .teacher import Teacher

# The trunk of each, with all its tokens.
DENSE = {'DynamicViT': 'ThinViT', 'DynamicLVViT': 'LVViT'}


def ratio_loss(
    decisions: Sequence[Tensor],
    shares: Sequence[float],
    per_image: bool = False,
) -> Tensor:
    """Squared distance of the kept share from its target (eq. 14).

    Args:
        decisions (Sequence[Tensor]): For each stage, which tokens stay (1)
            or leave (0), [B, N].
        shares (Sequence[float]): Target of each stage.
        per_image (bool): Whether every image has to meet the target, or the
            batch of all processes as a whole.
    """
    kept = torch.stack([stays.float().mean(-1) for stays in decisions])
    if not per_image:
        kept = global_mean(kept.mean(-1, keepdim=True))
    if len(shares) != len(kept):
        raise ValueError(f'{len(kept)} stages, but {len(shares)} shares')
    return (kept - kept.new_tensor(shares)[:, None]).square().mean()


def kl_loss(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean divergence from the teacher's distribution; logits [M, K]."""
    return _divergence(logits.float(), teacher_logits.float()) / len(logits)


def _divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    return F.kl_div(
        logits.log_softmax(-1),
        teacher_logits.log_softmax(-1),
        reduction='sum',
        log_target=True,
    )


def token_loss(
    tokens: Tensor, teacher_tokens: Tensor, stays: Tensor, kind: str = 'mse'
) -> Tensor:
    """Distance of the kept tokens from the teacher's (eq. 12).

    Args:
        tokens (Tensor): Tokens [B, N, C].
        teacher_tokens (Tensor): The same of the teacher.
        stays (Tensor): Which of them count, [B, N].
        kind (str): ``'mse'``, or ``'kl'`` of the softmax over channels.
    """
    stays = stays.bool()
    tokens, teacher_tokens = tokens[stays].float(), teacher_tokens[stays]
    teacher_tokens = teacher_tokens.float()
    if kind == 'kl':
        total = _divergence(tokens, teacher_tokens)
    else:
        total = (tokens - teacher_tokens).square().mean(-1).sum()
    return total / global_count(stays)


def _check_known(known: dict[str, Tensor], file: str) -> None:
    """Make sure that none of the teacher's weights stays random."""
    checkpoint = CheckpointLoader.load_checkpoint(file, 'cpu')
    theirs = shapes(checkpoint.get('state_dict', checkpoint))
    random = [
        name
        for name, shape in shapes(known).items()
        # Positions are fitted to another size of pictures.
        if theirs.get(name) != shape
        and not (name in theirs and name.endswith('pos_embed'))
    ]
    if random:
        raise UserError(
            f'{file}, which the teacher starts from, does not have its '
            f'{random[0]} of {shapes(known)[random[0]]}: train the dense '
            'classifier on the same classes first, or learn without a teacher '
            'by kl_weight=0 and token_weight=0'
        )


@MODELS.register_module()
class SparseClassifier(ImageClassifier):
    """An image classifier that learns which tokens it can do without.

    The teacher is the same classifier with all its tokens. It starts from
    the same weights, ``pretrained``, and keeps them.

    Args:
        backbone (dict): A DynamicViT.
        head (dict): The head for the class token, or a
            :class:`TokenLabelHead`, whose logits of the tokens then are what
            is compared with the teacher's.
        ratio_weight (float): Weight of the ratio loss.
        kl_weight (float): Weight of the divergence from the teacher's
            logits.
        token_weight (float): Weight of the distance from its tokens. With
            both 0 there is no teacher.
        token_loss (str): ``'mse'`` or ``'kl'``.
        ratio_per_image (bool): See :func:`ratio_loss`.
        pretrained (str, optional): Checkpoint of the dense classifier, which
            a teacher needs.
        kwargs: More arguments of ``ImageClassifier``.
    """

    def __init__(
        self,
        backbone: dict,
        head: dict,
        ratio_weight: float = 2.0,
        kl_weight: float = 0.5,
        token_weight: float = 0.5,
        token_loss: str = 'mse',
        ratio_per_image: bool = False,
        pretrained: str | None = None,
        **kwargs,
    ):
        if backbone.get('type') not in DENSE:
            raise ValueError(
                f'SparseClassifier trains one of {list(DENSE)}, not '
                f'{backbone.get("type")!r}'
            )
        if token_loss not in ('mse', 'kl'):
            raise ValueError(
                f"token_loss must be 'mse' or 'kl', not {token_loss!r}"
            )
        super().__init__(
            backbone.copy(), head=head.copy(), pretrained=pretrained, **kwargs
        )
        self.ratio_weight = ratio_weight
        self.kl_weight = kl_weight
        self.token_weight = token_weight
        self.token_loss = token_loss
        self.ratio_per_image = ratio_per_image
        self.shares = [reducer.keep for reducer in self.backbone.reducers]
        self.teacher = None
        if kl_weight or token_weight:
            self.teacher = Teacher(
                dict(
                    type='ImageClassifier',
                    backbone=dense(backbone),
                    head=head.copy(),
                )
            )

    def init_weights(self) -> None:
        if self.teacher is not None and self.init_cfg is None:
            raise ValueError(
                'the teacher has no weights: set model.pretrained to a '
                'checkpoint of the dense classifier, or kl_weight and '
                'token_weight to 0'
            )
        super().init_weights()
        if self.teacher is not None:
            self._teach_what_we_know()

    def _teach_what_we_know(self) -> None:
        """Give our weights to the teacher, who must not know less."""
        ours, network = self.state_dict(), self.teacher.network
        known = {k: ours[k] for k in network.state_dict()}
        _check_known(known, self.init_cfg['checkpoint'])
        network.load_state_dict(known)

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        """Losses by name, and the share of the tokens that each stage
        keeps."""
        cls_token, tokens, decisions = self.backbone.forward_train(inputs)
        losses = self.head.loss(self._feats(cls_token), data_samples)
        # In the log, `loss` is the sum of all.
        losses['loss_cls'] = losses.pop('loss')
        losses['loss_ratio'] = self.ratio_weight * ratio_loss(
            decisions, self.shares, self.ratio_per_image
        )
        for stage, stays in enumerate(decisions, 1):
            losses[f'kept_{stage}'] = stays.detach().mean()
        if self.teacher is not None:
            losses.update(
                self._distill(inputs, cls_token, tokens, decisions[-1])
            )
        return losses

    def _distill(
        self, inputs: Tensor, cls_token: Tensor, tokens: Tensor, stays: Tensor
    ) -> dict[str, Tensor]:
        """What tells the class token and those that stay from the
        teacher's."""
        x = self.teacher(inputs, stage='backbone')[-1]
        head, teacher_head = self.head, self.teacher.network.head
        teacher_tokens = x[:, 1:]
        losses = {}
        if self.kl_weight:
            losses['loss_kl'] = self.kl_weight * kl_loss(
                head(self._feats(cls_token)),
                teacher_head(self._feats(x[:, 0])),
            )
        if self.token_weight:
            if isinstance(head, TokenLabelHead):
                tokens = head.token_fc(tokens)
                teacher_tokens = teacher_head.token_fc(teacher_tokens)
            losses['loss_token'] = self.token_weight * token_loss(
                tokens, teacher_tokens, stays, self.token_loss
            )
        return losses

    def _feats(self, cls_token: Tensor) -> tuple[Tensor]:
        """The class token [B, C] as the head expects it."""
        if isinstance(self.head, TokenLabelHead):
            cls_token = cls_token[:, None]
        return (cls_token,)


def dense(backbone: dict) -> dict:
    """Config of the same trunk with all its tokens, which it returns."""
    cfg = {k: v for k, v in backbone.items() if k not in ('keep', 'reduce_at')}
    return {**cfg, 'type': DENSE[backbone['type']], 'out_type': 'raw'}
