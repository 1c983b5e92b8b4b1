"The wide path: hashed words and pairs beside the transformer, counted, joined, explained; and what is chosen where nothing is asked"
import dataclasses, json, math, numpy as np, pandas as pd, pickle, pytest, torch
from functools import partial
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.data.transforms import Categorize
from fastai.learner import load_learner
from fastai.losses import BaseLoss, BCEWithLogitsLossFlat, CrossEntropyLossFlat, L1LossFlat
from fastai.metrics import accuracy
from fastai.text.core import BaseTokenizer, defaults
from fastai_txf.base.checks import check_values
from fastai_txf.base.compat import COMPILED
from fastai_txf.model.config import make_config, PRESETS, TransformerConfig
from fastai_txf.model.layers import TransformerBlock
from fastai_txf.train.rates import width_lr
from fastai_txf.model.models import classifier_splitter, TransformerClassifier
from fastai_txf.model.wide import hash_ids, run_lengths, token_letters, WidePath
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.special import text_vocab
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fastai_txf.text.target import check_range, labelled_ids, Target
from fastai_txf.train.counting import best_strength, count_features, fit_linear, fitting_scale, idf_weights, linear_outputs, loss_weights, nb_weights, STRENGTHS, usual_shares
from fastai_txf.train.targets import without_outliers
from fastai_txf.learn.classifier import transformer_classifier_learner
from fastai_txf.learn.counted import auto_fields, UnseenWords
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.recipes.selftrain import add_pseudo_labels
from fastai_txf.share.bundle import load_published
from fastai_txf.share.tables import feature_rows
from fastai_txf.share.publish import learner_from
import fastai_txf.explain.attribution
from fixtures import SMALL
from scipy.sparse import csr_matrix
from hypothesis import given, settings, strategies as st

odd = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03

def number(v):
    "A whole number as int64 holds it"
    v %= 2**64
    return v - 2**64 if v >= 2**63 else v

def slow_hash(a, b=None):
    h = number((a+1)*odd[0] if b is None else number(number(a*odd[0]) + b)*odd[1])
    return number((h ^ (h >> 29))*odd[1])

def slow_run(codes):
    "Pairs one after the other, of four letters the pair of pairs; what is left over last"
    h = slow_hash(*codes[:2])
    for i in range(2, len(codes)-1, 2): h = slow_hash(h, slow_hash(*codes[i:i+2]))
    return slow_hash(h, codes[-1]) if len(codes) % 2 else h

def slow_runs(ids, tokens, pieces, k=4):
    "Numbers of `k` letters of a word each, from strings; the edges of a word count as letters"
    shown = [tokens[i] for i in ids]
    text = ''.join(' '*(t[0] == 'Ġ' or not pieces) + t.replace('Ġ', '')[:16] for t in shown) + ' '
    codes = [1 if c == ' ' else ord(c)+2 for c in text]
    for i in range(len(text)-k+1):
        if ' ' not in text[i+1:i+k-1]: yield slow_run(codes[i:i+k])

def slow_rows(ids, starts, n_rows, words):
    "The rows of a text's features by explicit loops over whole numbers of Python"
    hashes = [slow_hash(i) for i in ids]
    hashes += [slow_hash(a, b) for a,b in zip(hashes, hashes[1:])]
    if words:
        groups = []
        for i in ids:
            if starts[i] or not groups: groups.append([])
            groups[-1].append(i)
        ws = [slow_hash(-number(sum((i+1)*pow(0x100000001B3, min(n, 31), 2**64) for n,i in enumerate(g)))) for g in groups]
        hashes += ws + [slow_hash(a, b) for a,b in zip(ws, ws[1:])]
    return sorted({(h >> 20) % n_rows for h in hashes})

@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(2, 19), max_size=40), min_size=1, max_size=4), st.booleans())
def test_features_are_those_of_a_loop(texts, words):
    wide = WidePath(2**12, 3, 20, pad_idx=1, words=words)
    starts = torch.arange(20) % 3 == 0
    wide.starts.copy_(starts)
    width = max(map(len, texts)) + 2
    x = torch.tensor([[1]*(width-len(t)) + t for t in texts])
    rows,counts = wide.features(x)
    for t,r,c in zip(texts, rows, counts): assert r[c].tolist() == slow_rows(t, starts.tolist(), 2**12, words)

PIECES = ['Ġ'*(i%3 == 0) + t for i,t in enumerate('a film was warm ly improve ment s é 中文字 able 12345 un q ing antidisestablishmentarianism x yz'.split())]

@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(2, 19), max_size=20), min_size=1, max_size=4), st.booleans(),
       st.sampled_from([True,3,5,7]))
def test_runs_of_letters_are_those_of_a_loop(texts, pieces, lengths):
    "In the library, and without torch"
    vocab = ['xxunk','xxpad'] + (PIECES if pieces else [p.replace('Ġ', '') for p in PIECES])
    wide = WidePath(2**12, 3, 20, pad_idx=1, letters=lengths)
    starts = torch.tensor([not pieces or t.startswith('Ġ') for t in vocab])
    wide.letters.copy_(token_letters(vocab, starts))
    width = max(map(len, texts)) + 1
    rows,counts = wide.features(torch.tensor([[1]*(width-len(t)) + t for t in texts]))
    plain = feature_rows(texts, 2**12, letters=[r[r > 0].tolist() for r in wide.letters], runs=list(wide.runs))
    for t,r,c,p in zip(texts, rows, counts, plain):
        want = {*slow_rows(t, starts.tolist(), 2**12, False)} | {(h >> 20) % 2**12 for k in wide.runs for h in slow_runs(t, vocab, pieces, k)}
        assert r[c].tolist() == sorted(want) == [i for i in p if i >= 0]

def test_special_tokens_have_no_letters():
    letters = token_letters(['xxbos','xxmaj','Ġxxl','b'*40,'▁ab'], [True, True, True, False, True])
    assert (letters != 0).sum(1).tolist() == [1,1,4,16,3]

def test_pairs_of_hashes_differ():
    a,b = torch.cartesian_prod(torch.arange(300), torch.arange(300)).T
    assert len(hash_ids(hash_ids(a), hash_ids(b)).unique()) == 90_000

@pytest.fixture(params=[False,True,5])
def wide(request):
    w = WidePath(2**10, 3, 20, pad_idx=1, words=True, letters=request.param)
    w.starts.copy_(torch.arange(20) % 3 == 0)
    if request.param: w.letters.copy_(token_letters(['xxunk','xxpad']+PIECES, w.starts))
    w.table.normal_(generator=torch.Generator().manual_seed(0)); w.bias.copy_(torch.tensor([1.,-1.,0.5]))
    return w

def test_companions_change_nothing(wide):
    "A text alone equals the text beside one of 5,000 tokens"
    t = torch.randint(2, 20, (1,30), generator=torch.Generator().manual_seed(1))
    long = torch.randint(2, 20, (1,5000), generator=torch.Generator().manual_seed(2))
    both = torch.cat([torch.cat([torch.ones(1,4970).long(), t], 1), long])
    torch.testing.assert_close(wide(both)[:1], wide(t), atol=1e-5, rtol=0)

def test_token_shares_add_up(wide):
    "Shares of the tokens equal the sum, and those of a loop over features"
    x = torch.randint(2, 20, (1,25), generator=torch.Generator().manual_seed(3))
    w = torch.tensor([[1.,-2.,0.3], [0.,1.,0.]])
    shares = wide.token_shares(x, w)
    assert shares.shape == (2,25)
    torch.testing.assert_close(shares.sum(1), w @ (wide(x)[0]-wide.bias), atol=1e-4, rtol=1e-4)
    wide.by_length.fill_(True)
    torch.testing.assert_close(wide.token_shares(x, w).sum(1), w @ (wide(x)[0]-wide.bias), atol=1e-4, rtol=1e-4)

def test_empty_and_huge(wide):
    assert torch.equal(wide(torch.ones(2,3).long()), wide.bias.expand(2,-1))
    assert torch.equal(wide(torch.ones(2,0).long()), wide.bias.expand(2,-1))
    assert wide(torch.randint(2, 20, (1,100_000))).isfinite().all()

def test_lengths_of_runs():
    "In a configuration, its files, and paths that were pickled before there was a choice"
    c = TransformerConfig(wide=64, wide_letters=np.int64(5))
    assert TransformerConfig(**json.loads(json.dumps(dataclasses.asdict(c)))) == c and c.wide_letters is not True
    assert [run_lengths(o) for o in (True,False,3,4,5)] == [(4,),(),(3,),(3,4),(3,4,5)]
    for bad in ("4", 2, 1, 1., 0, -1, None, 3.5, (3,4), [4]):
        with pytest.raises(ValueError, match='wide_letters=.*True for runs of four.*at least 3'): TransformerConfig(wide_letters=bad)
    assert TransformerConfig(wide_letters=np.True_).wide_letters is True
    old = WidePath(2**10, 2, 20, letters=True)
    assert old.runs == (4,) and WidePath(2**10, 2, 20).runs == () and WidePath(2**10, 2, 20, letters=4).runs == (3,4)
    del vars(old)['runs']
    assert pickle.loads(pickle.dumps(old)).runs == (4,)

def test_letters_of_a_learner(tmp_path):
    "The plain call has runs of four, without them what was saved without them loads; other lengths are another model; without a wide path they say nothing"
    df = pd.DataFrame(dict(text=['a warm film','a cold film']*8, label=['warm','cold']*8))
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_pct=0.25, seed=0, bs=4, num_workers=0)
    learn = transformer_classifier_learner(dls, path=tmp_path)
    assert learn.model.config.wide_letters is True and learn.model.wide.runs == (4,)
    plain = transformer_classifier_learner(dls, 'auto', path=tmp_path, wide_letters=False)
    plain.save('plain')
    with pytest.raises(ValueError, match='wide_letters=False .here True'): learn.load('plain')
    transformer_classifier_learner(dls, 'auto', path=tmp_path, wide_letters=False).load('plain')
    five = transformer_classifier_learner(dls, 'auto', path=tmp_path, wide_letters=5)
    assert five.model.wide.runs == (3,4,5) and five.model.wide.n_rows >= learn.model.wide.n_rows
    five.save('five')
    for letters in (True,False):
        with pytest.raises(ValueError, match=f'wide_letters=5 .here {letters}'): transformer_classifier_learner(dls, 'auto', path=tmp_path, wide_letters=letters).load('five')
    for kw in (dict(wide_letters=5), dict(wide_words=True)):
        with pytest.raises(ValueError, match="features of a wide path.*add config='auto'"): transformer_classifier_learner(dls, **kw)

@pytest.mark.parametrize('texts,tok,has', [('a warm film|a cold film', None, True), ('好 看|难 看', None, False), ('a warm film|a cold film', CharTokenizer, False), ('a warm film|a cold film', partial(BPETokenizer, 300), False)])
def test_letters_by_default(texts, tok, has, monkeypatch):
    "The plain call counts runs of letters where tokens are words, not of much text"
    df = pd.DataFrame(dict(text=texts.split('|')*8, label=['warm','cold']*8))
    kw = {} if tok is None else dict(tok_tfm=tok())
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_pct=0.25, seed=0, bs=4, num_workers=0, min_freq=1, **kw)
    assert auto_fields(dls)['wide_letters'] is has
    monkeypatch.setattr('fastai_txf.learn.counted._most_tokens', 10)
    assert auto_fields(dls)['wide_letters'] is False

def test_silent_in_training_and_before_counting():
    m = TransformerClassifier(vocab_sz=20, d_model=16, n_heads=2, n_layers=1, wide=2**10, p=0., emb_p=0., head_p=0.)
    x = torch.randint(2, 20, (3,9))
    deep = m.eval()(x)
    m.wide.table.normal_()
    assert torch.equal(m(x), deep)                              # not counted: nothing is added
    m.wide.shares.copy_(torch.tensor([0.5,2.]))
    torch.testing.assert_close(m(x), 0.5*deep + 2*m.wide(x))
    torch.testing.assert_close(m.train()(x), deep)              # training sees the transformer alone

def test_members_are_averaged():
    m = TransformerClassifier(vocab_sz=20, d_model=16, n_heads=2, n_layers=1, members=3, n_out=4).eval()
    x = torch.randint(2, 20, (3,9))
    alone = TransformerClassifier(dataclasses.replace(m.config, members=1)).eval()
    outs = []
    for one in [m, *m.others]:
        alone.load_state_dict({k:v for k,v in one.state_dict().items() if not k.startswith('others')})
        outs.append(alone(x))
    torch.testing.assert_close(m(x), torch.stack(outs).mean(0))

def test_members_are_frozen_together():
    "Each group holds the same layers of every member; the last one holds no block or embedding"
    one,two = (TransformerClassifier(make_config(n_out=2, vocab_sz=20, d_model=16, n_heads=2, n_layers=2, members=n)) for n in (1,2))
    a,b = classifier_splitter(one), classifier_splitter(two)
    assert [2*len(g) for g in a] == [*map(len, b)]
    layers = {id(p) for m in (two,*two.others) for part in (m.encoder.emb, m.encoder.blocks) for p in part.parameters()}
    assert not layers & {*map(id, b[-1])}
    assert {id(p) for g in b for p in g} == {*map(id, two.parameters())}

def test_linear_equals_scikit():
    "One class against the rest: the logistic regression on weighted features, as scikit-learn predicts it"
    from sklearn.linear_model import LogisticRegression
    rng = np.random.default_rng(0)
    x,y = csr_matrix(rng.random((200,50)) < 0.2, dtype=float), rng.integers(0, 3, 200)
    w,b = fit_linear(x, y, 3)
    for i in range(3):
        r = nb_weights(x, y==i)
        m = LogisticRegression(C=1., solver='liblinear').fit(x.multiply(r).tocsr(), y==i)
        np.testing.assert_allclose(x@w[:,i] + b[i], m.decision_function(x.multiply(r).tocsr()), rtol=1e-8)

@pytest.mark.parametrize('C,power', [(3.,0.5),(0.3,0.),(1.,1.)])
def test_power_of_the_ratios(C, power):
    "Features times the ratios to a power, by a loop; to the power of 0, the plain logistic regression"
    from sklearn.linear_model import LogisticRegression
    rng = np.random.default_rng(0)
    x,y = csr_matrix(rng.random((200,50)) < 0.2, dtype=float), rng.integers(0, 2, 200)
    w,b = fit_linear(x, y, 2, C=C, power=power)
    times = np.array([math.copysign(abs(r)**power, r) for r in nb_weights(x, y==1)])
    m = LogisticRegression(C=C, solver='liblinear').fit(x.multiply(times).tocsr(), y==1)
    np.testing.assert_allclose((x@w + b)[:,1]*2, m.decision_function(x.multiply(times).tocsr()), rtol=1e-8)
    if power: return
    plain = LogisticRegression(C=C, solver='liblinear', tol=1e-8).fit(x, y==1)
    np.testing.assert_allclose((x@w + b)[:,1]*2, plain.decision_function(x), atol=5e-3)

def numbers(n, noise, seed):
    "Texts of four of 40 features that add up to a number, and others of noise alone"
    rng = np.random.default_rng(seed)
    x = csr_matrix(np.stack([np.isin(range(40), rng.choice(40, 4, replace=False)) for _ in range(n)]).astype(float))
    return x, np.stack([x@np.arange(40.) + noise*rng.normal(size=n), rng.normal(size=n)], 1)

def test_penalty_of_each_number():
    "Chosen by leaving one text out, as scikit-learn does; near the best for new texts, where a penalty of 1 is not, for a signal and for noise"
    from sklearn.linear_model import Ridge, RidgeCV
    (x,y),(x_new,y_new) = numbers(100, 1, 0), numbers(1000, 1, 1)
    w,b = fit_linear(x, y, 2, 'regression')
    x,x_new = x/2, x_new/2
    cv = RidgeCV(np.logspace(-3, 3, 13), alpha_per_target=True).fit(x.toarray(), y)
    np.testing.assert_allclose(x_new@w + b, cv.predict(x_new.toarray()), rtol=1e-3, atol=1e-2) # sparse weights are found by steps, to 1e-4
    mse = ((x_new@w + b - y_new)**2).mean(0)
    assert (mse < ((Ridge().fit(x, y).predict(x_new) - y_new)**2).mean(0)/[1.5,1.1]).all()

@pytest.mark.parametrize('n', [100,2000])
def test_penalty_of_copies(n):
    "Copies tell nothing of one another: noise stays noise, with many texts, too, of which some are looked at"
    from scipy.sparse import vstack
    x,y = numbers(n, 1, 0)
    w,_ = fit_linear(vstack([x]*3).tocsr(), np.concatenate([y]*3), 2, 'regression')
    assert np.abs(w[:,1]).max() < 1 and np.corrcoef(w[:,0], range(40))[0,1] > 0.99

@pytest.mark.parametrize('n', [1,2,3])
def test_numbers_of_few_texts(n):
    x,y = numbers(n, 0, 0)
    w,b = fit_linear(x, y, 2, 'regression')
    assert np.isfinite(w).all() and (np.abs(x@w/2 + b - y.mean(0)) <= np.abs(y - y.mean(0)) + 1e-6).all()

def test_rarity():
    "tf–idf in vectors of length 1, against scikit-learn's weights and the plain logistic regression"
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    rng = np.random.default_rng(0)
    x,y = csr_matrix(rng.random((200,50)) < 0.2, dtype=float), rng.integers(0, 3, 200)
    r = TfidfTransformer(norm=None).fit(x).idf_
    r = r/np.sqrt((x@(r**2)).sum()/x.sum())
    np.testing.assert_allclose(idf_weights(x), r)
    unit = x.multiply(1/np.sqrt(x.sum(1))).tocsr()
    w,b = fit_linear(x, y, 3, C=100., power=None)
    for i in range(3):
        m = LogisticRegression(C=100., solver='liblinear').fit(unit.multiply(r).tocsr(), y==i)
        np.testing.assert_allclose(unit@w[:,i] + b[i], m.decision_function(unit.multiply(r).tocsr()), rtol=1e-8)

def strength_by_hand(x, y, folds):
    "The strength whose models of two thirds have the lowest cross-entropy on the other third, by loops"
    def loss(C, power):
        each = []
        for held in folds:
            rest = np.setdiff1d(range(len(y)), held)
            out = linear_outputs(x[held], *fit_linear(x[rest], y[rest], 3, C=C, power=power), power is None)
            each += [-out[i].log_softmax(0)[y[t]].item() for i,t in enumerate(held)]
        return np.mean(each)
    return min(STRENGTHS, key=lambda o: loss(*o))

@pytest.mark.parametrize('seed', range(4))
def test_best_strength(seed):
    "The lowest loss on held-out thirds, in which classes are spread evenly, against loops; whole once more with every text twice, as copies are held out together; no numbers are drawn"
    from scipy.sparse import vstack
    from fastai_txf.train.counting import _folds
    rng = np.random.default_rng(seed)
    x = csr_matrix(rng.random((90,40)) < 0.2, dtype=float)
    y = np.asarray(x[:,:2].sum(1)).ravel().astype(int) if seed % 2 else rng.integers(0, 3, 90)
    fold = _folds(x, y)
    for c in range(3): assert np.ptp(np.bincount(fold[y==c], minlength=3)) <= 1
    state = np.random.get_state()[1].tolist()
    assert best_strength(x, y, 3) == strength_by_hand(x, y, [(fold==k).nonzero()[0] for k in range(3)])
    assert np.random.get_state()[1].tolist() == state
    twice = _folds(vstack([x,x]).tocsr(), np.tile(y, 2))
    assert (twice[:90] == twice[90:]).all() and np.ptp(np.bincount(twice)) <= 4

def test_the_usual_strength():
    "Numbers, many texts, many classes and texts that are all alike are counted with the first strength"
    x,y = csr_matrix(np.eye(2001, 50)), np.arange(2001) % 2
    assert best_strength(x, y, 2) == best_strength(x[:50], y[:50], 21) == best_strength(x[:50], y[:50,None], 1, 'regression') == STRENGTHS[0]
    assert best_strength(csr_matrix(np.ones((30,4))), y[:30], 2) == STRENGTHS[0]

def test_much_text_is_counted_once(monkeypatch):
    "The more features and classes, the longer a choice takes: from half a million on there is none"
    from fastai_txf.train import counting
    calls = []
    monkeypatch.setattr(counting, '_held_out_loss', lambda *args: calls.append(1) or 0.)
    x = csr_matrix(np.ones((1000,100)) - np.eye(1000, 100))
    for n,fits in ((2,True), (5,True), (6,False)):
        calls.clear()
        best_strength(x, np.arange(1000) % n, n)
        assert bool(calls) == fits

words = 'red green blue black white pink brown grey gold teal'.split()

def frame(n=120, kind='category', seed=0):
    "Texts whose label is their first colour"
    rng = np.random.default_rng(seed)
    rows = [rng.choice(words, 6) for _ in range(n)]
    label = [('warm' if r[0] in words[:5] else 'cold') for r in rows]
    if kind == 'multi': label = [','.join(sorted({'warm' if w in words[:5] else 'cold' for w in r[:2]})) for r in rows]
    if kind == 'number': label = [float(words.index(r[0])) + 0.5 for r in rows]
    return pd.DataFrame(dict(text=[' '.join(r) for r in rows], label=label, valid=np.arange(n) % 4 == 0))

def loaders(kind='category', **kw):
    if kind == 'multi': kw['label_delim'] = ','
    return TransformerDataLoaders.from_df(frame(kind=kind), text_col='text', label_col='label', valid_col='valid', bs=16, min_freq=1, **kw)

def test_auto_is_for_those_who_ask_nothing():
    dls = loaders()
    asked = transformer_classifier_learner(dls, d_model=32)
    assert asked.model.wide is None and asked.model.config.n_layers == 2
    auto = transformer_classifier_learner(dls).model.config
    assert auto.wide and auto.positions == PRESETS['reviews']['positions']
    mine = transformer_classifier_learner(dls, 'auto', d_model=32, p=0.2, wide=2**14).model.config
    assert (mine.d_model,mine.p,mine.wide,mine.n_layers) == (32,0.2,2**14,1)
    assert transformer_classifier_learner(dls, 'default').model.wide is None
    assert transformer_classifier_learner(dls, 'auto', wide=None).model.wide is None
    pieces = TransformerDataLoaders.from_df(pd.DataFrame(dict(text=['a warm film','a cold film']*8, label=['warm','cold']*8)), text_col='text', label_col='label', valid_pct=0.25, seed=0, bs=4, num_workers=0, tok_tfm=BPETokenizer(300))
    assert transformer_classifier_learner(pieces, 'auto', wide=None).model.wide is None

def test_fields_ask_no_target(monkeypatch):
    "The texts alone say how long they are; so does a set that is no `Datasets`"
    dls = loaders()
    want = auto_fields(dls)
    plain = DataLoaders(DataLoader([*dls.train_ds], bs=4), dls.valid)
    plain.vocab = dls.vocab
    assert auto_fields(plain) == want
    def refuse(*args, **kwargs): raise AssertionError('a target')
    monkeypatch.setattr(Categorize, '__call__', refuse)
    assert auto_fields(dls) == want

@pytest.mark.parametrize('kind', ['category','multi','number'])
def test_counts_before_the_first_fit(kind, tmp_path):
    "The first fit counts; predictions, export, save and load keep what is counted; fits go on"
    dls = loaders(kind)
    learn = transformer_classifier_learner(dls, metrics=Target.of(dls).metric, path=tmp_path)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1)
        assert learn.model.wide.counted
        table = learn.model.wide.table.clone()
        learn.fit_one_cycle(1)
    assert torch.equal(table, learn.model.wide.table)
    texts = ['red blue blue blue', 'gold', '', 'unknown words']
    want = learn.predict(texts)[2]
    learn.export('l.pkl')
    torch.testing.assert_close(load_learner(tmp_path/'l.pkl').predict(texts)[2], want)
    learn.save('w')
    fresh = transformer_classifier_learner(dls, path=tmp_path).load('w')
    torch.testing.assert_close(fresh.predict(texts)[2], want)
    e = learn.explain('red blue blue black')
    assert abs(e.gap) < 0.05

def test_lr_find_keeps_the_count():
    learn = transformer_classifier_learner(loaders())
    with learn.no_bar(): learn.lr_find(show_plot=False, num_it=5)
    assert learn.model.wide.counted

def test_explains_members_and_words():
    "The shares add up where several transformers and the counted words decide together"
    dls = loaders(tok_tfm=BPETokenizer(300))
    learn = transformer_classifier_learner(dls, 'auto', members=3, d_model=32)
    assert learn.model.config.wide_words
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1, 1e-2)
    e = learn.explain('red blue blue black')
    assert abs(e.gap) < 0.02*max(1, abs(e.score-e.base))
    without = learn.model.wide.shares.clone()
    learn.model.wide.shares[1] = 0.
    assert abs(learn.explain('red blue blue black', target=e.idx).score - e.score) > 1e-3

def test_takes_the_shape_of_an_encoder(tmp_path):
    "A language model's encoder fits a classifier of which nothing was asked"
    df = frame()
    lm_dls = TransformerDataLoaders.from_df(df, text_col='text', is_lm=True, valid_col='valid', bs=4, seq_len=16, min_freq=1)
    lm = transformer_lm_learner(lm_dls, path=tmp_path, n_layers=3, d_model=32, n_heads=2)
    lm.save_encoder('enc')
    learn = transformer_classifier_learner(loaders(), path=tmp_path)
    learn.load_encoder('enc')
    assert (learn.model.config.n_layers,learn.model.config.d_model) == (3,32) and learn.model.config.wide
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1)
    with pytest.raises(ValueError, match='n_layers'): transformer_classifier_learner(loaders(), n_layers=1).load_encoder(tmp_path/'models'/'enc.pth')
    with pytest.raises(FileNotFoundError): learn.load_encoder(tmp_path/'nothing.pth')

class OwnBlock(TransformerBlock): pass
class OwnModel(TransformerClassifier): pass

@pytest.fixture(scope='module')
def small_lm():
    "A language model of another shape than a classifier has of which nothing is asked"
    dls = TransformerDataLoaders.from_df(frame(), text_col='text', is_lm=True, valid_col='valid', bs=4, seq_len=16, min_freq=1)
    return transformer_lm_learner(dls, config='default', n_layers=2, d_model=48, n_heads=2)

@pytest.mark.parametrize('asked', [dict(d_model=64, n_layers=1), dict(block=OwnBlock), dict(arch=OwnModel), dict(d_ff=32)], ids=str)
def test_a_shape_that_was_asked_is_kept(small_lm, asked):
    "An encoder of another is refused, as without `auto`"
    learn = transformer_classifier_learner(loaders(), config='auto', **asked)
    model,config = learn.model, learn.model.config
    with pytest.raises(ValueError, match='d_model=48'): learn.load_encoder(small_lm)
    assert learn.model is model and model.config == config

@pytest.mark.parametrize('asked', [{}, dict(members=2), dict(members=2, y_range=(900,1200)), dict(compile=True), dict(lr=0.5), dict(max_len=64), dict(drop_mult=0.5)], ids=str)
def test_what_was_asked_besides_the_shape_is_kept(small_lm, asked):
    "Ranges of all members, the bounds, compiled blocks, windows and dropouts; the rate is that of the width unless it was asked"
    df = frame(kind='number')
    df['label'] += 1000
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='valid', bs=16, min_freq=1)
    learn = transformer_classifier_learner(dls, config='auto', **asked)
    def kept():
        m = learn.model
        c = m.config
        return [type(o.range) for o in (m, *m.others)], c.p, c.head_p, c.n_out, sum(COMPILED in vars(b) for b in m.modules()) > 0
    before,rate = kept(), learn.lr
    learn.load_encoder(small_lm)
    assert kept() == before and learn.model.config.d_model == 48 and (learn.model.config.max_len == 64) == ('max_len' in asked)
    assert learn.lr == asked.get('lr', width_lr(48)) and (learn.lr == rate) == ('lr' in asked)
    with torch.no_grad(): out = learn.model.eval().deep(dls.one_batch()[0])
    assert 950 < out.mean().item() < 1050

def test_an_encoder_that_is_loaded_in_inference_mode(small_lm):
    "Can be trained afterwards"
    learn = transformer_classifier_learner(loaders())
    with torch.inference_mode(): learn.load_encoder(small_lm)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert not any(o.is_inference() for o in learn.model.state_dict().values())

def test_count_wide_needs_a_path():
    with pytest.raises(ValueError, match='no wide path'): transformer_classifier_learner(loaders(), d_model=32).count_wide()

@pytest.mark.parametrize('bad', [dict(wide=0), dict(wide=-5), dict(wide=True), dict(members=0), dict(n_layers=True)])
def test_bad_fields(bad):
    with pytest.raises(ValueError, match=next(iter(bad))): make_config(vocab_sz=9, **bad)

@pytest.mark.parametrize('share', [0.5, float('nan'), -1, (1,2,3), 'ab', (float('nan'),1), (-0.1,1), (0,0), (1,float('inf'))])
def test_bad_shares(share):
    "A share that is none is refused by its value, and what was counted stays"
    learn = transformer_classifier_learner(loaders()).count_wide()
    want = learn.model.wide.shares.tolist()
    with pytest.raises(ValueError, match='share=.*two numbers'): learn.count_wide(share=share)
    assert learn.model.wide.shares.tolist() == want

@pytest.mark.parametrize('C', [0, -1, float('nan'), float('inf'), 'a'])
def test_bad_penalty(C):
    with pytest.raises(ValueError, match='C=.*above 0'): transformer_classifier_learner(loaders()).count_wide(C=C)

@pytest.mark.parametrize('power', [-1., math.inf, math.nan])
def test_bad_power(power):
    with pytest.raises(ValueError, match='power='): transformer_classifier_learner(loaders()).count_wide(power=power)

def template(n=300, seed=0):
    "Messages of few words, of which the first decides"
    rng = np.random.default_rng(seed)
    names = [f'n{i}' for i in range(60)]
    rows = [(rng.choice(names), *rng.choice(words, 3)) for _ in range(n)]
    return pd.DataFrame(dict(text=[' '.join(r) for r in rows], label=['a' if names.index(r[0]) % 2 else 'b' for r in rows], is_valid=np.arange(n) % 3 == 0))

def test_the_first_fit_chooses_a_strength():
    "What the first fit and `count_wide` weigh words by is `best_strength`, unless a `C` or a power is given"
    dls = TransformerDataLoaders.from_df(template(), text_col='text', label_col='label', valid_col='is_valid', min_freq=1)
    def new(): return transformer_classifier_learner(dls, d_model=16, n_layers=1, config='auto')
    learn = new()
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 0.)
    C,power = STRENGTHS[1]
    same = lambda a, b: torch.equal(a.model.wide.table, b.model.wide.table)
    assert same(learn, new().count_wide()) and same(learn, new().count_wide(C, power=power))
    assert not same(learn, new().count_wide(1.)) and same(new().count_wide(1., power=0.5), new().count_wide(power=0.5))

def test_no_say_is_a_choice():
    "A wide path that was counted and given no share is not counted again by the next fit"
    learn = transformer_classifier_learner(loaders()).count_wide(share=(1.,0.))
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 0.)
    assert learn.model.wide.shares.tolist() == [1.,0.]

def test_the_share_follows_the_number_of_texts():
    "What a transformer learnt from few texts it knows by heart: it has the less to say; not so one that has read others"
    for n,share in ((1,0.003),(100,0.03),(2500,0.15),(10_000,0.3),(10**6,0.3)):
        assert usual_shares('category', n) == usual_shares('multi', n) == pytest.approx((share,0.5))
    for n,share in ((100,0.08),(2500,0.4),(10**6,0.5)): assert usual_shares('regression', n) == pytest.approx((share,1-share))
    learn = transformer_classifier_learner(loaders()).count_wide()
    assert learn.model.wide.shares.tolist() == pytest.approx([0.003*len(learn.dls.train_ds)**0.5,0.5]) and not learn.has_read
    for other in (transformer_classifier_learner(loaders()).load_encoder(learn), transformer_classifier_learner(loaders(), 'auto', pretrained=learn)):
        assert other.has_read and other.count_wide().model.wide.shares.tolist() == pytest.approx([0.3,0.5])

def test_words_are_counted_for_the_texts_at_hand():
    "A model to start from may have counted other words under the same numbers, for other labels: its counts are left with it"
    learn = transformer_classifier_learner(loaders(), 'auto').count_wide()
    learn.model.vocab = text_vocab(learn.dls)
    df = frame()
    df['text'] = df.text.str.replace(r'\b(\w)', r'z\1', regex=True)
    other = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_col='valid', min_freq=1)
    for dls in (other, loaders()):
        new = transformer_classifier_learner(dls, pretrained=learn.model)
        assert not new.model.wide.counted
        with new.no_bar(), new.no_logging(): new.fit(1, 0.)
        assert new.model.wide.table.equal(transformer_classifier_learner(dls, learn.model.config).count_wide().model.wide.table)

def wild(learn):
    "Make its transformer very sure of what it does not know"
    with torch.no_grad(): learn.model.head.weight.normal_(0, 20)

def humble(learn):
    "Let its transformer guess, and say so"
    with torch.no_grad(): [p.zero_() for p in learn.model.head.parameters()]

def fitted(learn, lr, epochs=1):
    with learn.no_bar(), learn.no_logging(): learn.fit(epochs, lr, wd=0.)
    return (learn.model.wide.shares*learn.model.wide.say).tolist()

@pytest.mark.parametrize('kind', ['category','multi'])
def test_a_wild_transformer_has_nothing_to_say(kind):
    "Where it is surer of its training texts than right, the counted words answer; where it is not worse than guessing, it has its share"
    learn = transformer_classifier_learner(loaders(kind), d_model=32, config='auto').count_wide()
    given = learn.model.wide.shares.tolist()
    assert given == pytest.approx(usual_shares(kind, len(learn.dls.train_ds)))
    wild(learn)
    assert fitted(learn, 0.)[0] <= 0.03
    out,_ = learn.get_preds(act=lambda o: o)
    learn.model.wide.shares.copy_(torch.tensor([0.,0.5]))
    torch.testing.assert_close(out, learn.get_preds(act=lambda o: o)[0], rtol=0, atol=0.05*float(out.abs().max()) + 3)
    learn.model.wide.shares.copy_(torch.tensor(given))
    humble(learn)
    assert fitted(learn, 0.) == given

@pytest.mark.parametrize('share', [(1.,0.),(0.,1.)])
def test_shares_of_none_stay(share):
    learn = transformer_classifier_learner(loaders()).count_wide(share=share)
    wild(learn)
    assert fitted(learn, 0.) == list(share)

def test_a_share_comes_back():
    "Nothing to say is no sentence for ever: a later fit gives the share that was given"
    learn = transformer_classifier_learner(loaders(), d_model=32, config='auto').count_wide(share=(0.4,0.6))
    wild(learn)
    assert fitted(learn, 0.)[0] <= 0.04
    humble(learn)
    assert fitted(learn, 0.) == pytest.approx([0.4,0.6])

@pytest.mark.parametrize('way', ['save','publish','export','older'])
@pytest.mark.parametrize('kind', ['category','number'])
def test_a_share_comes_back_elsewhere(kind, way, tmp_path):
    "Saved, published or exported while it had nothing to say: a fit gives the share that it had at first; older files answer as they did"
    def new(): return transformer_classifier_learner(loaders(kind), d_model=32, config='auto', path=tmp_path)
    learn = new().count_wide(share=(0.4,0.6))
    wild(learn)
    assert fitted(learn, 0.)[0] <= 0.04
    text,wide = 'a good film', learn.model.wide
    if way == 'export':
        learn.export()
        other = load_learner(tmp_path/'export.pkl')
        other.dls = loaders(kind)
    elif way == 'publish': other = learner_from(learn.publish(tmp_path/'m'), loaders(kind))
    else:
        file = learn.save('w')
        if way == 'older':
            saved = torch.load(file, weights_only=False)
            saved['model']['wide.shares'] *= saved['model'].pop('wide.say')
            torch.save(saved, file)
        other = new().load('w')
    torch.testing.assert_close(other.predict(text)[2], learn.predict(text)[2])
    humble(other)
    if way != 'older': assert fitted(other, 0.) == pytest.approx([0.4,0.6])
    else: assert fitted(other, 0.) == pytest.approx((wide.shares*wide.say).tolist())

def test_what_numbers_do_not_say_is_counted():
    "A transformer that is worse than the mean leaves its share to the counted words, and has it again when it is not"
    learn = transformer_classifier_learner(loaders('number'), d_model=32, config='auto').count_wide(share=(0.6,0.4))
    wild(learn)
    a,b = fitted(learn, 0.)
    assert a <= 0.06 and a+b == pytest.approx(1)
    humble(learn)
    learn.model.head.bias.data.zero_()                              # a head counts from the mean on
    assert fitted(learn, 0.) == pytest.approx([0.6,0.4])

class Shifted(torch.nn.Module):
    "Other numbers in evaluation mode"
    def forward(self, x): return x if self.training else x + 100

def test_numbers_are_judged_as_they_are_predicted():
    "What a transformer says in training, where tokens are left out, is not what counts"
    learn = transformer_classifier_learner(loaders('number'), d_model=32, config='auto').count_wide()
    torch.nn.init.zeros_(learn.model.head.weight)
    usual = usual_shares('regression', len(learn.dls.train_ds))
    assert fitted(learn, 0.) == pytest.approx(usual)
    learn.model.range = Shifted()
    assert fitted(learn, 0.) == [0.,1.]

def test_fitting_scale():
    "1 where outputs are better than guessing, however sure; 0 for sure ones of chance; between them where they know a little"
    torch.manual_seed(0)
    y,z = torch.randint(0, 2, (2000,)), torch.randn(2000, 2)
    shy = torch.nn.functional.one_hot(y, 2) + 0.1*z
    assert fitting_scale(shy, y, 'category') == fitting_scale(0.01*z, y, 'category') == 1 and fitting_scale(5*z, y, 'category') <= 0.1
    p = 0.3 + 0.4*torch.rand(2000)
    drawn = (torch.rand(2000) < p).long()
    logit = torch.stack([torch.zeros(2000), p.logit()], 1)
    assert fitting_scale(logit, drawn, 'category') == 1
    for a in (5,10):
        assert abs(fitting_scale(a*logit, drawn, 'category') - 1/a) < 0.11
        assert abs(fitting_scale(a*p.logit()[:,None], drawn[:,None].float(), 'multi') - 1/a) < 0.11
    y = 50 + torch.randn(2000)
    assert fitting_scale(y[:,None] + z[:,:1]/2, y, 'regression') == fitting_scale(torch.full((2000,1), 50.), y, 'regression') == 1
    assert fitting_scale(torch.zeros(2000, 1), y, 'regression') == fitting_scale(50 + 3*z[:,:1], y, 'regression') == 0
    assert abs(fitting_scale(50 + 4*(y[:,None]-50), y, 'regression') - 1/4) < 0.11

def test_many_classes_within_memory():
    "150 classes: the table is capped at 16 million numbers"
    df = pd.DataFrame(dict(text=[f'word{i%150} and word{i%7}' for i in range(600)], label=[f'c{i%150:03}' for i in range(600)]))
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_pct=0.2, seed=0, bs=32, min_freq=1)
    learn = transformer_classifier_learner(dls, metrics=accuracy)
    assert learn.model.wide.table.numel() <= 2**24
    learn.count_wide()
    learn.model.wide.shares.copy_(torch.tensor([0.,1.]))
    assert learn.validate()[1] > 0.9

def test_unknown_words_are_no_features():
    "What stands for any word is not counted, alone or in pairs: texts with many unknown words would be pulled to one class"
    torch.manual_seed(0)
    wide = WidePath(997, 2, 20)
    wide.known[0] = False
    wide.table.normal_()
    x = torch.tensor([[5,0,6,7,0,0,8]])
    one = {i:slow_hash(i) for i in x[0].tolist()}
    want = sorted({(h >> 20) % 997 for h in [one[5], one[6], one[7], one[8], slow_hash(one[6], one[7])]})
    rows,counts = wide.features(x)
    assert rows[counts].tolist() == want == feature_rows(x.tolist(), 997, unknown=[0])[0].tolist()
    shares = wide.token_shares(x, torch.eye(2))
    torch.testing.assert_close(shares.sum(1), wide(x)[0])
    assert not shares[:,x[0] == 0].any()

def test_words_with_unknown_pieces_are_no_features():
    "Nor are pairs with one of them; the known pieces of such a word are"
    wide = WidePath(2**20, 2, 20, words=True)
    wide.known[0],wide.starts[10:] = False, False
    wide.table.normal_()
    x = torch.tensor([[5,10,0,11,6,7,0]])                             # five words, of which the second and the last are unknown
    rows,counts = wide.features(x)
    assert counts.sum() == 5+3 + 3+1                                  # tokens and pairs, words and their pair
    assert rows[counts].tolist() == feature_rows(x.tolist(), 2**20, True, [*range(10, 20)], unknown=[0])[0].tolist()
    torch.testing.assert_close(wide.token_shares(x, torch.eye(2)).sum(1), wide(x)[0])
    assert wide.features(torch.tensor([[0,0,11]]))[1].sum() == 1      # the last piece

def test_learners_do_not_count_unknown_words():
    "Words that a vocabulary leaves out, in training and later"
    df = pd.DataFrame(dict(text=['good film', 'bad film', 'good rare', 'bad odd']*8, label=['a','b']*16))
    dls = TransformerDataLoaders.from_df(df, text_col='text', label_col='label', valid_pct=0, min_freq=9, bs=8)
    learn = transformer_classifier_learner(dls)
    vocab = dls.vocab[0]
    assert 'rare' not in vocab and learn.model.wide.known.tolist() == [t != 'xxunk' for t in vocab]
    wide = learn.count_wide().model.wide
    with torch.no_grad(): a,b = (wide(torch.tensor([[vocab.index('good'), *[0]*n, vocab.index('film')]])) for n in (1,50))
    torch.testing.assert_close(a, b)

@pytest.mark.parametrize('kind', ['category','three','multi','number'])
def test_no_word_is_known(kind):
    "Nothing is counted: the wide path says what most texts are, or their mean, and the learner fits and predicts"
    n = 16
    label = dict(category=['a','b','b','b']*4, three=['a','b','c','c']*4, multi=['a','a,b','a','c']*4, number=[1.5,2.5,3.5,4.5]*4)[kind]
    df = pd.DataFrame(dict(text=[f'a{i} b{i}' for i in range(n)], label=label))
    dls = TransformerDataLoaders.from_df(df, label_delim=',' if kind == 'multi' else None, valid_pct=0, tok_tfm=BaseTokenizer(), rules=[], bs=8)
    learn = transformer_classifier_learner(dls)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-4)
    wide = learn.model.wide
    assert wide.counted and not wide.table.any()
    odds = lambda *ps: [math.log(p/(1-p)) for p in ps]
    want = dict(category=[-math.log(3)/2, math.log(3)/2], three=odds(1/4,1/4,1/2), multi=odds(3/4,1/4,1/4), number=[3.])[kind]
    assert wide.bias.tolist() == pytest.approx(want)
    assert learn.predict('b3 unknown')[2].isfinite().all()
    if kind != 'number': assert learn.count_wide(power=None).model.wide.bias.tolist() == pytest.approx(want)

@pytest.mark.parametrize('given', [dict(C=2.), dict(power=0.5), dict(power=None)], ids=str)
def test_strength_of_numbers_is_chosen(given):
    with pytest.raises(ValueError, match='numbers take neither'): transformer_classifier_learner(loaders('number')).count_wide(**given)

def test_bounds_hold(tmp_path):
    "With `y_range` no text leads out of it, published or not, and the explanation adds up; shares that lead out are refused"
    learn = transformer_classifier_learner(loaders('number'), 'auto', d_model=32, y_range=(0,10)).count_wide()
    with torch.no_grad(): learn.model.wide.table.mul_(20)
    texts = ['red', 'black', 'red blue', 'gold gold black', '']
    vals,free = learn.predict(texts)[2], learn.model.wide(learn.dls.valid.one_batch()[0])
    assert free.min() < 0 and free.max() > 10 and 0 <= vals.min() and vals.max() <= 10
    published = load_published(learn.publish(tmp_path/'p', trained=True))
    torch.testing.assert_close(torch.as_tensor(published.probs(texts)), vals)
    for t in texts[:4]:
        e = learn.explain(t)
        assert abs(e.gap) <= 0.02*max(1, abs(e.score-e.base))
    with pytest.raises(ValueError, match=r'share=\(1, 1\) with y_range=.*add up to 1'): learn.count_wide(share=(1,1))

@pytest.mark.parametrize('kw', [{}, dict(y_range=(0,40)), dict(config='default', d_model=32, y_range=(0,40)), dict(config='auto', members=2)])
def test_numbers_begin_at_their_mean(kw):
    "An untrained model says about the mean of the training targets"
    learn = transformer_classifier_learner(loaders('number'), **kw)
    y = labelled_ids(learn.dls.train_ds)[1]
    assert (learn.get_preds()[0].mean()-y.mean()).abs() < 0.5*y.std()
    deep = learn.model.eval().deep(learn.dls.valid.one_batch()[0])         # without counted words
    assert (deep.mean()-y.mean()).abs() < 1.5*y.std()
    head = learn.model.range(learn.model.head.bias)
    torch.testing.assert_close(head, torch.tensor([y.mean()]))

def rents(n=300, seed=0):
    "Texts of ten sizes, a rent for each, and one of a hundred training rents with four noughts too many"
    r = np.random.default_rng(seed)
    size,words = r.integers(0, 10, n), [f'w{i}' for i in range(100)]
    df = pd.DataFrame(dict(text=[' '.join([*r.choice(words, 5), f'size{k}']) for k in size], rent=10. + 5*size + r.normal(size=n), valid=np.arange(n) % 4 == 0))
    return df.assign(rent=df.rent.where(df.valid | (np.arange(n) % 100 != 1), 1e4*df.rent))

@pytest.mark.parametrize('loss', [L1LossFlat(), BaseLoss(torch.nn.HuberLoss, is_2d=False)], ids=['l1','huber'])
def test_losses_that_do_not_square_are_robust(loss):
    "A few training targets that are far out leave such a model better than the median; where there are none, all count as they are"
    df = rents()
    learn = transformer_classifier_learner(TransformerDataLoaders.from_df(df, text_col='text', label_col='rent', valid_col='valid', bs=16, min_freq=1), loss_func=loss)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(5, 3e-3)
    p,y = learn.get_preds()
    assert (p.view(-1)-y.view(-1)).abs().mean() < 0.6*(y-df.rent[~df.valid].median()).abs().mean()
    clean = torch.randn(1000)
    assert without_outliers(clean, loss) is not clean and without_outliers(clean, loss).equal(clean)
    assert without_outliers(clean, torch.nn.MSELoss()) is clean
    y = torch.tensor([[1.,0.]]*20 + [[2.,0.]]*20 + [[900.,7.]])
    assert without_outliers(y, loss)[-1].tolist() == [5.,7.]         # where half are equal nothing is far out

def test_a_loss_of_ones_own_keeps_its_start():
    "What a loss of one's own means by its outputs is not known"
    loss = lambda out, y: torch.nn.functional.poisson_nll_loss(out[:,0], y)
    assert not transformer_classifier_learner(loaders('number'), loss_func=loss).model.head.bias.any()

def test_a_trained_head_is_kept():
    "The head of a pretrained model is not set anew"
    learn = transformer_classifier_learner(loaders('number'), d_model=32)
    learn.model.head.bias.data.fill_(7)
    learn.model.vocab = learn.dls.vocab
    assert transformer_classifier_learner(learn.dls, pretrained=learn.model).model.head.bias.item() == 7

def test_range_of_targets():
    "A range that does not hold the targets is refused; one that leaves out a few is reported"
    dls,make = loaders('number'), transformer_classifier_learner
    with pytest.raises(ValueError, match=r'y_range=\(0, 1\), and .*% of the training targets lie outside: they reach from 0.5'): make(dls, y_range=(0,1))
    top = torch.as_tensor(labelled_ids(dls.train_ds)[1]).max().item()
    make(dls, y_range=(0.5,top))
    with pytest.warns(UserWarning, match='No prediction will reach those'): check_range(torch.tensor([2.]*99+[9.]), 0, 5)

@pytest.mark.parametrize('kind,make', [('category',lambda w: CrossEntropyLossFlat(weight=w)), ('multi',lambda w: BCEWithLogitsLossFlat(pos_weight=w))])
def test_weights_of_the_loss_reach_the_counts(kind, make):
    "A heavy weight makes a label likelier in what is counted; equal weights, and those of another shape, change nothing"
    dls = loaders(kind)
    rare = list(dls.vocab[1]).index('warm')
    def probs(loss=None):
        learn = transformer_classifier_learner(dls, loss_func=loss).count_wide(share=(0.,1.))
        return learn.get_preds()[0][:,rare].mean().item()
    heavy,light = torch.ones(2), torch.ones(2)
    heavy[rare],light[rare] = 100., 0.01
    plain = probs()
    assert probs(make(torch.ones(2))) == pytest.approx(plain, abs=1e-3)
    assert probs(make(heavy)) > plain + 0.1 and probs(make(light)) < plain - 0.1
    assert loss_weights(make(torch.ones(7)), kind, 2) is None

def test_a_weight_of_nothing():
    "Texts of a class without weight count as if they were not there"
    x,y = np.eye(4)[[0,1,0,1,2,3]], np.array([0,1,0,1,2,2])
    w,b = fit_linear(csr_matrix(x), y, 3, weight=np.array([1.,1.,0.]))
    assert (x@w + b)[:,2].max() < -5 and ((x@w + b).argmax(1) == y)[:4].all()


class Seen(Callback):
    "What the model is given"
    order = 10
    def before_fit(self): self.batches = dict(train=[], valid=[])
    def before_batch(self): self.batches['train' if self.training else 'valid'].append(self.x.as_subclass(torch.Tensor).clone())


class TestUnseenWords:
    "Words that come once are unknown now and then in training, and nowhere else"
    df = pd.DataFrame(dict(text=[f'{"good" if i%2 else "bad"} film once{i} twice{i//2}' for i in range(80)], label=['pos' if i%2 else 'neg' for i in range(80)],
                           is_valid=[i >= 64 for i in range(80)]))

    def dls(self, cls=TransformerDataLoaders, **kw):
        return cls.from_df(self.df, **{**dict(text_col='text', label_col='label', valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=16), **kw})

    def fit(self, dls, n=4, encoder=None, **kw):
        learn,seen = transformer_classifier_learner(dls, **{**SMALL, **kw}), Seen()
        if encoder is not None: learn.load_encoder(encoder)
        with learn.no_bar(), learn.no_logging(): learn.fit(n, 1e-3, cbs=seen)
        return learn, {k:torch.cat([b.flatten() for b in v]) for k,v in seen.batches.items()}

    def shares(self, vocab, ids):
        "How often each kind of word was read: of 64 texts in each epoch"
        once = torch.tensor([t.startswith('once') for t in vocab])
        twice = torch.tensor([t.startswith('twice') for t in vocab])
        return [m[ids].sum().item() for m in (once, twice)] + [(ids == vocab.index('xxunk')).sum().item()]

    def test_half(self):
        "About half of those that come once, others in each batch; in validation what is known is read"
        dls = self.dls()
        learn,ids = self.fit(dls, 20)
        vocab = dls.vocab[0]
        once,twice,unknown = self.shares(vocab, ids['train'])
        assert twice == once+unknown == 20*64 and abs(once-10*64) < 5*(20*64/4)**0.5
        assert {i for i in ids['train'].tolist() if vocab[i].startswith('once')} == {i for i,t in enumerate(vocab) if t.startswith('once')}
        assert self.shares(vocab, ids['valid'])[2] == 20*16*2                          # 'once' and 'twice' are new there
        cb = next(o for o in learn.cbs if isinstance(o, UnseenWords))
        assert cb.once is None
        one,two = learn.get_preds(ds_idx=0)[0],learn.get_preds(ds_idx=0)[0]
        assert one.equal(two)

    def test_whose_words(self):
        "Not where an encoder has read other texts, not in a vocabulary that was given or counted by fastai, and not without the callback"
        dls = self.dls(min_freq=1)
        assert self.shares(dls.vocab[0], self.fit(dls)[1]['train'])[2] > 0
        first,_ = self.fit(dls, 1)
        for given,kw in ((self.dls(text_vocab=dls.vocab[0]), {}), (dls, dict(encoder=first))):
            assert self.shares(dls.vocab[0], self.fit(given, **kw)[1]['train']) == [4*64, 4*64, 0]
        more = add_pseudo_labels(dls, ['a once3 film'], [[0.5,0.5]])
        assert self.shares(dls.vocab[0], self.fit(more)[1]['train'])[2] == 0 and more.train.keep
        thrice = self.dls(min_freq=2)
        got = self.shares(thrice.vocab[0], self.fit(thrice)[1]['train'])
        assert got == [0, 4*64, 4*64]
        learn = transformer_classifier_learner(dls, **SMALL)
        learn.remove_cb(UnseenWords)
        seen = Seen()
        with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3, cbs=seen)
        assert self.shares(dls.vocab[0], torch.cat([b.flatten() for b in seen.batches['train']])) == [64, 64, 0]

    def test_vocabulary_without_unknown_words(self, monkeypatch):
        "fastai's special tokens are its users' to change: where unknown words have another name, every word is read"
        monkeypatch.setattr(defaults, 'text_spec_tok', ['[UNK]' if t == 'xxunk' else t for t in defaults.text_spec_tok])
        dls = self.dls()
        assert 'xxunk' not in dls.vocab[0]
        learn,ids = self.fit(dls, 1)
        assert len(ids['train'].unique()) >= 64

    def test_exported(self, tmp_path):
        "A learner that comes back trains on with the same words"
        dls = self.dls()
        learn,_ = self.fit(dls)
        learn.export(tmp_path/'l.pkl')
        again = load_learner(tmp_path/'l.pkl')
        assert again.predict('a good film')[2].allclose(learn.predict('a good film')[2])
        again.dls = dls
        seen = Seen()
        with again.no_bar(), again.no_logging(): again.fit(1, 1e-3, cbs=seen)
        assert self.shares(dls.vocab[0], torch.cat([b.flatten() for b in seen.batches['train']]))[2] > 0
