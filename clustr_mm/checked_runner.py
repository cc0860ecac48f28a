"""A runner that names the part of a config that it cannot work with."""

import functools
from collections.abc import Callable

from mmengine.config import ConfigDict
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from . import class_checks, data_checks
from .config_files import describe
from .errors import UserError, building


def _telling(method: Callable, part: str) -> Callable:
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


class CheckedRunner(Runner):
    """MMEngine's runner, for configs and data that may have mistakes."""

    setup_env = _telling(Runner.setup_env, 'env_cfg')
    set_randomness = _telling(Runner.set_randomness, 'randomness')
    build_model = _telling(Runner.build_model, 'the model')
    build_visualizer = _telling(Runner.build_visualizer, 'visualizer')
    register_hooks = _telling(
        Runner.register_hooks, 'default_hooks or custom_hooks'
    )
    build_log_processor = _telling(Runner.build_log_processor, 'log_processor')
    build_optim_wrapper = _telling(Runner.build_optim_wrapper, 'optim_wrapper')
    build_param_scheduler = _telling(
        Runner.build_param_scheduler, 'param_scheduler'
    )
    build_train_loop = _telling(Runner.build_train_loop, 'train_cfg')
    build_val_loop = _telling(Runner.build_val_loop, 'val_cfg')
    build_test_loop = _telling(Runner.build_test_loop, 'test_cfg')
    build_evaluator = _telling(Runner.build_evaluator, 'the evaluator')

    def build_dataloader(
        self, dataloader: DataLoader | dict, *args, **kwargs
    ) -> DataLoader:
        if isinstance(dataloader, DataLoader):
            return dataloader
        what = self._describe(dataloader)
        with building(what, 'Mend the config or that file.'):
            try:
                loader = Runner.build_dataloader(dataloader, *args, **kwargs)
            except ValueError as error:
                # What MMEngine says when it packs a list of nothing.
                if 'need at least one array' not in str(error):
                    raise
                raise _nothing_left(what) from error
        # Before it is drawn from: a sampler of nothing may look for ever.
        if not len(loader.dataset):
            raise _nothing_left(what)
        if what.startswith('train_dataloader'):
            data_checks.check_instances(loader.dataset, what)
        class_checks.check_order(loader.dataset, what)
        data_checks.tell_files(loader.dataset)
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
