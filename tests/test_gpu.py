"""What a GPU would show, and nothing else does. Without one, all are skipped.

What a GPU is asked to do is counted without one in `tests/test_launches.py`.
"""

import pytest
import torch

from clustr_mm.backbones.tome import match
from clustr_mm.tokens.density_peaks import density_peaks
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from tests.test_backbones.test_clustr import small
from tests.tiny_models import CASES, build, images

pytestmark = pytest.mark.gpu


def backbone(name):
    return small() if name == 'clustr' else build(name, out_type='featmap')


NAMES = ['clustr', *CASES]


@pytest.fixture
def _deterministic(monkeypatch):
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize('num_tokens', [100, 784, 3136])
@pytest.mark.parametrize('options', [{}, dict(share=0.5), dict(k=1)])
def test_density_peaks_are_those_of_a_cpu(num_tokens, options):
    x = torch.randn(3, num_tokens, 16, dtype=torch.float64)
    expected = density_peaks(x, [50, 12], **options)
    for found, clusters in zip(
        density_peaks(x.cuda(), [50, 12], **options), expected, strict=True
    ):
        assert torch.equal(found.labels.cpu(), clusters.labels)


@pytest.mark.parametrize('num_clusters', [40, 300])
@pytest.mark.parametrize('function', [kmeans, kmedoids])
def test_other_clusters_are_those_of_a_cpu(function, num_clusters):
    x = torch.randn(3, 500, 16, dtype=torch.float64)
    init = torch.rand(3, 500).argsort(1)[:, :num_clusters]
    expected = function(x, init)
    for found, one in zip(function(x.cuda(), init.cuda()), expected):
        torch.testing.assert_close(found.cpu(), one)


def test_matches_are_those_of_a_cpu():
    keys = torch.randn(3, 197, 16)
    assert torch.equal(match(keys.cuda(), 50).cpu(), match(keys, 50))


@pytest.mark.parametrize('name', NAMES)
def test_outputs_and_gradients_are_those_of_a_cpu(name):
    model, img = backbone(name).double(), images().double()
    for parameter in model.parameters():
        parameter.grad = None
    sum(out.square().sum() for out in model(img)).backward()
    expected = [p.grad for p in model.parameters()]
    maps = [out.detach() for out in model(img)]
    model.zero_grad(set_to_none=True)
    model, img = model.cuda(), img.cuda()
    found = model(img)
    sum(out.square().sum() for out in found).backward()
    for one, other in zip(found, maps, strict=True):
        torch.testing.assert_close(one.cpu(), other)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad.cpu(), gradient)


@pytest.mark.parametrize('name', NAMES)
def test_nothing_waits(name):
    model, img = backbone(name).cuda(), images().cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode('error')
    try:
        sum(out.square().sum() for out in model(img)).backward()
    finally:
        torch.cuda.set_sync_debug_mode('default')


@pytest.mark.usefixtures('_deterministic')
@pytest.mark.parametrize('name', NAMES)
def test_gradients_repeat_bit_by_bit(name):
    # Another size, so that positions are resized.
    img = images(height=48, width=64).cuda()
    model = backbone(name).cuda()
    gradients = []
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        sum(out.square().sum() for out in model(img)).backward()
        gradients.append([p.grad for p in model.parameters()])
    for others in gradients[1:]:
        for one, other in zip(gradients[0], others, strict=True):
            assert one is None or torch.equal(one, other)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('name', NAMES)
def test_half_precision_is_finite(name, dtype):
    model, img = backbone(name).cuda(), images().cuda()
    with torch.autocast('cuda', dtype):
        loss = sum(out.float().square().mean() for out in model(img))
    loss.backward()
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize('name', NAMES)
def test_a_cuda_graph_repeats_it(name):
    """Nothing waits and no size depends on values: it can be recorded."""
    model, img = backbone(name).cuda().eval(), images().cuda()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            model(img)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        found = model(img)
    img.copy_(images(seed=7))
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(found, model(img))
