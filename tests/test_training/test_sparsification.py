"""DynamicViT's losses against the published ones, and its training."""

import copy

import pytest
import torch
from mmengine.model import ExponentialMovingAverage

from clustr_mm.errors import UserError
from clustr_mm.training.ratio_loss import ratio_loss
from tests.runs import ROOT
from tests.test_training.small import classifier, images, samples
from tests.tiny_models import TRAINED

pytest.importorskip('mmpretrain')

from clustr_mm.training.sparsification import (
    SparseClassifier,
    kl_loss,
    token_loss,
)

GOLDEN = ROOT / 'tests/data/golden/dynamicvit_losses.pt'


@pytest.fixture(scope='module')
def golden():
    return torch.load(GOLDEN, weights_only=True)


@pytest.mark.parametrize('mse', [True, False])
@pytest.mark.parametrize('over_batch', [True, False])
def test_losses_are_the_published_ones(golden, mse, over_batch):
    terms = golden['losses'][f'mse_token={mse},ratio_over_batch={over_batch}']
    cls = torch.nn.functional.cross_entropy(golden['pred'], golden['labels'])
    ratio = ratio_loss(
        golden['stage_masks'], golden['keep_ratio'], per_image=not over_batch
    )
    kl = kl_loss(golden['pred'], golden['teacher_logits'])
    token = token_loss(
        golden['tokens'],
        golden['teacher_tokens'],
        golden['final_mask'],
        'mse' if mse else 'kl',
    )
    for name, ours in dict(
        cls=cls,
        ratio_sum=3 * ratio,
        cls_kl=kl,
        token=token,
        total=cls + 2 * ratio + 0.5 * kl + 0.5 * token,
    ).items():
        torch.testing.assert_close(
            ours.item(), float(terms[name]), rtol=1e-5, atol=1e-6
        )


def sparse(tmp_path, keep=(0.7, 0.5), **kwargs):
    """A small classifier and its teacher, which start from the same file."""
    dense = classifier('ThinViT')
    dense.init_weights()
    torch.save(dense.state_dict(), tmp_path / 'dense.pth')
    model = classifier(
        'DynamicViT',
        type='SparseClassifier',
        backbone=dict(keep=keep),
        pretrained=str(tmp_path / 'dense.pth'),
        **kwargs,
    )
    model.init_weights()
    return model, dense


def test_teacher_has_the_dense_weights(tmp_path):
    model, dense = sparse(tmp_path)
    assert isinstance(model, SparseClassifier)
    dense.eval()
    inputs = images(2)
    feats = model.train().teacher(inputs)
    torch.testing.assert_close(
        model.teacher.network.head((feats[-1][:, 0],)), dense(inputs)
    )
    # ... and the student the same trunk.
    ours = model.state_dict()
    for name, weight in dense.state_dict().items():
        torch.testing.assert_close(ours[name], weight)


def test_teacher_of_other_classes(tmp_path):
    dense = classifier('ThinViT')
    file = tmp_path / 'dense.pth'
    head = {'head.fc.weight': torch.zeros(7, 32)}
    torch.save({**dense.state_dict(), **head}, file)
    model = classifier(
        'DynamicViT', type='SparseClassifier', pretrained=str(file)
    )
    with pytest.raises(UserError, match=r'does not have its head.*fc\.weight'):
        model.init_weights()


def test_teacher_of_another_size_of_pictures(tmp_path):
    """Positions are fitted to the size, but cannot be made up."""
    dense = classifier('ThinViT', backbone=dict(img_size=64))
    file, weights = tmp_path / 'dense.pth', dense.state_dict()
    model = classifier(
        'DynamicViT', type='SparseClassifier', pretrained=str(file)
    )
    torch.save(weights, file)
    model.init_weights()
    del weights['backbone.pos_embed']
    torch.save(weights, file)
    with pytest.raises(UserError, match=r'does not have its .*pos_embed'):
        model.init_weights()


def test_teacher_is_nobodys_business(tmp_path):
    model, _ = sparse(tmp_path)
    names = [name for name, _ in model.named_parameters()]
    assert names
    assert not any('teacher' in name for name in names)
    assert not any('teacher' in name for name in model.state_dict())
    average = ExponentialMovingAverage(model)
    assert average.module.teacher is model.teacher
    # But it goes where the model goes.
    model.double()
    network = model.teacher.network
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    assert not network.training


def test_teacher_needs_weights():
    model = classifier('DynamicViT', type='SparseClassifier')
    with pytest.raises(ValueError, match='set model.pretrained'):
        model.init_weights()


@pytest.mark.parametrize('token_loss', ['mse', 'kl'])
@pytest.mark.parametrize('backbone', ['DynamicViT', 'DynamicLVViT'])
def test_every_parameter_learns(backbone, token_loss):
    """None may be idle in a distributed run."""
    head = {}
    if backbone == 'DynamicLVViT':
        head = dict(type='TokenLabelHead', _delete_=True)
    model = classifier(
        backbone, type='SparseClassifier', token_loss=token_loss, head=head
    )
    losses = model.loss(images(2), samples(2))
    assert {'loss_cls', 'loss_ratio', 'loss_kl', 'loss_token'} < set(losses)
    total, _ = model.parse_losses(losses)
    total.backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None]
    assert not idle
    assert all(p.grad is None for p in model.teacher.network.parameters())
    # The predictors above all.
    for reducer in model.backbone.reducers:
        assert reducer.predictor.features[1].weight.grad.abs().sum() > 0


def test_default_weights_are_those_of_the_paper():
    """Supplement, section B: 2 for the ratio, 0.5 for each distillation."""

    def losses(**weights):
        torch.manual_seed(0)
        model = classifier('DynamicViT', type='SparseClassifier', **weights)
        return model.loss(images(2), samples(2))

    found = losses()
    plain = losses(ratio_weight=1, kl_weight=1, token_weight=1)
    for name, weight in dict(ratio=2, kl=0.5, token=0.5, cls=1).items():
        term = plain[f'loss_{name}']
        assert term > 0
        torch.testing.assert_close(found[f'loss_{name}'], weight * term)


def test_without_distillation_there_is_no_teacher():
    model = classifier(
        'DynamicViT', type='SparseClassifier', kl_weight=0, token_weight=0
    )
    assert model.teacher is None
    model.init_weights()
    losses = model.loss(images(2), samples(2))
    assert sorted(k for k in losses if 'loss' in k) == [
        'loss_cls',
        'loss_ratio',
    ]


@pytest.mark.parametrize('kind', ['mse', 'kl'])
def test_token_loss_leaves_decisions_alone(kind):
    """Eq. 12 is about the tokens: how many are kept is not its concern."""
    tokens = torch.rand(2, 4, 8, requires_grad=True)
    stays = torch.tensor([[1.0, 0, 1, 0], [1, 1, 1, 0]], requires_grad=True)
    loss = token_loss(tokens, torch.rand(2, 4, 8), stays, kind)
    grad, none = torch.autograd.grad(loss, [tokens, stays], allow_unused=True)
    assert none is None or not none.any()
    assert (grad.abs().sum(-1) > 0).equal(stays > 0)


def test_token_loss_of_nothing_kept():
    tokens = torch.rand(2, 4, 8, requires_grad=True)
    loss = token_loss(tokens, torch.rand(2, 4, 8), torch.zeros(2, 4))
    loss.backward()
    assert loss == 0
    assert tokens.grad.abs().sum() == 0


@pytest.mark.parametrize('kind', ['mse', 'kl'])
def test_losses_do_not_wait_for_the_device(kind):
    """On one that computes nothing: no shape depends on what is kept."""
    tokens, teacher = torch.empty(2, 2, 4, 8, device='meta')
    stays = torch.empty(3, 2, 4, device='meta')
    assert token_loss(tokens, teacher, stays[0], kind).shape == ()
    assert ratio_loss(list(stays), (0.7, 0.5, 0.3)).shape == ()
    assert kl_loss(tokens[0], teacher[0]).shape == ()


@pytest.mark.parametrize('keep', [(0.7, 0.49), (0.9, 0.81)])
def test_ratio_loss_pulls_the_kept_share_to_its_target(tmp_path, keep):
    """As recorded in training, the labels' loss pulling too."""
    model, _ = sparse(tmp_path, keep=keep)
    model.train()
    predictors, trunk = [], []
    for name, param in model.named_parameters():
        (predictors if 'predictor' in name else trunk).append(param)
    optimizer = torch.optim.AdamW(
        [dict(params=trunk, lr=3e-5), dict(params=predictors, lr=3e-3)]
    )
    inputs, labels = images(64), samples(64)
    kept = []
    for _ in range(120):
        losses = model.loss(inputs, labels)
        kept.append([float(losses[f'kept_{stage}']) for stage in (1, 2)])
        optimizer.zero_grad()
        model.parse_losses(losses)[0].backward()
        optimizer.step()
    before, after = kept[0], torch.tensor(kept[-15:]).mean(0)
    assert max(abs(k - b) for k, b in zip(keep, before)) > 0.1
    torch.testing.assert_close(after, torch.tensor(keep), atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(token_loss='l1'), "'mse' or 'kl'"),
        (dict(backbone=dict(type='ThinViT')), 'trains one of'),
        (
            dict(backbone=dict(reducers=[dict(type='TokenPool', block=3)])),
            'trains one of',
        ),
    ],
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        classifier('DynamicViT', type='SparseClassifier', **change)


def test_bf16_losses_are_finite():
    model = classifier('DynamicViT', type='SparseClassifier')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        losses = model.loss(images(2), samples(2))
    total, _ = model.parse_losses(losses)
    total.backward()
    assert total.isfinite()
    assert losses['loss_kl'].dtype == torch.float32


def test_configs_are_not_changed():
    cfg = dict(TRAINED, type='DynamicViT')
    before = copy.deepcopy(cfg)
    classifier('DynamicViT', type='SparseClassifier', backbone=cfg)
    assert cfg == before


def test_image_that_happens_to_keep_no_token():
    model = classifier('DynamicViT', type='SparseClassifier')
    for reducer in model.backbone.reducers:
        torch.nn.init.zeros_(reducer.predictor.score[4].weight)
        reducer.predictor.score[4].bias.data = torch.tensor([-50.0, 50.0])
    losses = model.loss(images(2), samples(2))
    assert losses['kept_1'] == 0
    total, _ = model.parse_losses(losses)
    total.backward()
    assert total.isfinite()
    for name, param in model.named_parameters():
        assert param.grad.isfinite().all(), name
