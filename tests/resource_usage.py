"""What a process holds: memory, tensors, open files, other processes.

Run as a program, it trains and then tests a backbone on images of changing
sizes and prints a line of JSON for every tenth iteration.
"""

import ctypes
import gc
import json
import os
import sys
from pathlib import Path

import torch
from mmengine.hooks import Hook

from clustr_mm.runs import launch
from tests import small_training

# oneDNN and torch keep the last 1024 kernels of theirs, one for each shape.
# That is memory which grows for a while; here they are to keep none.
WITHOUT_CACHES = dict(
    ONEDNN_PRIMITIVE_CACHE_CAPACITY='0',
    LRU_CACHE_CAPACITY='1',
    OMP_NUM_THREADS='1',
)
# One of 113 x 113 sizes for each image.
PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(
        type='RandomResize',
        scale=[(48, 48), (160, 160)],
        resize_type='Resize',
    ),
    dict(type='PackInputs'),
]


def children(pid=None):
    """The processes that a process has started, by default this one."""
    pid = pid or os.getpid()
    path = Path(f'/proc/{pid}/task/{pid}/children')
    return [int(child) for child in path.read_text().split()]


def is_running(pid):
    """Whether a process is there, and not just still to be buried."""
    try:
        stat = Path(f'/proc/{pid}/stat').read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(')')[2].split()[0] != 'Z'


def resource_usage():
    """Memory in kB, and numbers of tensors, open files and processes."""
    gc.collect()
    # What is free goes back to the system, rather than be counted.
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return dict(
        memory=pages * os.sysconf('SC_PAGE_SIZE') // 1024,
        tensors=sum(
            issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()
        ),
        files=len(os.listdir('/proc/self/fd')),
        processes=len(children()),
    )


class PrintResourceUsage(Hook):
    priority = 'LOWEST'

    def _after_iter(
        self, runner, batch_idx, data_batch=None, outputs=None, mode='train'
    ):
        if self.every_n_inner_iters(batch_idx, 10):
            print(json.dumps(dict(phase=mode, **resource_usage())), flush=True)


class Leak(Hook):
    """Keeps what it should not: a small tensor for each iteration."""

    def __init__(self, what):
        self.what = what
        self.kept = []

    def _after_iter(self, *args, **kwargs):
        if self.what == 'tensors':
            self.kept.append(torch.zeros(1))
        elif self.what == 'memory':
            self.kept.append(bytes(range(256)) * 256)  # 64 kB
        elif self.what == 'files':
            self.kept.append(os.open(os.devnull, os.O_RDONLY))
        else:
            self.kept.append(os.fork() or os._exit(0))


def main(folder, backbone, iters, leak=None):
    images = 2 * int(iters)
    cfg = small_training.config(
        Path(folder),
        backbone,
        **{
            'log_level': 'ERROR',
            'train_cfg.max_iters': int(iters),
            'default_hooks.checkpoint.interval': 10_000,
            # Accuracy would keep all scores until the end.
            'test_evaluator': [],
        },
    )
    for loader in (cfg.train_dataloader, cfg.test_dataloader):
        loader.dataset.pipeline = PIPELINE
        loader.update(
            batch_size=2,
            collate_fn=dict(type='pseudo_collate'),
            pin_memory=False,
        )
    dataset = cfg.test_dataloader.dataset
    cfg.test_dataloader.dataset = dict(
        type='RepeatDataset', dataset=dataset, times=-(-images // 6)
    )
    runner = launch.build_runner(cfg)
    runner.register_hook(PrintResourceUsage())
    if leak is not None:
        runner.register_hook(Leak(leak))
    runner.train()
    runner.test()


if __name__ == '__main__':
    main(*sys.argv[1:])
