"""Train a classifier and a language model in one process or several, with the same losses.

    python examples/data_parallel.py
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 examples/data_parallel.py --processes 2
"""
import argparse, json, torch
from fastai.text.all import *
from fastai_txf.all import *
from fastai_txf.distributed import *

BATCH = 16 # texts, or streams of text, in a step of all processes together
MODEL = dict(d_model=32, n_heads=2, p=0., emb_p=0.) # without dropout: a process does not draw what one alone would

class Seed(Callback):
    "Draw the same order of texts in each epoch, however many random numbers were used before."
    def before_train(self): set_seed(self.epoch)

def make_learner(df, bs, is_lm):
    "A small learner, the same in each process."
    set_seed(0)
    dls = TextDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', is_lm=is_lm, seq_len=32, bs=bs, num_workers=0,
                                     tok_tfm=BaseTokenizer())
    return transformer_lm_learner(dls, **MODEL) if is_lm else transformer_classifier_learner(dls, metrics=accuracy, head_p=0., **MODEL)

def train(learn, epochs, cbs=()):
    "Losses of each step and the rows of the epochs' table."
    on_cpu = not torch.cuda.is_available()
    with learn.no_bar(), learn.no_logging(), learn.distrib_ctx(sync_bn=False, cpu=on_cpu): learn.fit_one_cycle(epochs, 5e-3, cbs=[Seed(), *cbs])
    return dict(losses=[float(o) for o in learn.recorder.losses], rows=[list(map(float, o)) for o in learn.recorder.values])

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--processes', type=int, default=1, help='how many there should be: anything else is an error')
    p.add_argument('--epochs', type=int, default=2)
    p.add_argument('--chunked', action='store_true', help='train the language model without logits')
    args = p.parse_args()
    world_size = max(1, num_distrib())
    if world_size != args.processes: raise SystemExit(f'{args.processes} processes were asked for, {world_size} started: use torchrun --nproc_per_node {args.processes}')
    if BATCH % world_size: raise SystemExit(f'a batch of {BATCH} cannot be shared by {world_size} processes')
    df = docstrings_df(('pandas','numpy'), max_per_class=60, max_words=40)
    res = {'classifier': train(make_learner(df, BATCH//world_size, is_lm=False), args.epochs),
           'language model': train(make_learner(df, BATCH//world_size, is_lm=True), args.epochs, [ChunkedLoss()]*args.chunked)}
    if not rank_distrib(): print(json.dumps(dict(processes=world_size, **res)))
    if torch.distributed.is_initialized(): torch.distributed.destroy_process_group()

if __name__ == '__main__': main()
