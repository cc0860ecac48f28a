"""How DynamicViT is trained: a kept share, and a dense teacher."""

import copy

import torch.nn.functional as F
from mmengine.runner import CheckpointLoader
from mmpretrain.models import ImageClassifier
from torch import Tensor

from clustr_mm.backbones.dynamic_vit import PredictedTokens
from clustr_mm.backbones.lvvit import TokenLabelHead
from clustr_mm.checkpoints.compatibility import shapes
from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from .global_batch import global_count
from .ratio_loss import ratio_losses
from .teacher import Teacher


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
    # The decisions have gradients, their number is to have none.
    stays, teacher_tokens = stays.bool(), teacher_tokens.float()
    # Those that do not count are at no distance. Picking out the others would
    # wait for the device to tell how many there are.
    tokens = tokens.float().where(stays[..., None], teacher_tokens)
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
        stages = getattr(self.backbone, 'reducers', ())
        if not stages or not all(
            isinstance(reducer, PredictedTokens) for reducer in stages
        ):
            raise ValueError(
                "SparseClassifier trains one of ['DynamicViT', "
                f"'DynamicLVViT'], not {backbone.get('type')!r}"
            )
        self.shares = [reducer.keep for reducer in stages]
        self.teacher = None
        if kl_weight or token_weight:
            self.teacher = Teacher(self._dense())

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

    def _dense(self) -> ImageClassifier:
        """The same classifier with all its tokens, which it returns."""
        backbone = copy.deepcopy(self.backbone)
        backbone.place_reducers([])
        backbone.out_type = 'raw'
        return ImageClassifier(backbone, head=copy.deepcopy(self.head))

    def _teach_what_we_know(self) -> None:
        """Give our weights to the teacher, who must not know less."""
        ours, network = self.state_dict(), self.teacher.network
        known = {k: ours[k] for k in network.state_dict()}
        _check_known(known, self.init_cfg['checkpoint'])
        network.load_state_dict(known)

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        """Losses by name, and the share of the tokens that each stage
        keeps."""
        x, trail = self.backbone.run(inputs)
        x, decisions = self.backbone.norm(x), trail.decisions
        # After the last stage, those that stay stand for the whole image.
        cls_token, tokens = x[:, 0], x[:, 1:]
        losses = self.head.loss(self._feats(cls_token), data_samples)
        # In the log, `loss` is the sum of all.
        losses['loss_cls'] = losses.pop('loss')
        losses.update(
            ratio_losses(
                decisions,
                self.shares,
                self.ratio_weight,
                self.ratio_per_image,
            )
        )
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
        x = self.teacher(inputs)[-1]
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
