"""Runs whose numbers go bad, in all toolboxes."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import build_optim_wrapper

from clustr_mm.errors import UserError
from clustr_mm.registry import HOOKS
from clustr_mm.runs import bad_loss
from clustr_mm.runs.bad_loss import StopOnBadLoss, _bad, _bad_among, _Watch
from tests import samples
from tests.runs import ROOT, TOOLS, free_port, run, run_tool
from tests.small_training import write
from tests.test_configs import build
from tests.test_launches import operators
from tests.test_training.small import Pictures, classifier, runner

pytest.importorskip('mmpretrain')


@pytest.fixture(params=['cpu', 'accelerator'])
def steps(request, monkeypatch):
    """The optimizer's options: those of a fused one, where what is on the
    device may not be looked at before the next iteration."""
    if request.param == 'cpu':
        return {}
    monkeypatch.setattr(bad_loss, 'may_look', lambda x: False)
    return fused()


def fused():
    try:
        torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], fused=True)
    except RuntimeError:
        pytest.skip('before torch 2.4 nothing is fused on a CPU')
    return dict(fused=True)


class NamedPictures(Pictures):
    def __getitem__(self, i):
        item = super().__getitem__(i)
        item['data_samples'].set_metainfo(dict(img_path=f'picture_{i}.jpg'))
        return item


class Spoil(Hook):
    """Make pictures of certain iterations NaN."""

    def __init__(self, *iterations):
        self.iterations = iterations

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter in self.iterations:
            shape = data_batch['inputs'].shape
            data_batch['inputs'] = torch.full(shape, float('nan'))


def spoilt_run(tmp_path, *iterations, model=None, steps=(), **kwargs):
    return runner(
        model or classifier('ThinViT'),
        tmp_path,
        optim_wrapper=dict(
            optimizer=dict(type='AdamW', lr=1e-3, **dict(steps))
        ),
        hooks=[Spoil(*iterations), dict(type='StopOnBadLoss')],
        **kwargs,
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            dataset=NamedPictures(),
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='default_collate'),
        ),
    )


def test_one_bad_batch_is_left_out(tmp_path, steps):
    run = spoilt_run(tmp_path, 5, steps=steps)
    before = {}

    class Compare(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, batch_idx, **kwargs):
            weights = [p.clone() for p in runner.model.parameters()]
            same = all(map(torch.equal, weights, before.get('weights', [])))
            if before:
                assert same == (runner.iter == 5)
            before['weights'] = weights

    run.register_hook(Compare())
    run.train()
    assert run.iter == 16
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_bad_batches_in_a_row_end_the_run(tmp_path, steps):
    run = spoilt_run(tmp_path, 5, 6, 9, 10, 11, steps=steps)
    with pytest.raises(UserError) as error:
        run.train()
    message = str(error.value)
    assert run.iter == 11
    assert (
        '3 bad iterations in a row. The last bad one was iteration 12'
        in message
    )
    assert 'picture_6.jpg, picture_7.jpg' in message
    assert 'not finite in data_preprocessor nan' in message
    assert '\n' not in message
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_the_last_iteration_is_looked_at(tmp_path, steps):
    run, said = spoilt_run(tmp_path, 15, steps=steps), []
    run.logger.warning = said.append
    run.train()
    (warning,) = (text for text in said if 'No step was taken' in text)
    assert 'at iteration 16, whose loss was NaN' in warning


def test_a_loss_scaler_leaves_out_its_own_steps(monkeypatch):
    """Which the hook does not count, as finding a scale takes some."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], **fused())
    run = SimpleNamespace(
        model=None, optim_wrapper=SimpleNamespace(optimizer=optimizer), iter=0
    )
    hook = StopOnBadLoss(patience=2)
    hook.before_train(run)
    for run.iter in range(3):
        weight.grad = torch.tensor([torch.inf, 1.0])
        optimizer.grad_scale = None
        optimizer.found_inf = torch.ones(())
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        hook.after_train_iter(run, run.iter, {}, dict(loss=torch.ones(())))
    assert weight.tolist() == [1, 1]
    hook.after_train(run)


def test_an_accelerator_is_asked_little_and_not_waited_for(monkeypatch):
    """However many parameters there are: what is measured is a run of the
    hook around a step of nothing."""
    monkeypatch.setattr(bad_loss, 'may_look', lambda x: False)
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(200)]
    optimizer = torch.optim.AdamW(params, **fused())
    monkeypatch.setattr(optimizer, 'step', lambda: None)
    run = SimpleNamespace(
        model=None, optim_wrapper=SimpleNamespace(optimizer=optimizer), iter=0
    )
    hook = StopOnBadLoss()
    hook.before_train(run)
    loss = torch.ones(())
    for param in params:
        param.grad = torch.ones(3)

    def iteration():
        optimizer.step()
        hook.after_train_iter(run, run.iter, {}, dict(loss=loss))

    iteration()
    found = operators(iteration)
    assert not found.waits
    assert found.count <= 20


@pytest.mark.parametrize('bad', [torch.nan, torch.inf, -torch.inf])
def test_bad_numbers(bad):
    """No sum or square of large numbers counts as one."""
    large = torch.full((4,), 3e38)
    tensors = [large, torch.zeros(0), -large, torch.zeros(2, 3)]
    assert _bad_among([]) == _bad_among(tensors) == 0
    assert _bad(torch.tensor([1.0, bad])) == 1
    for tensor in tensors[0], tensors[3]:
        tensor.view(-1)[2] = bad
        assert _bad_among(tensors) == 1
        tensor.view(-1)[2] = 0


def test_no_checkpoint_has_a_nan(tmp_path):
    """The last of the second epoch's four iterations spoils the model."""

    class SpoilWeight(Hook):
        def after_train_iter(self, runner, batch_idx, **kwargs):
            if runner.iter == 7:
                runner.model.backbone.cls_token.data.fill_(float('nan'))

    hooks = dict(checkpoint=dict(type='CheckpointHook', interval=1))
    run = spoilt_run(tmp_path, default_hooks=hooks)
    run.register_hook(SpoilWeight())
    with pytest.raises(UserError, match='backbone.cls_token') as error:
        run.train()
    assert 'last bad one' not in str(error.value)
    assert [p.name for p in tmp_path.glob('*.pth')] == ['epoch_1.pth']


def test_spoilt_statistics_end_the_run(tmp_path):
    model = classifier('ThinViT')
    model.backbone.patch_embed.proj = torch.nn.Sequential(
        model.backbone.patch_embed.proj, torch.nn.BatchNorm2d(32)
    )
    run = spoilt_run(tmp_path, 1, model=model)
    with pytest.raises(UserError, match='proj.1.running_mean'):
        run.train()
    assert run.iter == 2


def test_bad_gradients_alone(tmp_path):
    """The square root at 0: a finite loss with infinite gradients."""
    model = classifier('ThinViT')
    loss = model.loss

    def with_root(*args):
        root = (model.backbone.cls_token * 0).sum().sqrt()
        return dict(loss(*args), loss_root=root)

    model.loss = with_root
    with pytest.raises(UserError, match='whose gradients were NaN'):
        spoilt_run(tmp_path, model=model).train()
    assert all(p.isfinite().all() for p in model.parameters())


def test_largest_activations_are_named():
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())
    watch = _Watch(model)
    model(torch.tensor([-3.0, 1.0, 2.0]))
    assert watch.largest() == '0 3, 1 2'
    assert watch.largest(1) == '0 3'


def test_patience():
    with pytest.raises(ValueError, match='at least 2'):
        StopOnBadLoss(patience=1)


def test_exploding_learning_rate(tmp_path):
    """With the tool and a config of ours, whose runtime has the hook."""
    text = run_tool(
        *('train.py', *write(tmp_path), '--cfg-options'),
        *('optim_wrapper.optimizer.lr=1e20', 'train_cfg.max_iters=40'),
        cwd=tmp_path,
        ok=False,
    )
    error = text[text.index('error:') :].strip()
    assert len(error.splitlines()) == 1
    assert re.search(r'was iteration \d+, whose loss was NaN', error)
    assert str(tmp_path / 'data/train') in error
    assert 'Largest activations: ' in error
    assert '--resume' in error
    assert 'Traceback' not in text


@pytest.mark.parametrize(
    ('name', 'size'),
    [
        ('quickstart/evit_shapes.py', (96, 96)),
        ('clustr/fpn_clustr_t_ade20k.py', (64, 64)),
        ('clustr/retinanet_clustr_t_coco.py', (64, 64)),
        ('clustr/pose_clustr_t_wholebody.py', (128, 96)),
    ],
)
def test_models_of_all_toolboxes(name, size, caplog):
    cfg, model = build(name)
    assert cfg.default_hooks.bad_loss.type == 'StopOnBadLoss'
    if cfg.default_scope == 'mmseg':
        model.data_preprocessor.size = size
    first = next(iter(model.backbone.parameters()))
    first.data.fill_(float('inf'))
    optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    run = SimpleNamespace(
        model=model.train(),
        optim_wrapper=optim_wrapper,
        logger=logging.getLogger('test'),
    )
    hook = HOOKS.build(cfg.default_hooks.bad_loss)
    hook.before_train(run)

    def train():
        for run.iter in range(4):
            data = samples.batch(cfg.default_scope, cfg, size)
            for i, sample in enumerate(data['data_samples']):
                sample.set_metainfo(dict(img_path=f'{run.iter}_{i}.jpg'))
            losses = model.train_step(data, optim_wrapper)
            hook.after_train_iter(run, run.iter, data, losses)

    with pytest.raises(UserError) as error:
        train()
    assert run.iter == 2
    assert '2_0.jpg, 2_1.jpg' in str(error.value)
    assert 'first not finite in backbone.' in str(error.value)
    assert '0_0.jpg, 0_1.jpg' in caplog.text


# Pictures are NaN in the second process alone: of a single iteration, then of
# three in a row.
SPOIL_SECOND = """
import sys
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class SpoilSecond(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        rank, iteration = get_rank(), runner.iter + 1
        weights = sum(p.double().sum() for p in runner.model.parameters())
        paths = [s.img_path for s in data_batch['data_samples']]
        seen = ['SEEN', rank, iteration, weights.item(), *paths]
        # In one piece, as the other process writes as well.
        sys.stdout.write(' '.join(map(str, seen)) + '\\n')
        sys.stdout.flush()
        if rank == 1 and iteration in (3, 6, 7, 8):
            data_batch['inputs'] = data_batch['inputs'].float() * float('nan')
"""


def test_two_processes_leave_out_and_end_together(tmp_path):
    config, *options = write(tmp_path)
    (tmp_path / 'spoil_second.py').write_text(SPOIL_SECOND)
    spoilt = tmp_path / 'spoilt.py'
    spoilt.write_text(
        f"_base_ = '{config.name}'\n"
        "custom_imports = dict(imports=['clustr_mm', 'spoil_second'])\n"
        "custom_hooks = [dict(type='SpoilSecond')]\n"
    )
    text = run(
        *(TOOLS / 'dist_train.sh', spoilt, 2, *options),
        *('--cfg-options', 'train_cfg.max_iters=40'),
        cwd=tmp_path,
        ok=False,
        OMP_NUM_THREADS='1',
        PORT=free_port(),
        PYTHONPATH=f'{tmp_path}:{ROOT}',
    )
    seen = {}
    for line in re.findall('SEEN (.*)', text):
        rank, iteration, weights, *paths = line.split()
        seen[int(rank), int(iteration)] = float(weights), paths
    assert sorted(seen) == [(r, i) for r in range(2) for i in range(1, 9)]
    weights = [seen[0, i][0] for i in range(1, 9)]
    assert weights == [seen[1, i][0] for i in range(1, 9)]
    # No step after the third, sixth and seventh.
    steps = [a != b for a, b in zip(weights, weights[1:])]
    assert steps == [True, True, False, True, True, False, False]

    warnings = re.findall('No step was taken at (.*)', text)
    # For all processes one.
    (error,) = re.findall('^error: (.*)', text, re.M)
    assert '3 bad iterations in a row' in error
    assert 'not finite in data_preprocessor nan' in error
    # Of the process that went wrong alone.
    (peaks,) = re.findall(r'Largest activations: (.*?)\. Go on', error)
    assert all(re.search(r'\w \S+$', part) for part in peaks.split(', '))
    for iteration, message in zip((3, 6, 7, 8), [*warnings[:3], error]):
        assert f'iteration {iteration}, whose loss was NaN' in message
        assert ', '.join(seen[1, iteration][1]) in message
        assert seen[0, iteration][1][0] not in message
