"""What every command shares: options from config fields, --config files, the next command.

DataConfig.seed                    ->  --seed INTEGER   Random seed.  [default: 0]
options.toml, [shards] seed = 7    ->  the default of --seed
work/shards                        ->  Next: clozeline pretrain work/shards --out work/run
"""
