"""A runner that names the part of a config that it cannot work with."""

import functools
from collections.abc import Callable

from mmengine.config import ConfigDict
from mmengine.optim import BaseOptimWrapper
from mmengine.registry import OPTIMIZERS
from mmengine.runner import FlexibleRunner, Runner
from torch.utils.data import DataLoader

from clustr_mm.arguments import nearest
from clustr_mm.configs import describe
from clustr_mm.errors import UserError, building
from clustr_mm.registry import RUNNERS
from . import class_checks, label_checks
from .cpu import open_process_group


def _naming(method: Callable, part: str) -> Callable:
    """A method that builds a part, and names it if it cannot."""

    @functools.wraps(method)
    def build(self, *args, **kwargs):
        with building(f'{part} of {describe(self.cfg)}'):
            return method(self, *args, **kwargs)

    return build


def _nothing_left(what: str) -> UserError:
    return UserError(
        f'there is no picture left in {what}. Look at what is in the folder '
        'and the file, and whether the categories there are those of '
        'metainfo.classes, which the config sets for each dataset.'
    )


# What builds a part of a run, and how a config calls it. MMEngine's flexible
# runner has a strategy build some of them.
PARTS = {
    'setup_env': 'env_cfg',
    'set_randomness': 'randomness',
    'build_model': 'the model',
    'build_visualizer': 'visualizer',
    'register_hooks': 'default_hooks or custom_hooks',
    'build_log_processor': 'log_processor',
    'build_optim_wrapper': 'optim_wrapper',
    'build_param_scheduler': 'param_scheduler',
    'build_train_loop': 'train_cfg',
    'build_val_loop': 'val_cfg',
    'build_test_loop': 'test_cfg',
    'build_evaluator': 'the evaluator',
}


# What MMEngine says when it packs a list of nothing, MMPretrain of folders.
OF_NOTHING = ('need at least one array', 'Found 0 files')


def names_parts(kind: type) -> type:
    """Have a runner's class name the part that it cannot build."""
    for name, part in PARTS.items():
        if hasattr(kind, name):
            setattr(kind, name, _naming(getattr(kind, name), part))
    return kind


class _Checks:
    """Of a runner: looks at the data that it is given."""

    def build_dataloader(
        self, dataloader: DataLoader | dict, *args, **kwargs
    ) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        what = self._describe(dataloader)
        with building(what, 'Mend the config or that file.'):
            try:
                loader = super().build_dataloader(dataloader, *args, **kwargs)
            except (RuntimeError, ValueError) as error:
                if not any(words in str(error) for words in OF_NOTHING):
                    raise
                raise _nothing_left(what) from error
        # Before it is drawn from: a sampler of nothing may look for ever.
        if not len(loader.dataset):
            raise _nothing_left(what)
        if what.startswith('train_dataloader'):
            label_checks.check_instances(loader.dataset, what)
        class_checks.check_order(loader.dataset, what)
        label_checks.name_files(loader.dataset)
        return loader

    def _describe(self, dataloader: dict) -> str:
        """The name of a loader, and where its data comes from."""
        names = ('train_dataloader', 'val_dataloader', 'test_dataloader')
        name = next(
            (n for n in names if self.cfg.get(n) == dataloader),
            'a data loader',
        )
        dataset = dataloader.get('dataset')
        while isinstance(dataset, dict) and isinstance(
            dataset.get('dataset'), dict
        ):
            dataset = dataset['dataset']
        if not isinstance(dataset, (dict, ConfigDict)):
            return name
        places = {
            key: dataset[key]
            for key in ('data_root', 'ann_file', 'data_prefix')
            if dataset.get(key)
        }
        listed = ', '.join(f'{key} {value}' for key, value in places.items())
        return (
            f'{name} of {describe(self.cfg)} ({dataset.get("type")}, {listed})'
        )


def _check_optimizer(optimizer: dict | None) -> None:
    """Refuse a name that MMEngine would take for no optimizer at all."""
    name = (optimizer or {}).get('type')
    if isinstance(name, str) and OPTIMIZERS.get(name) is None:
        hint = nearest(name, OPTIMIZERS.module_dict)
        raise ValueError(f'there is no optimizer {name}: {hint}')


@RUNNERS.register_module()
@names_parts
class CheckedRunner(_Checks, Runner):
    """MMEngine's runner, for configs and data that may have mistakes."""

    def setup_env(self, env_cfg: dict) -> None:
        if self.distributed:
            dist_cfg = env_cfg.get('dist_cfg') or {}
            open_process_group(dist_cfg.get('backend', 'nccl'))
        super().setup_env(env_cfg)

    def build_optim_wrapper(
        self, optim_wrapper: BaseOptimWrapper | dict
    ) -> BaseOptimWrapper:
        if isinstance(optim_wrapper, dict):
            _check_optimizer(optim_wrapper.get('optimizer'))
        return super().build_optim_wrapper(optim_wrapper)


@RUNNERS.register_module()
@names_parts
class CheckedFlexibleRunner(_Checks, FlexibleRunner):
    """The same, for what a strategy distributes."""
