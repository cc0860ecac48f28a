import pytest
import torch
from mmengine.registry import init_default_scope

from clustr_mm.backbones.lvvit import DynamicLVViT, LVViT, TokenLabelHead
from clustr_mm.registry import MODELS
from tests.recorded import golden, on_meta, part, rebuild
from tests.tiny_models import build, images

HEAD = 384 * 1000 / 1e9


def test_same_as_published():
    record, img, state_dict = golden('lvvit_dynamic')
    config = record['config']
    model = rebuild(
        DynamicLVViT,
        record,
        state_dict,
        keep=config['token_ratio'],
        reduce_at=config['pruning_loc'],
    )
    head = TokenLabelHead(config['num_classes'], config['embed_dim'])
    head.load_state_dict(part(state_dict, 'head'))
    with torch.no_grad():
        out = head(model(img))
    torch.testing.assert_close(out, record['logits'], rtol=0, atol=1e-5)


def acting(model):
    """The blocks at which reducers act."""
    return [reducer.block for reducer in model.reducers]


def test_trunk():
    small = on_meta(DynamicLVViT)
    assert acting(small) == [4, 8, 12]
    medium = on_meta(DynamicLVViT, 'lvvit-medium')
    assert acting(medium) == [5, 10, 15]
    assert medium.embed_dims == 512
    for model in small, medium:
        hidden = model.blocks[0].mlp.fc1.out_features
        assert hidden == 3 * model.embed_dims


def test_trunk_is_not_shared_by_mistake():
    """Every keyword of both parents arrives."""
    model = build('dynamic-lvvit', keep=0.6, residual_scale=0.25)
    assert model.blocks[0].residual_scale == 0.25
    assert model.blocks[0].norm1.eps == 1e-5
    assert model.blocks[0].attn.qkv.bias is None
    assert model.reducers[0].keep == 0.6
    assert len(model.patch_embed.stem) == 3


def test_odd_patches_have_no_stem():
    with pytest.raises(ValueError, match='must be even'):
        LVViT(patch_size=7)


class TestTokenLabelHead:
    feats = (torch.randn(2, 10, 48),)

    def head(self):
        return MODELS.build(
            {'type': 'TokenLabelHead', 'num_classes': 5, 'in_channels': 48}
        )

    def test_each_class_counts_where_it_is_most_likely(self):
        head = self.head()
        logits, token_logits = head.dense(self.feats)
        assert token_logits.shape == (2, 9, 5)
        expected = logits + 0.5 * token_logits.max(1).values
        assert torch.equal(head(self.feats), expected)

    def test_class_token_alone(self):
        head = self.head()
        alone = (self.feats[0][:, :1],)
        assert torch.equal(head(alone), head.dense(self.feats)[0])

    def test_in_an_image_classifier(self):
        """As mmpretrain builds, trains and tests it."""
        pytest.importorskip('mmpretrain')
        init_default_scope('mmpretrain')
        from mmpretrain.models import ImageClassifier
        from mmpretrain.structures import DataSample

        backbone = {'type': 'DynamicLVViT', 'keep': 0.5}
        backbone.update(arch=build('lvvit').arch_settings, img_size=32)
        model = ImageClassifier(
            backbone={**backbone, 'patch_size': 4},
            head={'type': 'TokenLabelHead', 'num_classes': 5}
            | {'in_channels': 48},
        )
        samples = [DataSample().set_gt_label(i) for i in (1, 3)]
        loss = model(images(), samples, mode='loss')['loss']
        loss.backward()
        mixed = [s.set_gt_score(torch.eye(5)[s.gt_label[0]]) for s in samples]
        model.eval()
        hard = model(images(), samples, mode='loss')['loss']
        soft = model(images(), mixed, mode='loss')['loss']
        torch.testing.assert_close(hard, soft)
        for sample in model(images(), samples, mode='predict'):
            assert sample.pred_score.sum().item() == pytest.approx(1)
            assert sample.pred_label.item() == sample.pred_score.argmax()
