"""Train a classifier and a language model in one process or several, with the same losses.

    python examples/data_parallel.py
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 examples/data_parallel.py --processes 2
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 examples/data_parallel.py --processes 2 --sharded
"""
import argparse, json, torch
from accelerate import FullyShardedDataParallelPlugin
from fastai.text.all import *
from fastai_txf.all import *
from fastai_txf.train.distributed import *

BATCH = 16 # texts, or streams of text, in a step of all processes together
MODEL = dict(d_model=32, n_heads=2, p=0., emb_p=0.) # without dropout: a process does not draw what one alone would

class Seed(Callback):
    "Draw the same order of texts in each epoch, however many random numbers were used before."
    def before_train(self): set_seed(self.epoch)

class Held(Callback):
    "Note the largest share of the model's bytes that this process holds between two steps."
    share = 0.
    def after_batch(self):
        ps = list(self.model.parameters())
        self.share = max(self.share, sum(getattr(p, 'to_local', lambda: p)().nbytes for p in ps)/sum(p.nbytes for p in ps))

def make_learner(df, bs, is_lm):
    "A small learner, the same in each process."
    set_seed(0)
    dls = TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', is_lm=is_lm, seq_len=32, bs=bs, num_workers=0,
                                     tok_tfm=BaseTokenizer())
    return transformer_lm_learner(dls, opt_func=adamw, **MODEL) if is_lm else transformer_classifier_learner(dls, metrics=accuracy, head_p=0., **MODEL)

def train(learn, epochs, cbs=(), sharded=False):
    "Losses of each step, the rows of the epochs' table, and the share of the weights that was held."
    options = dict(sync_bn=False, cpu=not torch.cuda.is_available())
    if sharded: options['fsdp_plugin'] = FullyShardedDataParallelPlugin(fsdp_version=2)
    held = Held()
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx(**options): learn.fit_one_cycle(epochs, 5e-3, cbs=[Seed(), held, *cbs])
    return dict(losses=[float(o) for o in learn.recorder.losses], rows=[list(map(float, o)) for o in learn.recorder.values], share=held.share)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--processes', type=int, default=1, help='how many there should be: anything else is an error')
    p.add_argument('--epochs', type=int, default=2)
    p.add_argument('--chunked', action='store_true', help='train the language model without logits')
    p.add_argument('--sharded', action='store_true', help='give each process a share of the weights (FSDP)')
    p.add_argument('--save', type=Path, help='folder for the trained weights, as each process has them')
    args = p.parse_args()
    world_size = max(1, num_distrib())
    if world_size != args.processes: raise SystemExit(f'{args.processes} processes were asked for, {world_size} started: use torchrun --nproc_per_node {args.processes}')
    if BATCH % world_size: raise SystemExit(f'a batch of {BATCH} cannot be shared by {world_size} processes')
    df = docstrings_df(('pandas','numpy'), max_per_class=60, max_words=40)
    res = {}
    for name,is_lm in (('classifier',False), ('language model',True)):
        learn = make_learner(df, BATCH//world_size, is_lm)
        res[name] = train(learn, args.epochs, [ChunkedLoss()]*(args.chunked and is_lm), args.sharded)
        if args.save: torch.save(learn.model.state_dict(), args.save/f'{name}_{rank_distrib()}.pth')
    if not rank_distrib(): print(json.dumps(dict(processes=world_size, **res)))
    if torch.distributed.is_initialized(): torch.distributed.destroy_process_group()

if __name__ == '__main__': main()
