"""IMDB when all 75,000 reviews for training are read first, and 25,000, 1,000 or 100 of them have labels.

A transformer that reads forwards and one that reads backwards are language models before they are classifiers; one linear model counts words, another has the vectors of whole reviews (`TextVectors`).
These four are the teachers: together they label reviews that have no label, and students of the same kinds (of each transformer as many as `--students` says) learn from these and from the labelled ones. With
25,000 labels, 1,250 of them are held out, and say how much each kind counts. Every part is kept, and made once; `--parts` makes some of them, so that several processes can share the work. `--alone`
scores the transformer that reads forwards by itself, `--faster` reads in less time (with vectors of pairs and normalised queries). Adds a line to results/unlabelled.jsonl."""
import hashlib, pickle
from itertools import chain
from fastai.text.all import *
from fastai_txf.all import *
from fastai_txf.learn.counted import read_vocab
from fastai_txf.recipes.heldout import choose_shares
from fastai_txf.recipes.text_vectors import TextVectors, Triples
from fastai_txf.train.counting import feature_matrix, fit_linear
from common import *
from imdb import Guessed, Tokens, draw, held_out, lm_dls, make_vocab_of, number, read_tokens

SHAPE = dict(d_model=128, n_layers=2, positions='conv', max_len=256, scale_emb=True, emb_p=0.)
TEXT = dict(minutes=54, lr=6e-3, warmup=0.03, decay=0.97, wd=0.1, bs=8, seq_len=256, max_vocab=30_000, guessed=8000, chunk=512)
FASTER = dict(minutes=44), dict(qk_norm=True, bigrams=30_000) # instead, in `TEXT` and in `SHAPE`
LABELS = dict(bs=32, epochs=2, lr=[4.5e-4, 6.7e-4, 1e-3, 1.5e-3], wd=0.05, smoothing=0.1)
FEW = dict(LABELS, bs=16, lr=[3e-4, 4.4e-4, 6.7e-4, 1e-3], smoothing=0.)
STUDENT = dict(LABELS, epochs=1, smoothing=0., texts=40_000)
DROPOUT = dict(p=0.1, head_p=0.2, token_p=0.1, word_p=0.1)

def turned(tokens):
    "Backwards, but for the mark of the beginning."
    return tokens[:1] + tokens[:0:-1]

WAYS = dict(forwards=list, backwards=turned)
FOLDER = fastai_path('model')/'imdb_unlabelled'
warnings.filterwarnings('ignore', message='.*training set, too') # fastai wants something to validate on, and gets a labelled text again
SEP = '\x1f' # between the tokens of a text that is cut already
NAMES = 'neg','pos'

def file_of(*what): return FOLDER/f'{hashlib.md5(json.dumps(what).encode()).hexdigest()}.pth'

def kept(make, *what, now=True):
    "The dictionary that `make()` gives, and the core-minutes it took: made once for `what`. None if it is not there and shall not be made `now`."
    file = file_of(*what)
    if not file.exists():
        if not now: return None
        FOLDER.mkdir(parents=True, exist_ok=True)
        start = time.process_time()
        res = make()
        beside = file.with_suffix(f'.{os.getpid()}')
        torch.save({**res, 'minutes':(time.process_time()-start)/60}, beside)
        beside.replace(file)
        print(*what[:2], {k:v for k,v in torch.load(file).items() if isinstance(v, (int,float))}, flush=True)
    return torch.load(file)

HALF = '_bf16' in features() # whether the processor has units for bfloat16

def half(learn): return learn.to_bf16() if HALF else learn

# Reading

@functools.cache
def all_reviews(): return [ts for part in ('train','unsup') for ts,_ in read_tokens(part)]

@functools.cache
def vocab(): return make_vocab_of(all_reviews(), TEXT['max_vocab'])

def read(way):
    "A language model of all reviews read one `way`: its encoder's file, and what to say of it."
    file = file_of('encoder', way, TEXT, SHAPE)
    def make():
        seed = TEXT.get('seed', 0) + list(WAYS).index(way)
        ids = number([*map(WAYS[way], all_reviews())], vocab())
        set_seed(seed)
        dls,guessed = lm_dls(ids, vocab(), dict(TEXT, seed=seed)),Guessed(TEXT['guessed'])
        guessed.chunk = TEXT['chunk']
        learn = half(transformer_lm_learner(dls, 'default', metrics=[guessed.loss, guessed.accuracy], opt_func=muon, cbs=guessed, p=0., **SHAPE))
        emb = learn.model.encoder.emb.weight
        emb.data.copy_(count_vectors(ids, *emb.shape))
        rates = {k:TEXT[k] for k in ('warmup','decay','wd')}
        with learn.no_bar(): learn.fit_wsd(10, TEXT['lr'], cbs=core_minutes(TEXT['minutes']), **rates)
        learn.save_encoder(file)
        return dict(loss=learn.recorder.values[-1][-2], steps=len(learn.recorder.lrs))
    return file, kept(make, 'read', way, TEXT, SHAPE)

# Learning from labels

def loaders(way, labelled, bs):
    "The library's loaders of labelled reviews, as tokens."
    rows = [(SEP.join(WAYS[way](ts)), label, False) for ts,label in labelled]
    df = pd.DataFrame([*rows, (*rows[0][:2], True), (*rows[-1][:2], True)], columns=['text','label','valid']) # fastai wants something to validate on
    return TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='valid', tok_tfm=BaseTokenizer(SEP), rules=[], text_vocab=vocab(), bs=bs, n_workers=0, num_workers=0)

def classifier(way, labelled, how, seed, guessed=None):
    "A classifier with the encoder that has read; `guessed` are more texts and the probabilities of their labels."
    dls = loaders(way, labelled, how['bs'])
    if guessed: dls = add_pseudo_labels(dls, [SEP.join(WAYS[way](ts)) for ts in guessed[0]], guessed[1])
    set_seed(seed)
    learn = half(transformer_classifier_learner(dls, loss_func=SoftCrossEntropy(label_smoothing=how['smoothing']), metrics=[], **SHAPE, **DROPOUT))
    learn.load_encoder(read(way)[0], freeze=False)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(how['epochs'], how['lr'], wd=how['wd'])
    return learn

def outputs(learn, way, texts): return learn.outputs(number([*map(WAYS[way], texts)], vocab()))

def counted(labelled, seen):
    "What a linear model of counted words, pairs and triples says of the lists of texts `seen`."
    texts,labels = zip(*labelled)
    own = make_vocab(Counter(t for ts in texts for t in ts), min_freq=8 if len(texts) > 5000 else 1, max_vocab=60_000)
    wide = Triples(2**23, 2, len(own))
    read_vocab(wide, own)
    ids = number([ts for some in (texts, *seen) for ts in some], own)
    x,_ = feature_matrix(wide, ids)
    w,b = fit_linear(x[:len(texts)], np.array([NAMES.index(l) for l in labels]), 2)
    out = torch.tensor(x[len(texts):]@w + b, dtype=torch.float32)
    return out.split([*map(len, seen)])

VECTORS = dict(d=300, passes=5)

@functools.cache
def many_words(): return make_vocab_of(all_reviews(), 60_000)

def read_texts_as_vectors():
    "What gives reviews their vectors, learnt from all that are read: its file, and what to say of it."
    file = file_of('vectors', VECTORS).with_suffix('.pkl')
    def make():
        vectors = TextVectors(number(all_reviews(), many_words()), many_words(), **VECTORS)
        file.write_bytes(pickle.dumps(vectors))
        return dict(loss=vectors.losses[-1])
    return file, kept(make, 'vectors', VECTORS)

def by_vectors(labelled, seen):
    "What a linear model of the vectors of whole reviews says of the lists of texts `seen`."
    from sklearn.linear_model import LogisticRegression
    vectors = pickle.loads(read_texts_as_vectors()[0].read_bytes())
    texts,labels = zip(*labelled)
    x = vectors(number([*texts, *chain(*seen)], many_words())).numpy()
    model = LogisticRegression(max_iter=1000).fit(x[:len(texts)], [NAMES.index(l) for l in labels])
    out = torch.tensor(model.decision_function(x[len(texts):]), dtype=torch.float32)
    return torch.stack([-out/2, out/2], 1).split([*map(len, seen)])

LINEAR = dict(counted=counted, vectors=by_vectors)
READ = {**{w:partial(read, w) for w in WAYS}, 'vectors':read_texts_as_vectors}

def says(way, labelled, how, seed, seen, what, guessed, now):
    "The outputs of a classifier, or of a linear model, for the lists of texts `seen`."
    def make():
        if way in LINEAR: return dict(outs=LINEAR[way](labelled if guessed is None else sure(labelled, guessed), seen))
        learn = classifier(way, labelled, how, seed, guessed)
        return dict(outs=[outputs(learn, way, texts) for texts in seen])
    if now and way in READ: READ[way]() # before its labels: the minutes of reading stand apart
    return kept(make, 'says', dict(counted='triples', vectors=['vectors', VECTORS]).get(way, way), how, *what, now=now)

def sure(labelled, guessed):
    "`labelled`, and the guessed texts with their likelier label."
    return [*labelled, *((ts, NAMES[i]) for ts,i in zip(guessed[0], guessed[1].argmax(1).tolist()))]

MEMBERS = *WAYS,*LINEAR

def mean_of(runs):
    "What several of a kind say in the mean, and the minutes of all."
    return dict(outs=[torch.stack(o).mean(0) for o in zip(*(r['outs'] for r in runs))], minutes=sum(r['minutes'] for r in runs))

def team(members, labelled, how, seed, seen, what, guessed=None, n=1):
    "What each member says, a transformer in the mean of `n`; those of `members` are trained now. None as long as one is missing."
    seeds = dict.fromkeys(WAYS, range(seed, seed + 100*n, 100)) | dict.fromkeys(LINEAR, [seed])
    runs = {m:[says(m, labelled, how, s, seen, (what, s, TEXT, SHAPE), guessed, m in members) for s in seeds[m]] for m in MEMBERS}
    return None if any(None in o for o in runs.values()) else {m:mean_of(o) for m,o in runs.items()}

# With 25,000, with 1,000, with 100 labels

def share(out, targ): return 100*(out.argmax(1) == targ).float().mean().item()

def targets(items): return torch.tensor([NAMES.index(l) for _,l in items])

def deep(parts, i): return (parts['forwards']['outs'][i] + parts['backwards']['outs'][i])/2

class Joined:
    "A team as one: the linear models, then these and the transformers, by the shares with the lowest loss on the first list of texts; by the mean of probabilities where there are no targets for it."
    def __init__(self, parts, y=None):
        self.parts,self.shares = parts,None
        if y is None: return
        self.shares = [choose_shares(parts['vectors']['outs'][0], parts['counted']['outs'][0], y), (0,1)]
        self.shares[1] = choose_shares(deep(parts, 0), self.linear(0), y)

    def linear(self, i): return sum(s*self.parts[m]['outs'][i] for s,m in zip(self.shares[0], ('vectors','counted')))

    def probs(self, i):
        if self.shares is None: return torch.stack([p['outs'][i].softmax(1) for p in self.parts.values()]).mean(0)
        return (self.shares[1][0]*deep(self.parts, i) + self.shares[1][1]*self.linear(i)).softmax(1)

    def row(self, i, y, name):
        "How often each is right on list `i`, and what it took."
        alone = {f'{m}{name}':share(p['outs'][i], y) for m,p in self.parts.items()}
        each = {m:p['minutes'] for m,p in self.parts.items()}
        return {**alone, f'transformers{name}':share(deep(self.parts, i), y), f'accuracy{name}':share(self.probs(i), y), f'shares{name}':self.shares, f'minutes{name}':sum(each.values()), f'minutes of each{name}':each}

def split_off(items, numbers):
    "Those with the numbers, and the others."
    apart = {*numbers.tolist()}
    return [[o for i,o in enumerate(items) if (i in apart) == h] for h in (True,False)]

def data(n, seed, valid):
    "Labelled reviews, those held out of them (none if they are few), reviews without labels, and those that are scored: the test set, or 2,500 for training kept for choosing (`valid`)."
    train,rng = read_tokens('train'),np.random.RandomState(seed)
    whole = n == len(train)
    if valid: scored,train = split_off(train, held_out(1250))
    else: scored = read_tokens('test')
    if whole:
        held,rest = split_off(train, draw(train, 1250, seed) if valid else held_out(625))
        return rest, held, [ts for ts,_ in read_tokens('unsup')], scored
    chosen = draw(train, n, seed)
    known = {*chosen.tolist()}
    rest = [ts for i,(ts,_) in enumerate(train + read_tokens('unsup')) if i not in known]
    return [train[i] for i in chosen], [], [rest[i] for i in rng.permutation(len(rest))[:STUDENT['texts']]], scored

def how_of(n, held):
    "How `n` labels are learnt, some of them `held` out or none."
    return LABELS if held else dict(FEW, epochs=max(8, 2000//n))

def ask(n, seed, n_students=1, alone=False):
    "What one run is asked to do; a transformer `alone` has no team."
    recipe = dict(text=TEXT, shape=SHAPE, dropout=DROPOUT, labels=how_of(n, n == len(read_tokens('train'))))
    if not alone: recipe |= dict(counted=3, vectors=VECTORS) | (dict(student=STUDENT, students=n_students) if n_students else {})
    return dict(labels=n, seed=seed, recipe=recipe)

def run(n, seed, members, n_students=1, valid=False):
    "A row, without students that of their teachers; None as long as parts are missing."
    labelled,held,others,scored = data(n, seed, valid)
    how = how_of(n, held)
    y_held = targets(held) if held else None
    seen = [[ts for ts,_ in o] for o in ([held] if held else []) + [scored]]
    of = f'{n}{", valid"*valid}'
    teachers = team(members, labelled, how, seed, seen + [others]*(n_students > 0), f'{of}, {len(others)} more' if n_students else f'{of}, alone')
    if teachers is None: return None
    taught,at,told = Joined(teachers, y_held), len(seen)-1, {m:make()[1] for m,make in READ.items()}
    res = taught.row(at, targets(scored), ', taught')
    if n_students:
        students = team(members, labelled, STUDENT, seed, seen, ('student', of, len(others), how), (others, taught.probs(len(seen))), n_students)
        if students is None: return None
        res |= Joined(students, y_held).row(at, targets(scored), '')
    return {**ask(n, seed, n_students), **res, 'scored':len(scored), 'text_minutes':sum(t['minutes'] for t in told.values()), 'text_minutes_each':{m:t['minutes'] for m,t in told.items()}, 'text_loss':[t['loss'] for t in told.values()]}

def run_alone(n, seed, valid, way='forwards'):
    "The row of one transformer that has read, and learnt from labels."
    labelled,held,_,scored = data(n, seed, valid)
    how,told = how_of(n, held), read(way)[1]
    part = says(way, labelled, how, seed, [[ts for ts,_ in scored]], (n, 'alone', valid, seed, TEXT, SHAPE), None, True)
    return {**ask(n, seed, alone=True), f'{way}, taught':share(part['outs'][0], targets(scored)), 'minutes, taught':part['minutes'], 'scored':len(scored),
            'text_minutes':told['minutes'], 'text_loss':[told['loss']], 'text_steps':told['steps']}

def alike(a, b): return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)

def render(rows):
    "The results as markdown."
    cols = {'labels':'labels', 'seed':'seed', 'counted, tokens in a row':lambda r: r['recipe'].get('counted', 2) if 'counted, taught' in r else None, 'students':'accuracy', 'of each transformer':lambda r: r['recipe'].get('students', 1) if 'accuracy' in r else None, 'forwards':'forwards', 'backwards':'backwards', 'both':'transformers', 'counted words':'counted', 'vectors of reviews':'vectors', 'their teachers':'accuracy, taught',
            **{f'teachers: {k}':f'{v}, taught' for k,v in {'forwards':'forwards', 'backwards':'backwards', 'counted words':'counted', 'vectors of reviews':'vectors'}.items()},
            'loss of the language model':lambda r: r['text_loss'][0], 'core-minutes of reading':'text_minutes', 'of teachers':'minutes, taught', 'of students':'minutes'}
    return f'# IMDB, all reviews read first\n\nWritten by `python benchmarks/unlabelled.py --threads 1`. Accuracy on the 25,000 test reviews, in per cent, scored once at the end of each run. Minutes are the processor time of one core, all predictions included; the two language models and the vectors are made once. Rows with one transformer alone: `--alone`, read in less time `--alone --faster`.\n\n{table(rows, cols)}\n{ran_with(rows)}'

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--labels', nargs='+', type=int, default=[25_000,1000,100])
    p.add_argument('--seeds', nargs='+', type=int, default=[0])
    p.add_argument('--parts', nargs='+', choices=MEMBERS, default=list(MEMBERS), help='members to make now')
    p.add_argument('--students', type=int, default=1, help='of each transformer; 0: the teachers alone')
    p.add_argument('--alone', action='store_true', help='the transformer that reads forwards by itself, without a team')
    p.add_argument('--faster', action='store_true', help='read in less time, with vectors of pairs and normalised queries')
    p.add_argument('--reader', type=int, default=0, help='seed of what is read first')
    p.add_argument('--valid', action='store_true', help='score 2,500 reviews that are kept back, for choosing; the row is printed, not recorded')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.faster:
        for old,new in zip((TEXT,SHAPE), FASTER): old.update(new)
    if args.reader: TEXT['seed'] = args.reader
    file = HERE/'results/unlabelled.jsonl'
    for labels in args.labels:
        for seed in args.seeds:
            asked = ask(labels, seed, args.students, args.alone)
            if not args.valid and any(alike(asked, {k:r[k] for k in asked}) for r in read_rows(file)):
                print('done before:', labels, 'labels, seed', seed)
                continue
            row = run_alone(labels, seed, args.valid) if args.alone else run(labels, seed, args.parts, args.students, args.valid)
            if row and args.valid: print(json.dumps(row))
            elif row: add_row(file, {**row, 'env':MALLOC if 'MALLOC_TRIM_THRESHOLD_' in os.environ else {}, **about(args.threads)})
    if file.exists(): file.with_suffix('.md').write_text(render(read_rows(file)))

if __name__ == '__main__': main()
