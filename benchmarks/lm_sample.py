"""Word language models on IMDB_SAMPLE: this library's beside the workshop's transformer, given the same minutes (or epochs).

Both have the same texts, vocabulary, sequence length and validation batches. Each runs in a process of its own and adds a line to results/lm_sample.jsonl; what is there already is not run again."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *

SEQ_LEN,VAL_BS = 256,64

RECIPES = dict(
    txf     =dict(lr=3e-3, bs=16, fit={}, model=dict(d_model=128, n_heads=4, n_layers=2, max_len=SEQ_LEN, p=0.3, emb_p=0.3, tie=True)),
    workshop=dict(lr=1e-3, bs=64, fit={}, model=dict(k=256, heads=8, depth=3, max_len=SEQ_LEN)))

NAMES = dict(txf='`transformer_lm_learner`', workshop="the workshop's transformer (k 256, 8 wide heads, depth 3), plain `Learner`")

def make_dls(bs, n):
    "fastai's language model loaders; the validation batches do not depend on `bs`."
    df = pd.read_csv(untar_data(URLs.IMDB_SAMPLE)/'texts.csv')
    if n: df = df.groupby('is_valid').sample(n//2, random_state=0)
    return TextDataLoaders.from_df(df, text_col='text', is_lm=True, valid_col='is_valid', seq_len=SEQ_LEN, bs=bs, val_bs=VAL_BS if n is None else 2, num_workers=0)

def txf(dls, kw): return transformer_lm_learner(dls, 'default', opt_func=adamw, metrics=accuracy, **kw)
def workshop(dls, kw):
    n = len(dls.vocab)
    return Learner(dls, WorkshopModel(n, n, causal=True, **kw), loss_func=CrossEntropyLossFlat(), metrics=accuracy)

def ask(name, seed, args):
    "What one run is asked to do."
    return dict(candidate=name, split='valid', seed=seed, asked=f'{args.epochs} epochs' if args.epochs else args.minutes, n=args.n, recipe=change(RECIPES[name], args.set))

def run(name, seed, args):
    "Train one candidate and validate it at the end; the row for the results."
    torch.set_num_threads(args.threads)
    set_seed(seed)
    row = ask(name, seed, args)
    r = row['recipe']
    dls = make_dls(r['bs'], args.n)
    learn,count = globals()[name](dls, r['model']),Count(pad_index(dls))
    with learn.no_bar():
        if args.epochs: learn.fit_one_cycle(args.epochs, r['lr'], cbs=count, **r['fit'])
        else: learn.fit_minutes(args.minutes, r['lr'], cbs=count, **r['fit'])
        loss,acc = learn.validate()
    return {**row, 'loss':round(loss, 3), 'perplexity':round(math.exp(loss), 1), 'accuracy':100*acc, 'epochs':round(count.tokens/(len(dls.train)*r['bs']*SEQ_LEN), 2),
            **count.row, 'params':n_params(learn.model), 'vocab':len(dls.vocab), **about(args.threads)}

COLS = {'model':lambda r: NAMES[r['candidate']] + tried(r), 'recipe':lambda r: recipe(r), 'seed':'seed', 'valid loss':lambda r: f"{r['loss']:.3f}",
        'perplexity':lambda r: f"{r['perplexity']:.1f}", 'accuracy':'accuracy', 'epochs':'epochs', 'tokens seen':'tokens', 'tokens/s':'tokens_per_s', 'minutes':'minutes', 'parameters':'params'}

def recipe(row):
    "The recipe of a row, in words."
    r = row['recipe']
    return ', '.join(f'{k}={v}' for k,v in {'lr':r['lr'], 'bs':r['bs'], **r['fit'], **r['model']}.items())

def render(rows):
    "The results as markdown."
    rows = sorted(rows, key=lambda r: (str(r['asked']), list(RECIPES).index(r['candidate'])))
    return '# Word language models on IMDB_SAMPLE\n\nWritten by `python benchmarks/lm_sample.py`. Same texts (800 to train on, 200 to validate), vocabulary, ' \
           f'sequences of {SEQ_LEN} tokens and validation batches. The minutes are those of training alone.\n\n{table(rows, COLS)}\n{ran_with(rows)}' \
           "\nPublished: the workshop's transformer after 12 epochs, batches of 64: valid loss 5.247 (perplexity 190.0).\n"

def main():
    p = options(__doc__, RECIPES, 5)
    p.add_argument('--epochs', type=int, default=None, help='train for so many epochs, whatever the minutes')
    p.add_argument('--seeds', nargs='+', type=int, default=[0], help='of both')
    args = p.parse_args()
    run_all(itertools.product(args.only, args.seeds), args, out_file(args, 'lm_sample'), ask, run, render)

if __name__ == '__main__': main()
