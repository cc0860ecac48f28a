"""What to do with a training that has ended."""

from pathlib import Path

from mmengine.dist import master_only
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from clustr_mm.registry import HOOKS


@HOOKS.register_module()
class SummaryHook(Hook):
    """Say at the end which checkpoint is the best, and how to test it."""

    priority = 'LOWEST'  # after the hook that writes checkpoints

    @master_only
    def after_train(self, runner: Runner) -> None:
        for line in summarize(runner):
            runner.logger.info(line)


def summarize(runner: Runner) -> list[str]:
    """The best metrics, with the commands that test their checkpoints."""
    info = runner.message_hub.runtime_info
    hook = next(
        (h for h in runner.hooks if isinstance(h, CheckpointHook)), None
    )
    metrics = getattr(hook, 'key_indicators', ())
    lines = []
    for metric in metrics:
        suffix = '' if len(metrics) == 1 else f'_{metric}'
        checkpoint = info.get(f'best_ckpt{suffix}')
        if checkpoint:
            score = info[f'best_score{suffix}']
            lines.append(f'Best {metric}: {float(score):.4g}, {checkpoint}')
            lines.append(_command(runner, checkpoint))
    if not lines and info.get('last_ckpt'):
        lines.append(f'Last checkpoint: {info["last_ckpt"]}')
        lines.append(_command(runner, info['last_ckpt']))
    return lines


def _command(runner: Runner, checkpoint: str) -> str:
    """What tests it, by the config that the run left in its folder."""
    name = runner.cfg.filename or f'{runner.timestamp}.py'
    config = Path(runner.work_dir, Path(name).name)
    return f'To test it: python tools/test.py {config} {checkpoint}'
