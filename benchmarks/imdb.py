"""IMDB reviews: this library's classifier, from labels only and pretrained on the training and the unlabelled reviews, beside three others from labels only.

Ours from labels only trains for two epochs, the two peers from labels only for minutes, on the same tokens. The language model is pretrained once and kept. Each candidate and seed runs in a process
of its own and adds a line to results/imdb.jsonl; what is there already is not run again."""
import hashlib, pickle, sys
from fastai.text.all import *
from fastai_txf.all import *
from common import *

TEXT = dict(objective='lm', counted=True, epochs=2, lr=3e-3, bs=8, seq_len=256, max_vocab=30_000, guessed=8000, seed=0,
            model=dict(d_model=128, n_layers=2, positions='conv', max_len=256, scale_emb=True, p=0., emb_p=0.))

RECIPES = dict(
    pretrained=dict(text=TEXT, epochs=2, lr=[4.5e-4, 6.7e-4, 1e-3, 1.5e-3], bs=32, min_freq=8, max_vocab=30_000, fit=dict(wd=0.05), score=None,
                  model=dict(d_model=128, n_layers=2, positions='conv', max_len=256, scale_emb=True, p=0.1, emb_p=0., head_p=0.2, token_p=0.1, word_p=0.1, label_smoothing=0.1)),
    txf     =dict(epochs=2, lr=[1.5e-3, 1.5e-4, 1.5e-3], bs=32, min_freq=8, max_vocab=30_000, fit=dict(wd=[0.3, 1., 1.]), score=None,
                  model=dict(config='reviews', label_smoothing=0.1)), # learning rates and weight decays: embeddings, block, head
    workshop=dict(lr=5e-4, bs=32, min_freq=3, max_vocab=30_000, fit={}, score=5000, model=dict(k=256, heads=8, depth=4, max_len=256)),
    awd     =dict(lr=5e-3, bs=32, min_freq=3, max_vocab=30_000, fit={}, score=5000, model=dict(drop_mult=0.5)),
    bigram  =dict(model=dict(C=10.)))

NAMES = dict(pretrained='`transformer_classifier_learner`, pretrained as a language model', txf='`transformer_classifier_learner`', workshop="the workshop's transformer, plain `Learner`",
             awd='`text_classifier_learner(AWD_LSTM, pretrained=False)`', bigram='tf-idf (1, 2)-grams, logistic regression')

PUBLISHED = [
    ("the workshop's transformer in fastai (k 256, 8 wide heads, depth 4, crop 256, 6 epochs)", 78.0),
    ('the same, claimed at depth 6 and 512 tokens', 'about 85'),
    ('AWD_LSTM fine-tuned as the workshop shows it', 75.0),
    ('Keras one-block transformer, 200 tokens', 87.45),
    ('NB-SVM, bigrams', 91.22),
    ("LSTM pretrained on the task's own text", 92.61),
    ('AWD_LSTM pretrained on WikiText-103, fastai', 94.3)]

# Data

def files(part):
    "The reviews of 'train' or 'test', negative ones first, or of 'unsup'."
    path = untar_data(URLs.IMDB)/part
    if part == 'unsup': return sorted(path.glob('*.txt'))
    return [f for label in ('neg','pos') for f in sorted((path/label).glob('*.txt'))]

def read_texts(part): return [(f.read_text(encoding='utf8'), f.parent.name) for f in files(part)]

def read_tokens(part):
    "The reviews of `part` as fastai tokenizes them, and their labels; tokenized once and kept beside fastai's data."
    cache = untar_data(URLs.IMDB).parent/'imdb_tokens'/f'{part}_fastai{version("fastai")}_spacy{version("spacy")}.pkl'
    if not cache.exists():
        texts,labels = zip(*read_texts(part))
        tokens = tokenize_texts(list(texts), tok=SpacyTokenizer(special_toks=[])) # the same tokens as with fastai's default, faster
        cache.parent.mkdir(exist_ok=True)
        cache.write_bytes(pickle.dumps([([sys.intern(str(t)) for t in ts], l) for ts,l in zip(tokens, labels)]))
    return pickle.loads(cache.read_bytes())

def draw(items, n, seed=42):
    "Row numbers of `n` items, as many of each label."
    rng,labels = np.random.RandomState(seed),np.array([l for _,l in items])
    return np.concatenate([rng.permutation(np.flatnonzero(labels==c))[:n//2] for c in ('neg','pos')])

def held_out(n=1250):
    "The last `n` reviews of each label by their number. Reviews of one film have neighbouring numbers, so hardly a film is on both sides."
    number = np.array([int(f.stem.split('_')[0]) for f in files('train')])
    return np.concatenate([half[np.argsort(number[half])][-n:] for half in np.split(np.arange(len(number)), 2)])

def parts(read, valid, n, score=None):
    "Items to train on, to watch while training, to score: 22,500 with 2,500 held out for both, or all with 250 of them and the test set."
    train = read('train')
    if n: train = [train[i] for i in draw(train, n)]
    held = held_out() if valid and n is None else draw(train, 250 if n is None else n//4)
    watch = [train[i] for i in held]
    if valid: return [o for i,o in enumerate(train) if i not in set(held.tolist())], watch, watch
    test = read('test')
    n = n or score
    return train, watch, [test[i] for i in draw(test, n)] if n else test

class Tokens(Transform):
    "Tokens pass as they are and are shown as text."
    def encodes(self, o:list): return L(o)
    def decodes(self, o:L): return TitledStr(' '.join(o))

def make_dls(train, watch, recipe):
    "fastai's loaders of texts, from tokens; the vocabulary comes from `train`."
    text = TextBlock(Tokens(), min_freq=recipe['min_freq'], max_vocab=recipe['max_vocab'])
    dblock = DataBlock((text, CategoryBlock), get_x=ItemGetter(0), get_y=ItemGetter(1), splitter=IndexSplitter(range(len(train), len(train+watch))))
    return dblock.dataloaders(train+watch, bs=recipe['bs'], num_workers=0)

# Pretraining

def make_vocab_of(texts, max_vocab): return make_vocab(Counter(t for ts in texts for t in ts), 2, max_vocab)

def number(texts, vocab): return [*map(Numericalize(vocab), texts)]

def lm_dls(ids, vocab, text):
    "Loaders of a language model over all but every fiftieth of the texts, shuffled: those of one label lie together."
    order = np.random.RandomState(text['seed']).permutation(len(ids))
    parts = [flat_ids(ids[j].tolist() for i,j in enumerate(order) if (i%50 == 0) == valid).ids for valid in (False,True)]
    return LMDataLoaders.from_ids(*parts, vocab, bs=text['bs'], seq_len=text['seq_len'], windows='random')

class Guessed(ChunkedLoss):
    "The `n` most frequent tokens are guessed, in training and by the metrics; rarer ones are read, and guessed as unknown."
    def __init__(self, n):
        super().__init__()
        self.n = n
    def known(self, targ): return targ.where(targ < self.n, 0)
    def _hidden_and_loss(self, targ, *xb):
        model = get_model(self.model)
        h = model.hidden(*xb)
        return h.detach(), chunked_cross_entropy(h, model.head.weight[:self.n], self.known(targ), chunk=self.chunk)
    def loss(self, logits, targ): return F.cross_entropy(logits[...,:self.n].flatten(0, -2), self.known(targ).flatten())
    def accuracy(self, logits, targ): return accuracy(logits[...,:self.n], self.known(targ))

def language_model(dls, text):
    "A learner for what `text` asks; its last two numbers are a loss and an accuracy."
    if text['objective'] == 'mlm': return transformer_mlm_learner(dls, mask_p=text['mask_p'], metrics=accuracy, **text['model'])
    guessed = Guessed(text['guessed'])
    return transformer_lm_learner(dls, 'default', metrics=[guessed.loss, guessed.accuracy], opt_func=adamw, cbs=guessed, **text['model'])

def pretrain(n, read, text):
    "The file of an encoder pretrained on the `n` texts that `read` reads, and what to say of its training: made once, whatever is done with it."
    file = fastai_path('model')/'imdb_pretrained'/f'{hashlib.md5(json.dumps([text, n]).encode()).hexdigest()}.pth'
    about_it = file.with_suffix('.json')
    if not about_it.exists():
        texts = read()
        vocab = make_vocab_of(texts, text['max_vocab'])
        ids = number(texts, vocab)
        set_seed(text['seed'])
        dls = lm_dls(ids, vocab, text)
        learn,count,start = language_model(dls, text), Count(pad_index(dls)), time.process_time()
        emb = learn.model.encoder.emb.weight
        if text.get('counted'): emb.data.copy_(count_vectors(ids, *emb.shape))
        with learn.no_bar(): learn.fit_one_cycle(text['epochs'], text['lr'], cbs=count)
        learn.save_encoder(file)
        loss,acc = learn.recorder.values[-1][-2:]
        about_it.write_text(json.dumps(dict(text_tokens=count.tokens, text_minutes=round((time.process_time()-start)/60, 2), text_loss=round(loss, 3), text_accuracy=100*acc)))
    return file, json.loads(about_it.read_text())

def pretrain_all(text, n=None):
    "The same, on the training and the unlabelled reviews, or `n` of each."
    parts = 'train','unsup'
    return pretrain(sum(len(files(o)[:n]) for o in parts), lambda: [ts for o in parts for ts,_ in read_tokens(o)[:n]], text)

def with_encoder(learn, recipe, args):
    "Put an encoder that has read the training and the unlabelled reviews into `learn`, if the recipe has one; what to say of it."
    if 'text' not in recipe: return {}
    file,about_it = pretrain_all(recipe['text'], args.n)
    learn.load_encoder(file, freeze=False)
    return about_it

# Candidates

def txf(dls, kw):
    kw = dict(kw)
    loss = LabelSmoothingCrossEntropyFlat(eps=kw.pop('label_smoothing'))
    return transformer_classifier_learner(dls, loss_func=loss, metrics=accuracy, **kw)
pretrained = txf
def workshop(dls, kw): return Learner(dls, WorkshopModel(len(dls.vocab[0]), 2, **kw), loss_func=CrossEntropyLossFlat(), metrics=accuracy)
def awd(dls, kw): return text_classifier_learner(dls, AWD_LSTM, pretrained=False, metrics=accuracy, **kw)

def train_and_score(make, recipe, args):
    "Train for the epochs of the recipe, or for `args.minutes`; then score once."
    train,watch,scored = parts(read_tokens, args.valid, args.n, recipe['score'])
    dls = make_dls(train, watch, recipe)
    learn,count = make(dls, recipe['model']),Count(pad_index(dls))
    about_it = with_encoder(learn, recipe, args)
    with learn.no_bar():
        if 'epochs' in recipe: learn.fit_one_cycle(recipe['epochs'], recipe['lr'], cbs=count, **recipe['fit'])
        else: learn.fit_minutes(args.minutes, recipe['lr'], cbs=count, **recipe['fit'])
        preds,targs = learn.get_preds(dl=dls.test_dl(scored, rm_type_tfms=0, with_labels=True, num_workers=0))
    return dict(accuracy=100*accuracy(preds, targs).item(), scored=len(scored), epochs=round(count.texts/len(train), 2), **count.row,
                params=n_params(learn.model), vocab=len(dls.vocab[0]), **about_it)

def bigram(recipe, args):
    "tf-idf of words and pairs of words, logistic regression."
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    (x,y),_,(x_scored,y_scored) = (zip(*p) for p in parts(read_texts, args.valid, args.n))
    start = time.perf_counter()
    tfidf = TfidfVectorizer(ngram_range=(1,2), sublinear_tf=True, min_df=2)
    model = LogisticRegression(max_iter=1000, **recipe['model']).fit(tfidf.fit_transform(x), y)
    seconds = time.perf_counter() - start
    return dict(accuracy=100*model.score(tfidf.transform(x_scored), y_scored), scored=len(x_scored), minutes=round(seconds/60, 2), params=model.coef_.size+1)

def ask(name, seed, args):
    "What one run is asked to do."
    recipe = change(RECIPES[name], args.set)
    timed = name != 'bigram' and 'epochs' not in recipe
    return dict(candidate=name, split='valid' if args.valid else 'test', seed=None if name == 'bigram' else seed, asked=args.minutes if timed else None,
                n=args.n, recipe=recipe)

def run(name, seed, args):
    "One candidate with one seed; the row for the results."
    torch.set_num_threads(args.threads)
    set_seed(seed)
    row = ask(name, seed, args)
    res = bigram(row['recipe'], args) if name=='bigram' else train_and_score(globals()[name], row['recipe'], args)
    return {**row, **res, **about(args.threads)}

# Results

COLS = {'candidate':lambda r: NAMES[r['candidate']] + tried(r) + changed(r, RECIPES), 'seed':'seed', 'accuracy':'accuracy', 'reviews scored':'scored', 'core-minutes for text':'text_minutes', 'epochs':'epochs', 'tokens seen':'tokens',
        'tokens/s':'tokens_per_s', 'minutes':'minutes', 'parameters':'params'}

def render(rows):
    "The results as markdown."
    res = '# IMDB reviews, accuracy in per cent\n\nWritten by `python benchmarks/imdb.py`. Tokens seen are the real tokens of the training batches: ' \
          "the workshop's model reads at most the first 256 columns of each, AWD_LSTM pools over the last 1,440. The minutes are those of training alone. " \
          'The language model was pretrained once, with one seed, on all training and unlabelled reviews, those held out among them, without their labels; core-minutes for text are its processor time. The seeds are those of the classifiers. Rows of six and of ten minutes are of the preset `reviews` as it was before; rows of four and of eight with `epochs=None` followed the clock, which on a faster machine means more epochs.\n'
    for split,title in dict(test='The test set, scored once at the end of each run; trained on 25,000',
                            valid='2,500 held-out reviews, on which everything was chosen; trained on 22,500').items():
        mine = [r for r in rows if r['split']==split]
        if mine: res += f'\n## {title}\n\n{table(with_means(mine, RECIPES, COLS), COLS)}\n{ran_with(mine)}'
    return res + '\n## Published\n\n' + table([dict(who=w, a=a) for w,a in PUBLISHED], {'who':'who', 'accuracy':'a'})

def seeds(name, args):
    "The seeds to run a candidate with."
    if name in ('txf','pretrained') or args.child: return args.seeds
    return [0] if name=='bigram' else args.peer_seeds

def main():
    p = options(__doc__, RECIPES, 8)
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1,2], help='of pretrained and txf')
    p.add_argument('--peer-seeds', nargs='+', type=int, default=[0], help='of workshop and awd')
    p.add_argument('--valid', action='store_true', help='score on 2,500 training reviews held out, not on the test set')
    args = p.parse_args()
    run_all([(name, seed) for name in args.only for seed in seeds(name, args)], args, out_file(args, 'imdb'), ask, run, render)

if __name__ == '__main__': main()
