"""IMDB's training reviews from text to token ids, and batches for a language model from a corpus of any size.

Each candidate and round runs in a process of its own and adds a line to results/tokenizing.jsonl; what is there already is not run again.
(The standard library has a module `tokenize`, which torch imports: a script of that name would stand in its place for all scripts of this folder.)"""
import itertools, os, random, resource, string, time
from functools import partial
from fastai.text.all import *
from fastai_txf.all import *
from common import *

TEXTS = dict(fastai=dict(model={}), spacy_plain=dict(model={}), spacy=dict(model={}), bpe=dict(model=dict(vocab_sz=8000)), bpe_trained=dict(model=dict(vocab_sz=8000)), chars=dict(model={}))
LOADERS = {f'{kind}_{n}M':dict(bs=64, seq_len=72, batches=200, model={}) for n in (1,10,100) for kind in ('lm','flat','random')}
STREAMS = {f'stream_{k}':dict(passes=k, model={}) for k in (1,4,8,16)}
RECIPES = {**TEXTS, 'short_chars':dict(model={}), **STREAMS, **LOADERS}

NAMES = dict(fastai="fastai's default: `tokenize_df` with spaCy, `Numericalize`", spacy_plain="`FastSpacyTokenizer` in fastai's `tokenize_df`, `Numericalize`", spacy='`FastSpacyTokenizer` in `LMDataLoaders`',
             bpe='`BPETokenizer`, training included', bpe_trained='`BPETokenizer`, trained before', chars='`CharTokenizer`', short_chars='50,000 strings of 10 to 40 characters: `LMDataLoaders` and an epoch')
KINDS = dict(lm="fastai's `LMDataLoader`", flat='`FlatLMDataLoader`', random="`FlatLMDataLoader`, windows='random'")

# Texts to ids

def files(n):
    "The files of the first `n` training reviews of a fixed shuffle."
    path = untar_data(URLs.IMDB)/'train'
    res = sorted(f for label in ('neg','pos') for f in (path/label).glob('*.txt'))
    random.Random(0).shuffle(res)
    return res[:n]

def reviews(n): return [f.read_text(encoding='utf8') for f in files(n)]

def by_fastai(texts, tok=None):
    "fastai's way, on as many processes as it takes by default; how many tokens."
    df,count = tokenize_df(pd.DataFrame(dict(text=texts)), 'text', tok=tok)
    num = Numericalize(make_vocab(count))
    return sum(len(num(o)) for o in df.text)

def by_ours(texts, tok): return len(LMDataLoaders.from_texts(texts, tok_tfm=tok, bs=1).train_ds.flat.ids)

def prepare(name, texts, kw):
    "What is timed: a function that returns the number of tokens."
    if name == 'fastai': return partial(by_fastai, texts)
    if name == 'spacy_plain': return partial(by_fastai, texts, FastSpacyTokenizer())
    tok = FastSpacyTokenizer() if name == 'spacy' else CharTokenizer() if name == 'chars' else BPETokenizer(**kw)
    return partial(by_ours, texts, tok.train(texts) if name == 'bpe_trained' else tok)

def by_stream(n, passes): return len(LMDataLoaders.from_files(files(n)*passes, tok_tfm=CharTokenizer(), bs=1).train_ds.flat.ids)

def same_tokens(texts):
    "How many of `texts` `FastSpacyTokenizer` cuts as fastai does, to the token."
    return sum(a == list(b) for a,b in zip(FastSpacyTokenizer().tokenize(texts), TokenizeWithRules(SpacyTokenizer())(texts)))

# Batches

def corpus(n):
    "`n` ids in texts of 300."
    ids = np.random.default_rng(0).integers(3, 30_000, n, dtype=np.int32)
    return FlatTexts(FlatIds(ids, np.arange(300, n+300, 300).clip(max=n)), [Numericalize(['xxunk','xxpad','xxbos'])])

def by_loader(kind, n, bs, seq_len, batches):
    "Seconds until the first batch, and milliseconds for each of those that follow. fastai's loader is given the ids and the lengths: it has nothing to number."
    texts = corpus(n)
    start = time.perf_counter()
    if kind == 'lm': dl = LMDataLoader(texts, lens=np.diff(texts.flat.ends, prepend=0).tolist(), bs=bs, seq_len=seq_len, shuffle=True)
    else: dl = FlatLMDataLoader(texts, bs=bs, seq_len=seq_len, shuffle=True, windows='random' if kind == 'random' else 'continuous')
    it = iter(dl)
    next(it)
    first = time.perf_counter()
    made = len(list(itertools.islice(it, batches)))
    return dict(start_s=round(first-start, 3), batch_ms=round(1000*(time.perf_counter()-first)/made, 3))

def short_chars():
    "Seconds for loaders of many short strings, and for all their batches."
    rng = random.Random(0)
    texts = [''.join(rng.choices(string.ascii_lowercase + ' ', k=rng.randint(10, 40))) for _ in range(50_000)]
    start = time.perf_counter()
    dls = LMDataLoaders.from_texts(texts, tok_tfm=CharTokenizer())
    made = time.perf_counter()
    for _ in dls.train: pass
    return dict(seconds=round(time.perf_counter()-start, 2), loaders_s=round(made-start, 2), tokens=len(dls.train_ds.flat.ids))

# Runs

def ask(name, seed, args):
    "What one run is asked to do."
    return dict(candidate=name, split='train', seed=seed, asked=args.texts if name in TEXTS or name in STREAMS else None, n=args.n, recipe=change(RECIPES[name], args.set))

def peak_mb():
    "The most memory that this process, or the largest of its own, has held."
    return round(max(peak(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss/1024))

def spent():
    "Processor seconds of this process and those that it has waited for."
    return sum(os.times()[:4])

def run(name, seed, args):
    "Time one candidate; the row for the results."
    torch.set_num_threads(args.threads)
    row = ask(name, seed, args)
    r = row['recipe']
    if name in TEXTS:
        texts = reviews(args.n or args.texts)
        job,before,start,cpu_start = prepare(name, texts, r['model']), peak_mb(), time.perf_counter(), spent()
        tokens = job()
        seconds,cpu_s = time.perf_counter()-start,spent()-cpu_start
        res = dict(texts=len(texts), tokens=tokens, seconds=round(seconds, 2), cpu_s=round(cpu_s, 2), texts_per_s=round(len(texts)/seconds), before_mb=before, peak_mb=peak_mb())
        if name == 'spacy': res['same'] = f'{same_tokens(texts[:args.check]):,} of {len(texts[:args.check]):,}'
    elif name in STREAMS:
        before,start = peak_mb(), time.perf_counter()
        tokens = by_stream(args.n or args.texts, r['passes'])
        res = dict(passes=r['passes'], tokens=tokens, seconds=round(time.perf_counter()-start, 2), before_mb=before, peak_mb=peak_mb())
    elif name in LOADERS:
        kind,size = name.split('_')
        res = by_loader(kind, int(size[:-1])*10**6, **{k:v for k,v in r.items() if k != 'model'})
        res['peak_mb'] = peak_mb()
    else: res = {**short_chars(), 'peak_mb':peak_mb()}
    return {**row, **res, **about(args.threads, 'tokenizers')}

# Results

def times_fastai(row, rows, key):
    "fastai's time in the same round by that of `row`."
    base = [r[key] for r in rows if r['candidate'] == 'fastai' and all(r[k] == row[k] for k in ('seed','asked','n'))]
    return f"{base[0]/row[key]:.1f}" if base and row[key] else None         # of a few texts the time may be 0.00

def render(rows):
    "The results as markdown."
    of = lambda names: [r for r in rows if r['candidate'] in names]
    cols = {'candidate':lambda r: NAMES[r['candidate']] + tried(r), 'round':'seed', 'texts':'texts', 'tokens':'tokens', 'seconds':'seconds', 'texts/s':'texts_per_s', "times fastai's rate":lambda r: times_fastai(r, rows, 'seconds'),
            'processor seconds':'cpu_s', "fastai's by these":lambda r: times_fastai(r, rows, 'cpu_s'), 'MB at the start':'before_mb', 'MB at the most':'peak_mb', "texts with fastai's tokens":'same'}
    streaming = {'times over':'passes', 'round':'seed', 'tokens':'tokens', 'seconds':'seconds', 'MB at the start':'before_mb', 'MB at the most':'peak_mb'}
    loading = {'loader':lambda r: KINDS[r['candidate'].split('_')[0]], 'tokens':lambda r: r['candidate'].split('_')[1], 'round':'seed', 'seconds to the first batch':'start_s', 'ms a batch':lambda r: f"{r['batch_ms']:.3f}", 'MB at the most':'peak_mb'}
    res = "# Texts to token ids, ids to batches\n\nWritten by `python benchmarks/tokenizing.py`. IMDB's training reviews, tokenized and numbered with a vocabulary counted in them (byte pairs: learned); candidates take turns, each in a fresh process. "
    res += f"The memory is that of the largest process.\n\n{table(of(TEXTS), cols)}\n"
    res += ''.join(f"{NAMES[r['candidate']]}: {r['seconds']} s, {r['loaders_s']} s of it for the loaders ({r['tokens']:,} tokens, round {r['seed']}).\n" for r in of(['short_chars']))
    res += f"\n## The same files read several times over, characters: `LMDataLoaders.from_files`\n\nIds stay in memory up to 134 million (512 MB), beyond that they go to a file, whose pages count while they are in memory.\n\n{table(of(STREAMS), streaming)}"
    res += f"\n## Batches of 64 × 72 tokens, synthetic ids in texts of 300, shuffled\n\n{table(of(LOADERS), loading)}\n{ran_with(rows)}"
    return res

def main():
    p = options(__doc__, RECIPES)
    p.add_argument('--texts', type=int, default=25_000, help='reviews')
    p.add_argument('--check', type=int, default=2_000, help='reviews whose tokens are compared with fastai\'s')
    p.add_argument('--seeds', nargs='+', type=int, default=[0, 1], help='rounds')
    args = p.parse_args()
    run_all([(name, seed) for seed in args.seeds for name in args.only], args, out_file(args, 'tokenizing'), ask, run, render)

if __name__ == '__main__': main()
