"""Small labelled sets of one-sentence texts: the same calls, with the same arguments, on all of them, beside a linear model and AWD_LSTM.

`--data` is a folder with TREC questions (`trec.train.txt.gz`, `trec.test.txt.gz`), customer reviews (`custrev`), opinions (`mpqa`) and subjectivity
(`subj`): a label and a sentence a line, as in the files of Kim (2014). TREC has a test set; of the others a tenth, another one for each seed, is scored
once; with `--sets custrev/10 mpqa/10 subj/10 --seeds 0 1 2 3 4 5 6 7 8 9`, each of ten tenths in turn. AWD_LSTM and the transformer alone get the processor time that the plain call has taken of the same rows. `--sets imdb` takes IMDB's reviews from where fastai keeps its data; of its test reviews AWD_LSTM is scored on 2,000.
`--sets speakers names packages` takes texts of other kinds, a third of them to score: who speaks in tinyshakespeare (the twenty who speak most), what kind of thing a name is (the entities of
CoNLL-2003's training sentences), and which package a docstring is from. `--sets imdb1000 imdb100` takes so many of IMDB's reviews, and
`best_classifier` gets 20,000 reviews without labels beside them. Each candidate, set and seed runs in a process of its own and adds a line to results/sets.jsonl; what is there already is not run again."""
import gzip
from fastai.text.all import *
from fastai_txf.all import *
from fastai_txf.text.special import leading_space
from fastai_txf.train.counting import fit_linear
from common import *

SETS = dict(trec='TREC questions', custrev='customer reviews', mpqa='opinions (MPQA)', subj='subjectivity')
LARGE = dict(imdb='IMDB, 25,000 labels')
OTHER = dict(speakers='speakers (tinyshakespeare)', names='names (CoNLL-2003)', packages='docstrings by package')
FEW = dict(imdb1000='IMDB, 1,000 labels', imdb100='IMDB, 100 labels')
TENTHS = {f'{k}/10':SETS[k] for k in ('custrev','mpqa','subj')}
PUBLISHED = {'NB-SVM, bigrams ([Wang & Manning 2012](https://aclanthology.org/P12-2018/))':dict(custrev=81.8, mpqa=86.3, subj=93.2, imdb=91.22),
             'CNN-rand ([Kim 2014](https://arxiv.org/abs/1408.5882)), as printed':dict(trec=91.2, custrev=79.8, mpqa=83.4, subj=89.6)}
MINUTES = 1.5 # of the clock, for the plain call
AWD_RATE = 2e-3
MOST = 2000 # reviews that AWD_LSTM is scored on: 25,000 would take it more than an hour
NO_WIDE = dict(wide=None, wide_words=False, wide_letters=False)

def read(data, name):
    "Texts and labels of a file."
    rows = [l.rstrip('\n').partition(' ') for l in gzip.open(data/f'{name}.txt.gz', 'rt', errors='replace')]
    return pd.DataFrame(dict(text=[t for _,_,t in rows], label=[l.partition(':')[0] for l,_,_ in rows]))

def reviews(part):
    "The reviews of IMDB's 'train' or 'test'."
    found = [(f.read_text(encoding='utf8'), l) for l in ('neg','pos') for f in sorted((untar_data(URLs.IMDB)/part/l).glob('*.txt'))]
    return pd.DataFrame(found, columns=['text','label'])

def without_labels(seed, n=20_000):
    "So many reviews that nobody has labelled."
    files = sorted((untar_data(URLs.IMDB)/'unsup').glob('*.txt'))
    return [files[i].read_text(encoding='utf8') for i in np.random.default_rng(seed).permutation(len(files))[:n]]

def speeches():
    "Who speaks, and what: the twenty who do so most often."
    parts = [o.partition(':\n') for o in ''.join(read_shakespeare()).split('\n\n')]
    df = pd.DataFrame([(t.replace('\n', ' '), who) for who,_,t in parts if t.strip()], columns=['text','label'])
    return df[df.label.isin(df.label.value_counts().index[:20])]

def entities():
    "The names in CoNLL-2003's training sentences, and their kinds."
    file = fastai_path('data')/'conll2003'/'train.txt'
    if not file.exists(): raise FileNotFoundError(f'{file} is missing: put the training sentences of CoNLL-2003 there, a token and its tag a line')
    rows,words = [],[]
    for token,*_,tag in (l.split() or ['','O'] for l in file.read_text(encoding='utf8').splitlines()):
        if words and not tag.startswith('I-'): rows,words = [*rows, (' '.join(words), kind)], []
        if tag != 'O': words,kind = [*words, token], tag[2:]
    return pd.DataFrame(rows, columns=['text','label'])

def packages():
    "Docstrings of 20 words and more, the first 40 of them, and whose they are."
    return docstrings_df(max_per_class=400, max_words=40)[['text','label']]

KINDS = dict(speakers=speeches, names=entities, packages=packages)

def load(data, name, seed):
    "Training rows and the rows to score."
    if name in OTHER:
        df = KINDS[name]().drop_duplicates('text').sample(frac=1, random_state=seed)[:4000]
        n = len(df)//3
        return df[n:].reset_index(drop=True), df[:n].reset_index(drop=True)
    if name == 'imdb': return tuple(reviews(part) for part in ('train','test'))
    if name in FEW:
        train,test = load(data, 'imdb', seed)
        return train.groupby('label').sample(int(name[4:])//2, random_state=seed).reset_index(drop=True), test
    if name == 'trec': return read(data, 'trec.train'), read(data, 'trec.test')
    df,n = read(data, name.removesuffix('/10')), 10
    order = np.random.default_rng(0 if name in TENTHS else seed).permutation(len(df))
    size = len(df)//n
    held = np.array_split(order, n)[seed] if name in TENTHS else order[:size]
    rest = order[~np.isin(order, held)]
    return df.iloc[rest].reset_index(drop=True), df.iloc[held].reset_index(drop=True)

def few(df, n):
    "So many rows, drawn at random, or all."
    return df if n is None or len(df) <= n else df.sample(n, random_state=0).reset_index(drop=True)

def loaders(train, seed, cls=TextDataLoaders):
    "fastai's loaders of the training rows, a tenth of them for validation; or this library's."
    return cls.from_df(train, text_col='text', label_col='label', valid_pct=0.1, seed=seed, bs=64)

def scored(learn, test):
    "The share of the test rows that are right."
    return 100*float(np.mean([a == b for a,b in zip(learn.predict(test.text.tolist())[0], test.label)]))

# Candidates: the test accuracy

def bigrams(train, test, seed):
    "NB-weighted logistic regression on the words and pairs that stand between blanks."
    from sklearn.feature_extraction.text import CountVectorizer
    count = CountVectorizer(token_pattern=r'\S+', ngram_range=(1,2), binary=True, dtype=np.float64)
    names,y = np.unique(train.label, return_inverse=True)
    w,b = fit_linear(count.fit_transform(train.text), y, len(names))
    return 100*float((names[(count.transform(test.text)@w + b).argmax(1)] == test.label).mean())

def counted(train, test, seed, pieces=False, letters=True, C=1., power=1.):
    "The wide path alone: words or pieces, pairs, and letters."
    kw = dict(tok_tfm=BPETokenizer(2000), rules=[leading_space]) if pieces else dict(min_freq=1)
    dls = TransformerDataLoaders.from_df(train, text_col='text', label_col='label', valid_pct=0, bs=64, **kw)
    learn = transformer_classifier_learner(dls, 'auto', wide_letters=letters)
    learn.count_wide(C, (0.,1.), power)
    return scored(learn, test)

def default(train, test, seed, **kwargs):
    learn = transformer_classifier_learner(loaders(train, seed, **kwargs), metrics=accuracy)
    with learn.no_bar(), learn.no_logging(): learn.fit_minutes(MINUTES)
    return scored(learn, test)

def deep(train, test, seed, minutes):
    learn = transformer_classifier_learner(loaders(train, seed), 'auto', **NO_WIDE, metrics=accuracy)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(10_000, cbs=core_minutes(minutes))
    return scored(learn, test)

def awd(train, test, seed, minutes):
    dls = loaders(train, seed)
    learn = text_classifier_learner(dls, AWD_LSTM, pretrained=False, metrics=accuracy)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(10_000, AWD_RATE, cbs=core_minutes(minutes))
    if len(test) > MOST: test = test.sample(MOST, random_state=seed)
    dl = dls.test_dl(test.text.tolist())
    with learn.no_bar(): preds = learn.get_preds(dl=dl)[0]
    return 100*float((np.array(dls.vocab[1])[preds.argmax(1).numpy()] == test.label).mean())

def best(train, test, seed, unlabelled=None):
    learn = best_classifier(train, unlabelled=unlabelled, minutes=10, seed=seed)
    return scored(learn, test)

CANDIDATES = dict(bigrams=bigrams, words=partial(counted, letters=False), letters=counted, pieces=partial(counted, pieces=True, letters=False),
                  both=partial(counted, pieces=True), runs=partial(counted, pieces=True, letters=5), rare=partial(counted, pieces=True, C=100., power=None), default=default,
                  known=partial(default, cls=TransformerDataLoaders), deep=deep, awd=awd, best=best)
BESIDE = 'deep','awd' # these get the processor time of the plain call
NAMES = dict(bigrams='linear: NB-weighted words and pairs', default=f'`transformer_classifier_learner(dls).fit_minutes({MINUTES})`',
             known='the same of `TransformerDataLoaders`, which keep rare words',
             words='a wide path alone: words and pairs', letters='and runs of four letters', pieces='wide path alone: pieces, words of them, pairs',
             both='and runs of four letters', runs='and runs of three to five letters', rare='these weighted by rarity, in vectors of length 1', deep='the transformer of the plain call alone, in the same processor time',
             awd='`text_classifier_learner(AWD_LSTM, pretrained=False)`, likewise',
             best='`best_classifier(df, minutes=10)`')

# Runs and the table

def run(candidate, name, seed, args):
    "A row of results."
    torch.set_num_threads(args.threads)
    train,test = (few(df, args.n) for df in load(args.data, name, seed))
    set_seed(seed)
    start = time.process_time()
    more = {}
    if candidate in BESIDE:
        file = out_file(args, 'sets')
        plain = [r for r in read_rows(file) if (r['candidate'],r['set'],r['seed']) == ('default',name,seed)]
        if file and not plain: raise SystemExit(f'{candidate} gets the time of the plain call: run default on {name}, seed {seed}, first')
        more['minutes'] = plain[-1]['core-minutes'] if file else MINUTES
    if candidate == 'best' and name in FEW: more['unlabelled'] = without_labels(seed)
    acc = CANDIDATES[candidate](train, test, seed, **more)
    return {'candidate':candidate, 'set':name, 'seed':seed, 'accuracy':acc, 'core-minutes':(time.process_time()-start)/60, **about(args.threads)}

def render(rows):
    "The results as markdown."
    def mean(c, s, key='accuracy'):
        found = [r[key] for r in rows if r['candidate'] == c and r['set'] == s]
        return statistics.fmean(found) if found else None
    def line(c):
        row = {'candidate':NAMES[c]}
        for s in {**SETS, **LARGE}:
            n = sum(r['candidate'] == c and r['set'] == s for r in rows)
            if n: row[s] = f"{mean(c, s):.1f} ({n} run{'s'*(n > 1)}, {mean(c, s, 'core-minutes'):.1f})"
        accs = [mean(c, s) for s in SETS]
        return {**row, 'mean':None if None in accs else statistics.fmean(accs)}
    lines = [line(c) for c in CANDIDATES if any(r['candidate'] == c for r in rows)]
    folds = [{'candidate':NAMES[c], **{s:f"{mean(c, s):.1f} ({mean(c, s, 'core-minutes'):.1f})" for s in TENTHS if sum((r['candidate'],r['set']) == (c,s) for r in rows) == 10}} for c in CANDIDATES]
    folds = [o for o in folds if len(o) > 1]
    folds += [{'candidate':f'published: {k}', **{f'{s}/10':a for s,a in v.items()}} for k,v in PUBLISHED.items() if folds]
    others = [{'candidate':NAMES[c], **{s:f"{mean(c, s):.1f} ({n})" for s in OTHER if (n := sum((r['candidate'],r['set']) == (c,s) for r in rows))}} for c in CANDIDATES]
    others = [o for o in others if len(o) > 1]
    few = [{'candidate':NAMES[c], **{s:f"{mean(c, s):.1f} ({n}, {mean(c, s, 'core-minutes'):.1f})" for s in FEW if (n := sum((r['candidate'],r['set']) == (c,s) for r in rows))}} for c in CANDIDATES]
    few = [o for o in few if len(o) > 1]
    lines += [{'candidate':f'published: {k}', **v} for k,v in PUBLISHED.items()]
    cols = {'candidate':'candidate', **{t:s for s,t in SETS.items()}, 'mean of the four':'mean', **{t:s for s,t in LARGE.items()}}
    return ('# Small labelled sets, test accuracy in per cent\n\nWritten by `python benchmarks/sets.py --data FOLDER --threads 1`. In brackets: runs, each with another seed, and core-minutes of a run, '
            'the processor time from data frame to last prediction, without that of a loader\'s workers. AWD_LSTM is scored on 2,000 of the test reviews of IMDB. Nothing was chosen on the test parts; what the calls do by default was chosen on fifths of the training parts.\n\n'
            + table(lines, cols) + '\n'
            + (f"All ten tenths, each scored once by what was trained on the other nine (`--sets {' '.join(TENTHS)} --seeds {' '.join(map(str, range(10)))}`):\n\n{table(folds, {'candidate':'candidate', **{t:s for s,t in TENTHS.items()}})}\n" if folds else '')
            + (f"Texts of other kinds, a third of them scored; in brackets the number of runs (`--sets {' '.join(OTHER)}`):\n\n{table(others, {'candidate':'candidate', **{t:s for s,t in OTHER.items()}})}\n" if others else '')
            + (f"A few of IMDB's reviews, and 20,000 without labels for `best_classifier(df, unlabelled=texts, minutes=10)` alone; all test reviews are scored; in brackets runs and core-minutes (`--sets {' '.join(FEW)}`):\n\n{table(few, {'candidate':'candidate', **{t:s for s,t in FEW.items()}})}\n" if few else '')
            + ran_with(rows, env=None))

def main():
    p = options(__doc__, CANDIDATES, recipes=False)
    p.add_argument('--data', type=Path, required=True, help='folder of the sets')
    p.add_argument('--sets', nargs='+', choices=[*SETS,*LARGE,*FEW,*OTHER,*TENTHS], default=list(SETS))
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1,2])
    args = p.parse_args()
    file = out_file(args, 'sets')
    for seed in args.seeds:
        for name in args.sets:
            for c in args.only:
                if args.child:
                    print(json.dumps(row := run(c, name, seed, args)))
                    return add_row(file, row) if file else None
                if any((r['candidate'],r['set'],r['seed']) == (c,name,seed) for r in read_rows(file)): continue
                print(f'== {c}, {name}, seed {seed}', flush=True)
                subprocess.run([sys.executable, *sys.argv, '--child', '--only', c, '--sets', name, '--seeds', str(seed)], check=True)
    if file: file.with_suffix('.md').write_text(render(read_rows(file)))

if __name__ == '__main__': main()
