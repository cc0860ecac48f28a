# Parameters, gradients and the optimizer's state are sharded over the
# processes (FSDP), for models that are large for one GPU: one more base of a
# config.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='clustr_mm.runs.sharding.ShardingStrategy',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel', auto_wrap_policy='block_by_block'
    ),
    # Whole checkpoints, as of any other run.
    state_dict_cfg='full',
)
