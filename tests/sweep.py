"""Put a backbone into every config that the toolboxes come with.

A config is swapped if the tool writes one, and if the model of that gives a
loss, gradients and a prediction, of pictures made up. Else it is refused by
the tool, or it failed: the tool has written what does not train, or has not
said what is wrong. Configs whose swapped models are the same are run once.

What came out is kept in `docs/swap/`, a line of JSON a config: the command
goes on where it was stopped, and takes the folders of the toolboxes in turn.
Each config has a process of its own, and a limit to its time and memory.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import random
import re
import resource
import signal
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from clustr_mm import configs
from clustr_mm.configs import type_of
from clustr_mm.errors import UserError, summary
from clustr_mm.swap import swapping
from clustr_mm.swap.swapping import presets
from clustr_mm.toolboxes import TOOLBOXES, toolbox_of
from tests import samples
from tests.test_configs import without_sync_bn

FOLDER = Path(__file__).parents[1] / 'docs/swap'
SECONDS = 300  # of a core
GIGABYTES = 10
OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL)  # the second if it goes on
# Of pictures that models of any size are trained with.
SIZES = dict(mmseg=(128, 128), mmdet=(64, 64))
SWAPPED, REFUSED, BROKEN, FAILED = 'swapped', 'refused', 'broken', 'failed'
PAGE = FOLDER.with_suffix('.md')
SAID = ('seconds', 'outcome', 'config', 'reason')


class SameModel(Exception):
    """Another config gave the same model."""


def stock_configs() -> list[str]:
    """The toolboxes' configs, one of each folder after the other.

    The folders are shuffled, so that whatever part is done is a fair one.
    """
    folders = {}
    for scope in TOOLBOXES:
        package = Path(importlib.util.find_spec(scope).origin).parent
        root = package / '.mim/configs'
        for path in sorted(root.rglob('*.py')):
            name = path.relative_to(root)
            if not any(part.startswith('_') for part in name.parts):
                known = folders.setdefault(path.parent, [])
                known.append(f'{scope}::{name}')
    queues = list(folders.values())
    random.Random(0).shuffle(queues)
    rounds = zip_longest(*queues)
    return [name for row in rounds for name in row if name is not None]


def examine(config: str, backbone: str, known: dict) -> dict:
    """Swap and run; what came of it."""
    found = dict(config=config)
    plan, check = swapping.plan, swapping.check

    def plan_and_tell(cfg: Config, *args):
        found['family'] = family(cfg.model)
        return plan(cfg, *args)

    def check_what_is_new(cfg: Config, stock: Config):
        found['model'] = digest(cfg)
        if found['model'] in known:
            raise SameModel
        check(cfg, stock)
        train_and_predict(cfg)

    swapping.plan, swapping.check = plan_and_tell, check_what_is_new
    try:
        swapping.swap_backbone(config, backbone, None)
        found['outcome'] = SWAPPED
    except SameModel:
        found |= known[found['model']]
    except swapping.StockError as error:
        found |= dict(outcome=BROKEN, reason=str(error))
    except UserError as error:
        found |= dict(outcome=REFUSED, reason=str(error))
    except Exception as error:
        its_own = what_breaks(configs.read(swapping.find_config(config)))
        if its_own is None:
            found |= dict(outcome=FAILED, reason=where(error))
        else:
            reason = f'with its own backbone, too: {where(its_own)}'
            found |= dict(outcome=BROKEN, reason=reason)
    return found


def what_breaks(cfg: Config) -> Exception | None:
    """What keeps a config's model from a step and a prediction."""
    try:
        train_and_predict(cfg, frozen=True)
    except Exception as error:
        return error
    return None


def where(error: Exception) -> str:
    """An error, and where in the code it came from."""
    trace = traceback.extract_tb(error.__traceback__)[-1]
    place = '/'.join(Path(trace.filename).parts[-2:])
    return f'{summary(error)} ({place}:{trace.lineno})'


def family(model: dict) -> str:
    """What a model is called by, which is not its backbone."""
    for key in ('decode_head', 'head'):
        if model.get(key):
            part = model[key]
            return type_of(part[-1] if isinstance(part, list) else part)
    return type_of(model)


def digest(cfg: Config) -> str:
    """The same for models that are the same."""
    said = [cfg.model, cfg.get('data_preprocessor'), cfg.get('codec')]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def train_and_predict(
    cfg: Config, size: tuple[int, int] | None = None, frozen: bool = False
) -> nn.Module:
    """Raise an error unless a config's model trains a step and predicts.

    A backbone of which a part may be ``frozen`` is not to have all gradients.
    """
    init_default_scope(cfg.default_scope)
    cfg = swapping.without_weights(cfg)
    torch.manual_seed(0)
    size = size or size_for(cfg)
    # As the runner does.
    cfg.model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    hub = MessageHub.get_current_instance()
    hub.update_info_dict(dict(iter=0, epoch=0, max_iters=9, max_epochs=9))
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = size
    model = MODELS.build(without_sync_bn(cfg.model))
    model.init_weights()  # some leave memory as it is until then
    model.train()
    predicts = hasattr(model, 'predict')  # self-supervised ones do not
    data = sample(cfg, size)
    if not predicts:
        views = configs.get(cfg, 'model.head.loss.num_crops') or [2]
        data['inputs'] = [data['inputs']] * sum(views)
    inputs = model.data_preprocessor(data, True)
    loss, _ = model.parse_losses(model(**inputs, mode='loss'))
    loss.backward()
    params = model.backbone.named_parameters()
    lost = [name for name, param in params if param.grad is None]
    if lost and not frozen or not loss.isfinite():
        raise ValueError(f'a loss of {loss}, and no gradient of {lost}')
    if predicts:
        model.eval()
        with torch.no_grad():
            # Some take no more than one.
            inputs = model.data_preprocessor(sample(cfg, size, 1), False)
            model(**inputs, mode='predict')
    return model


def size_for(cfg: Config) -> tuple[int, int]:
    """Of pictures to train with: small, if the model takes any size."""
    if cfg.default_scope not in SIZES or cfg.model.get('as_two_stage'):
        return toolbox_of(cfg).probe_size(cfg)
    return SIZES[cfg.default_scope]


def sample(cfg: Config, size: tuple[int, int], num: int = 2) -> dict:
    if cfg.default_scope == 'mmpose':
        return samples.encoded_pose(cfg, num)
    return samples.batch(cfg.default_scope, cfg, size, num)


def bounded(config: str, backbone: str, known: dict) -> dict:
    """Examine a config in a fork, for as long and as large as it may be."""
    start, (read, write) = time.monotonic(), os.pipe()
    process = os.fork()
    if not process:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        pages = int(Path('/proc/self/statm').read_text().split()[0])
        most = pages * resource.getpagesize() + GIGABYTES * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            found = examine(config, backbone, known)
            with os.fdopen(write, 'w') as pipe:
                json.dump(found, pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    reason = f'ended by signal {status}' if status else 'out of memory'
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in OUT_OF_TIME:
        reason = f'more than {SECONDS} seconds of a core'
    ended = dict(config=config, outcome=FAILED, reason=reason)
    found = json.loads(text) if text else ended
    # Not where it was on this machine.
    found['reason'] = re.sub(
        r'/\S+/(\.mim/configs|site-packages)/', '', found.get('reason', '')
    )
    return dict(found, seconds=round(time.monotonic() - start, 1))


def results_of(backbone: str, folder: Path = FOLDER) -> dict[str, dict]:
    """What is recorded of each config."""
    file = folder / f'{backbone}.jsonl'
    lines = file.read_text().splitlines() if file.exists() else []
    return {found['config']: found for found in map(json.loads, lines)}


def table(results: Iterable[dict]) -> str:
    """How many configs had which outcome, by toolbox and by head."""
    rows = defaultdict(list)
    for found in results:
        scope = found['config'].partition('::')[0]
        rows[scope, found.get('family') or 'no head'].append(found)
    lines = [
        '| | | swapped | refused | broken | failed | why not |',
        '|---|---|---:|---:|---:|---:|---|',
    ]
    for (scope, name), row in sorted(rows.items(), key=_by_toolbox):
        counts = Counter(found['outcome'] for found in row)
        numbers = [
            str(counts[kind] or '')
            for kind in (SWAPPED, REFUSED, BROKEN, FAILED)
        ]
        reasons = Counter(map(short, row))
        del reasons['']
        why = '; '.join(reasons)
        lines.append(f'| {scope} | `{name}` | {" | ".join(numbers)} | {why} |')
    return '\n'.join(lines)


def _by_toolbox(item: tuple) -> tuple:
    (scope, name), _ = item
    return list(TOOLBOXES).index(scope), name


def short(found: dict) -> str:
    """Why a config was not swapped, in a few words that many share."""
    reason = found.get('reason') or ''
    reason = re.sub(r'the config \S+ cannot', 'cannot', reason)
    cut = r'(; |\. |: the (rest|model) |, which none |: inherit).*'
    return re.sub(cut, '', reason, flags=re.S).replace('|', '/')[:150]


def summary_of(results: dict, num: int) -> str:
    """How many configs were tried, and what came of them."""
    counts = Counter(found['outcome'] for found in results.values())
    models = {found['model'] for found in results.values() if 'model' in found}
    return (
        f'{len(results)} of {num} configs tried, which gave {len(models)} '
        f'different models: {counts[SWAPPED]} swapped, {counts[REFUSED]} '
        f'refused, {counts[BROKEN]} broken here with their own backbone, too, '
        f'{counts[FAILED]} failed.'
    )


def sweep(names: list[str], results: dict, backbone: str, folder: Path):
    """Examine configs, and write down each time what came of it."""
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    for scope, toolbox in TOOLBOXES.items():
        toolbox.require()
        init_default_scope(scope)
        MODELS.get('ResNet')  # imports its models, for all forks
    folder.mkdir(parents=True, exist_ok=True)
    known = {}
    for found in results.values():
        remember(found, known)
    for name in names:
        results[name] = found = bounded(name, backbone, known)
        remember(found, known)
        print(*(found.get(key, '') for key in SAID), flush=True)
        lines = [json.dumps(found) + '\n' for found in results.values()]
        (folder / f'{backbone}.jsonl').write_text(''.join(lines))


def remember(found: dict, known: dict):
    """What came of a model is what comes of the same model."""
    if 'model' in found:
        outcome = {key: found.get(key, '') for key in ('outcome', 'reason')}
        known.setdefault(found['model'], outcome)


def with_results(page: str) -> str:
    """The page with the tables as they are recorded."""
    num = len(stock_configs())
    for backbone in presets():
        results = results_of(backbone)
        if results:
            start, end = f'<!-- {backbone} -->', f'<!-- /{backbone} -->'
            head, _, rest = page.partition(start)
            tail = rest.partition(end)[2]
            told = f'{summary_of(results, num)}\n\n{table(results.values())}'
            page = f'{head}{start}\n\n{told}\n\n{end}{tail}'
    return page


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--backbone', choices=presets(), default='clustr_t')
    parser.add_argument('--only', default='', help='part of a name')
    parser.add_argument('--num', type=int, help='stop after so many')
    parser.add_argument(
        '--again',
        default='',
        help='a regular expression: try again what has it in the record',
    )
    parser.add_argument('--out', type=Path, default=FOLDER)
    parser.add_argument('--write-docs', action='store_true')
    args = parser.parse_args()
    names = [name for name in stock_configs() if args.only in name]
    if args.write_docs:
        PAGE.write_text(with_results(PAGE.read_text()))
    else:
        results = results_of(args.backbone, args.out)
        if args.again:
            results = {
                name: found
                for name, found in results.items()
                if not re.search(args.again, json.dumps(found))
            }
        new = [name for name in names if name not in results]
        sweep(new[: args.num], results, args.backbone, args.out)


if __name__ == '__main__':
    main()
