"""1,000 labelled IMDB reviews: this library's classifier with labels only, with what counting, pretraining or self-training on unlabelled reviews gives, beside a bigram model.

The encoder is pretrained once and kept. Each candidate and seed runs in a process of its own and adds a line to results/transfer.jsonl; what is there already is not run again."""
from fastai.text.all import *
from fastai_txf.all import *
from common import *
from imdb import RECIPES as FULL, Tokens, draw, held_out, make_vocab_of, number, pretrain, pretrain_all, read_tokens

N_LABELLED,N_TEST = 1000,5000
TEXT = dict(objective='mlm', epochs=1, lr=5e-3, bs=32, seq_len=256, max_vocab=12_000, seed=0, mask_p=0.3, model=dict(config='reviews', p=0., emb_p=0.))

COUNTS = dict(objective='counts', max_vocab=12_000)

LABELS = dict(lr=3e-3, div=1., bs=16, label_smoothing=0., fit={}, model=dict(config='reviews', p=0.1, head_p=0.2, token_p=0., word_p=0.))

SMALL = dict(LABELS, model=dict(LABELS['model'], d_model=64, d_ff=128, pool='mean', positions='none'))

STUDENT = dict(minutes=8, **{k:FULL['txf'][k] for k in ('max_vocab','bs','lr')}, **FULL['txf']['fit'], model=dict(config='reviews'))

LANGUAGE = {k:v for k,v in FULL['pretrained']['model'].items() if k != 'label_smoothing'}

RECIPES = dict(
    language  =dict(text=FULL['pretrained']['text'], epochs=8, frozen=0, lr=1e-3, div=1.5, bs=16, label_smoothing=0., fit=dict(wd=0.05), model=LANGUAGE),
    student   =dict(text=COUNTS, epochs=3, frozen=0, **SMALL, teachers=4, student=STUDENT),
    counted   =dict(text=COUNTS, epochs=3, frozen=0, **SMALL),
    small     =dict(text=None, epochs=3, frozen=0, **SMALL),
    pretrained=dict(text=TEXT, epochs=3, frozen=1, **LABELS),
    labels    =dict(text=None, epochs=5, frozen=0, **LABELS),
    bigram    =dict(model=dict(C=1.)))

NAMES = dict(language='`transformer_classifier_learner`, pretrained as a language model on 75,000 reviews, as in `imdb.py`', student='`transformer_classifier_learner`, self-trained: four of the next kind label 71,500 reviews for it (`add_pseudo_labels`)', counted='`transformer_classifier_learner`, `count_vectors` for its embeddings', small='the same, labels only', pretrained='`transformer_classifier_learner`, pretrained as a masked language model', labels='`transformer_classifier_learner`, labels only', bigram='`baseline`: NB-weighted (1, 2)-grams, logistic regression')

# Data

def parts(valid, n):
    "Tokens of texts to pretrain on, labelled reviews to train on, reviews to score: held-out ones, or a part of the test set."
    train,held = read_tokens('train'), held_out()
    rest = [train[i] for i in sorted({*range(len(train))} - {*held.tolist()})]
    labelled = [rest[i] for i in draw(rest, n or N_LABELLED)]
    if valid: scored = [train[i] for i in held]
    else:
        test = read_tokens('test')
        scored = [test[i] for i in draw(test, N_TEST)]
    return [ts for ts,_ in rest][:n and 4*n], labelled, scored[::len(scored)//n if n else 1]

def make_dls(train, valid, vocab, bs):
    "fastai's loaders of reviews, from tokens."
    dblock = DataBlock((TextBlock(Tokens(), vocab=vocab), CategoryBlock), get_x=ItemGetter(0), get_y=ItemGetter(1), splitter=IndexSplitter(range(len(train), len(train+valid))))
    return dblock.dataloaders(train+valid, bs=bs, val_bs=64, num_workers=0)

# Candidates

def fit(learn, recipe):
    "Unfreeze one group after the other (`frozen` epochs each), then train all of them; the core-minutes."
    start,n = time.process_time(), len(classifier_splitter(learn.model))
    rates = slice(recipe['lr']/recipe['div']**(n-1), recipe['lr'])
    with learn.no_bar(), learn.no_logging():
        for i in range(1, n) if recipe['frozen'] else ():
            learn.freeze_to(-i)
            learn.fit_one_cycle(recipe['frozen'], rates, **recipe['fit'])
        learn.unfreeze()
        learn.fit_one_cycle(recipe['epochs'], rates, **recipe['fit'])
    return round((time.process_time()-start)/60, 2)

def count_words(texts, vocab, d):
    "Vectors of the tokens of `vocab`, counted in `texts`, and what to say of them."
    start = time.process_time()
    vectors = count_vectors(ids := number(texts, vocab), len(vocab), d)
    return vectors, dict(text_tokens=sum(map(len, ids)), text_minutes=round((time.process_time()-start)/60, 2))

def fit_recipe(dls, recipe, encoder=None, vectors=None):
    "A classifier trained on `dls` by `recipe`, its embeddings begun with `vectors`, and its core-minutes."
    loss = LabelSmoothingCrossEntropyFlat(eps=recipe['label_smoothing'])
    learn = transformer_classifier_learner(dls, pretrained=encoder, metrics=accuracy, loss_func=loss, **recipe['model'])
    if vectors is not None: learn.model.encoder.emb.weight.data.copy_(vectors)
    return learn, fit(learn, recipe)

def from_text(recipe, texts, vocab, args):
    "What the recipe's text gives to `fit_recipe`, an encoder or vectors of the tokens of `vocab`, and what to say of it."
    text = recipe['text']
    if not text: return {}, {}
    if text['objective'] == 'counts':
        vectors,told = count_words(texts, vocab, recipe['model']['d_model'])
        return dict(vectors=vectors), told
    encoder,told = pretrain_all(text, args.n and 4*args.n) if text['objective'] == 'lm' else pretrain(len(texts), lambda: texts, text)
    return dict(encoder=encoder), told

def train_and_score(recipe, seed, args):
    "Pretrain or take what is pretrained, train on the labelled reviews, score once."
    texts,labelled,scored = parts(args.valid, args.n)
    vocab = make_vocab_of(texts, (recipe['text'] or TEXT)['max_vocab'])
    given,told = from_text(recipe, texts, vocab, args)
    set_seed(seed)
    dls = make_dls(labelled, labelled[:1], vocab, recipe['bs']) # fastai wants something to validate on
    learn,minutes = fit_recipe(dls, recipe, **given)
    with learn.no_bar(): preds,targs = learn.get_preds(dl=dls.test_dl(scored, rm_type_tfms=0, with_labels=True, num_workers=0))
    return dict(accuracy=100*accuracy(preds, targs).item(), scored=len(scored), minutes=minutes, params=n_params(learn.model), vocab=len(dls.vocab[0]), **told)

warnings.filterwarnings('ignore', message='.*training set, too') # fastai wants something to validate on, and gets a labelled text again
SEP = '\x1f' # between the tokens of a text that is tokenized already

def df_dls(labelled, vocab, bs):
    "The library's loaders of labelled reviews."
    df = pd.DataFrame([(SEP.join(ts), label) for ts,label in labelled + labelled[:1]], columns=['text','label']) # fastai wants something to validate on
    df['is_valid'] = df.index == len(labelled)
    return TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(SEP), rules=[], text_vocab=vocab, bs=bs, n_workers=0, num_workers=0)

def self_train_and_score(recipe, seed, args):
    "Train teachers on the labelled reviews, a student on these and on what the teachers say of all others, score once."
    texts,labelled,scored = parts(args.valid, args.n)
    texts += [ts for ts,_ in read_tokens('unsup')][:args.n and 4*args.n]
    known = {id(ts) for ts,_ in labelled}
    rest = [SEP.join(ts) for ts in texts if id(ts) not in known]
    dls,start,how = df_dls(labelled, make_vocab_of(texts, recipe['text']['max_vocab']), recipe['bs']), time.process_time(), recipe['student']
    teachers,(vectors,_) = [], count_words(texts, dls.vocab[0], recipe['model']['d_model'])
    for i in range(recipe['teachers']):
        set_seed(10*seed + i)
        teachers.append(fit_recipe(dls, recipe, vectors=vectors)[0])
    with ContextManagers([t.no_bar() for t in teachers]): labels = pseudo_labels(teachers, rest)
    both = add_pseudo_labels(df_dls(labelled, make_vocab_of(texts, how['max_vocab']), how['bs']), rest, labels)
    text_minutes = (time.process_time()-start)/60
    learn,count = transformer_classifier_learner(both, metrics=accuracy, **how['model']),Count(pad_index(both))
    with learn.no_bar(), learn.no_logging(): learn.fit_minutes(how['minutes'], how['lr'], wd=how['wd'], cbs=count)
    preds,targs = learn.predict([SEP.join(ts) for ts,_ in scored])[2],torch.tensor([both.vocab[1].o2i[label] for _,label in scored])
    return dict(accuracy=100*accuracy(preds, targs).item(), scored=len(scored), minutes=how['minutes'], params=n_params(learn.model), vocab=len(both.vocab[0]),
                text_minutes=round(text_minutes, 2), text_tokens=count.tokens)

def bigram(recipe, seed, args):
    "`baseline`, with the vocabulary of the labelled reviews."
    _,labelled,scored = parts(args.valid, args.n)
    dls = make_dls(labelled, scored, make_vocab_of([ts for ts,_ in labelled], 60_000), 64)
    start = time.process_time()
    acc = baseline(dls, **recipe['model']).accuracy.iloc[-1]
    return dict(accuracy=100*float(acc), scored=len(scored), minutes=round((time.process_time()-start)/60, 2), vocab=len(dls.vocab[0]))

def ask(name, seed, args):
    "What one run is asked to do."
    return dict(candidate=name, split='valid' if args.valid else 'test', seed=None if name=='bigram' else seed, n=args.n, recipe=change(RECIPES[name], args.set))

def run(name, seed, args):
    "One candidate with one seed; the row for the results."
    torch.set_num_threads(args.threads)
    row = ask(name, seed, args)
    return {**row, **dict(bigram=bigram, student=self_train_and_score).get(name, train_and_score)(row['recipe'], seed, args), **about(args.threads)}

# Results

COLS = {'candidate':lambda r: NAMES[r['candidate']] + tried(r) + changed(r, RECIPES), 'seed':'seed', 'accuracy':'accuracy', 'core-minutes for text':'text_minutes', 'core-minutes for labels':'minutes',
        'tokens of text seen':'text_tokens', 'parameters':'params'}

def render(rows):
    "The results as markdown."
    res = f'# IMDB with {N_LABELLED:,} labelled reviews, accuracy in per cent\n\nWritten by `python benchmarks/transfer.py`. The labelled reviews are {N_LABELLED//2} of each label, drawn with a fixed seed ' \
          'from the 22,500 training reviews that are not held out; these 22,500, without their labels, are the text to pretrain on, and for self-training also the 50,000 reviews that have no labels. Counting is done anew in each run; the masked language model was pretrained once, with one seed; the seeds in the table are those of the classifiers. ' \
          'Core-minutes are processor time of training; for self-training, those for text are its four teachers and their predictions.\n'
    for split,title in dict(test=f'{N_TEST:,} reviews of the test set, {N_TEST//2:,} of each label, drawn with a fixed seed and scored once at the end of each run',
                            valid='2,500 held-out training reviews, on which everything was chosen').items():
        mine = [r for r in rows if r['split']==split]
        if mine: res += f'\n## {title}\n\n{table(with_means(mine, RECIPES, COLS), COLS)}\n{ran_with(mine)}'
    return res

def main():
    p = options(__doc__, RECIPES)
    p.add_argument('--seeds', nargs='+', type=int, default=[0,1,2], help='of the classifiers')
    p.add_argument('--valid', action='store_true', help='score on 2,500 training reviews held out, not on test reviews')
    args = p.parse_args()
    runs = [(name, seed) for name in args.only for seed in ([0] if name=='bigram' and not args.child else args.seeds)]
    run_all(runs, args, out_file(args, 'transfer'), ask, run, render)

if __name__ == '__main__': main()
