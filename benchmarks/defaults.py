"""What `transformer_lm_learner` should take where nothing is asked: shapes, optimizers and rates, each for the same processor time on four kinds of text.

Every run is `transformer_lm_learner(dls)` and one `fit_one_cycle` by the clock of the process; the loss is over all validation tokens. What was run before is not run again."""
import itertools
from fastai.text.all import *
from fastai_txf.all import *
from common import *

BS,SEQ_LEN = 16,128
SHAPES = dict(default=dict(config='default'), modern=dict(config='modern'), dropout=dict(config='modern', p=0.1, emb_p=0.1), bigrams=dict(config='modern', bigrams=10_000))
OPTS = dict(adamw=adamw, muon=muon)
BATCHES = dict(full=None, short=dict(), half=dict(warmup=0.5), few=dict(seq_len=None, bs=BS//8))
TITLES = dict(characters='characters (tinyshakespeare)', pieces='2,000 byte pairs (docstrings of packages)', words='words (5,000 IMDB reviews)', captions='words (29,000 captions, Multi30k)')
GROWS = dict(full='full from the start', short='16 tokens a row at first, full after 0.3 of the time', half='the same, full after half of it', few=f'{BS//8} rows at first, full after 0.3 of it')
WHAT = dict(default='preset `default`', modern='preset `modern`', dropout='`modern`, dropout 0.1', bigrams='`modern`, `bigrams=10_000`')

def shakespeare(): return [[t] for t in read_shakespeare()], CharTokenizer(), dict(starts=False)

def packages():
    df = docstrings_df(('numpy','pandas','sklearn','torch'), max_per_class=5000, max_words=None)
    return [list(df.text[~df.is_valid]), list(df.text[df.is_valid])[::4]], BPETokenizer(2000), {}

def reviews():
    files = [f for label in ('neg','pos') for f in sorted((untar_data(URLs.IMDB)/'train'/label).glob('*.txt'))]
    texts = [f.read_text(encoding='utf8') for f in files[::5]]
    return [texts[:-400], texts[-400:]], FastSpacyTokenizer(), dict(max_vocab=10_000)

def captions():
    path = fastai_path('data')/'multi30k'
    return [(path/f'{part}.en').read_text(encoding='utf8').splitlines() for part in ('train','val')], FastSpacyTokenizer(), {}

SETS = dict(characters=shakespeare, pieces=packages, words=reviews, captions=captions)

@functools.cache
def loaders(name):
    texts,tok,kw = SETS[name]()
    return LMDataLoaders.from_texts(*texts, tok_tfm=tok, bs=BS, seq_len=SEQ_LEN, windows='random', **kw)

KEY = 'set','shape','opt','lr','seed','minutes','batches'
FIRST = 0.75 # minutes of a run that compares presets and optimizers
GROWN = dict(shape='modern', opt='muon', lr=0.01) # what batches that grow are compared with, for other minutes

def run(row):
    "`row` with what came out."
    set_seed(row['seed'])
    learn = transformer_lm_learner(loaders(row['set']), opt_func=OPTS[row['opt']], **SHAPES[row['shape']])
    count,grows = Count(),BATCHES[row['batches']]
    cbs = [core_minutes(row['minutes']), count] + ([BatchWarmup(**grows)] if grows is not None else [])
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(10_000, row['lr'], cbs=cbs)
        loss = learn.validate()[0]
    return dict(**row, loss=round(float(loss), 4), tokens=count.tokens, params=n_params(learn.model), **about(1))

def lines_of(groups, names):
    "A row of a table for each group, with the losses on each text."
    for key,rs in sorted(groups.items()):
        losses = {s:[r['loss'] for r in rs if r['set'] == s] for s in SETS}
        yield dict(zip(names, key)) | {s:', '.join(f'{l:.3f}' for l in ls) or None for s,ls in losses.items()}

def render(rows):
    "The results as markdown."
    texts = {t:s for s,t in TITLES.items()}
    short = [r for r in rows if r['minutes'] == FIRST and r.get('batches', 'full') == 'full']
    first,pairs = (groupby([r for r in short if (r['seed'] > 0) == later], lambda r: (r['shape'],r['opt'],r['lr'])) for later in (False,True))
    cols = {'model':lambda r: WHAT[r['shape']], 'optimizer':'opt', 'largest rate':lambda r: f"{r['lr']:g}", **texts}
    res = f"# What a language model learner takes by itself\n\nWritten by `python benchmarks/defaults.py`. Validation loss a token. Width 128, 2 layers, batches of {BS} × {SEQ_LEN} tokens, so many core-minutes of `fit_one_cycle` each, one thread.\n" \
          f"\n## Presets and optimizers, 0.75 core-minutes\n\n{table([*lines_of(first, ('shape','opt','lr'))], cols)}"
    if pairs: res += f"\n## Pairs of tokens, seeds 1 and 2, beside the same without them on the same processor\n\n{table([*lines_of(pairs, ('shape','opt','lr'))], cols)}"
    grown = groupby([r for r in rows if r['minutes'] != FIRST and all(r[k] == v for k,v in GROWN.items())], lambda r: (r['minutes'],r['batches']))
    cols = {'core-minutes':lambda r: f"{r['minutes']:g}", 'batches':lambda r: GROWS[r['batches']], **texts}
    if grown: res += f"\n## Batches that grow (`BatchWarmup`): preset `modern`, `muon`, a largest rate of 0.01\n\n{table([*lines_of(grown, ('minutes','batches'))], cols)}"
    return f'{res}\n{ran_with(rows, env=None)}'

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--sets', nargs='+', default=list(SETS), choices=SETS)
    p.add_argument('--shapes', nargs='+', default=['default','modern','dropout'], choices=SHAPES)
    p.add_argument('--opts', nargs='+', default=list(OPTS), choices=OPTS)
    p.add_argument('--lrs', nargs='+', type=float, default=[1e-3,3e-3,1e-2])
    p.add_argument('--batches', nargs='+', default=['full'], choices=BATCHES)
    p.add_argument('--seeds', nargs='+', type=int, default=[0])
    p.add_argument('--minutes', type=float, default=FIRST, help='of the processor, for each run; fewer are only tried unless --out is given')
    p.add_argument('--out', type=Path, default=None, help='folder of the results')
    args = p.parse_args()
    torch.set_num_threads(1)
    file = None if args.minutes < FIRST and not args.out else (args.out or HERE/'results')/'defaults.jsonl'
    for seed,name,shape,opt,lr,batches in itertools.product(args.seeds, args.sets, args.shapes, args.opts, args.lrs, args.batches):
        row = dict(set=name, shape=shape, opt=opt, lr=lr, seed=seed, minutes=args.minutes, batches=batches)
        if any(all({'batches':'full', **r}[k] == row[k] for k in KEY) for r in read_rows(file)): continue
        row = run(row)
        print(json.dumps({k:row[k] for k in (*KEY,'loss','tokens')}), flush=True)
        if file: add_row(file, row)
    if file: file.with_suffix('.md').write_text(render(read_rows(file)))

if __name__ == '__main__': main()
