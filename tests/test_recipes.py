"The baseline against scikit-learn's own n-grams, suggestions that can be followed, pretraining that never looks at the validation set"
import inspect, math, random, re, sys, warnings
import numpy as np, pandas as pd, pytest, torch
import fastai_txf.recipes.pretrain as recipes, fastai_txf.recipes.suggest as suggest
import fastai_txf.train.schedule as schedule
from types import SimpleNamespace
from hypothesis import given, strategies as st
from fastai.text.all import BaseTokenizer, Callback, Learner, set_seed, tokenize_texts
from fastai_txf.model.config import fields_of, ROLES
from fastai_txf.text.special import text_vocab
from fastai_txf.text.codec import TextCodec
from fastai_txf.text.target import Target
from fastai_txf.text.loaders import TransformerDataLoaders
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.recipes.baseline import _predict_majority, _score, baseline, ngram_matrix, ngrams
from fastai_txf.train.counting import nb_weights
from fastai_txf.recipes.suggest import SIZES, suggest_config
from fastai_txf.recipes.vectors import count_vectors
from fastai_txf.recipes.pretrain import self_pretrain
from fastai_txf.recipes.selftrain import add_pseudo_labels
from fastai_txf.text.tokens import BPETokenizer, CharTokenizer
from fixtures import *

# The baseline

V = 5
texts = st.lists(st.lists(st.integers(0, V-1), min_size=1, max_size=8), min_size=1, max_size=6)

def grams(ids): return {*ids, *((a+1)*V+b for a,b in zip(ids, ids[1:]))}

@given(texts, texts)
def test_ngrams(known, new):
    "As sets of Python make them; unknown ones have no column"
    for ids in known: assert ngrams(ids, V).tolist() == sorted(grams(ids))
    x,cols = ngram_matrix(known, V)
    assert cols.tolist() == sorted(set().union(*map(grams, known)))
    for ts in (known, new): assert ngram_matrix(ts, V, cols)[0].toarray().tolist() == [[float(c in grams(t)) for c in cols] for t in ts]
    assert len(ngram_matrix(known*2, V, min_df=2)[1]) == len(cols)

def test_no_column_left():
    with pytest.raises(ValueError, match='min_df=3'): ngram_matrix([[1,2],[1]], V, min_df=3)
    with pytest.raises(ValueError, match='there are no texts'): ngram_matrix([], V)

@given(texts.filter(lambda t: len(t) > 1), st.integers(1, 100), st.floats(0.1, 2))
def test_nb_weights(ts, n, alpha):
    "The formula of the paper, feature by feature"
    x,y = ngram_matrix(ts, V)[0], np.arange(len(ts)) < max(1, n % len(ts))
    d = x.toarray()
    p,q = ([alpha + sum(d[i,j] for i in range(len(ts)) if y[i] == c) for j in range(d.shape[1])] for c in (True,False))
    want = [math.log((a/sum(p))/(b/sum(q))) for a,b in zip(p, q)]
    np.testing.assert_allclose(nb_weights(x, y, alpha), want, atol=1e-9)

def reference(dls, C=0.1):
    "Features by scikit-learn, the same for training and validation: `(x, y, x_valid, y_valid)`"
    from sklearn.feature_extraction.text import CountVectorizer
    vocab = text_vocab(dls)
    def read(ds): return [[vocab[i] for i in o] for o in ds.tls[0]], np.stack([np.asarray(o) for o in ds.tls[1]])
    (ts,y),(ts_valid,y_valid) = read(dls.train_ds), read(dls.valid_ds)
    count = CountVectorizer(ngram_range=(1,2), binary=True, min_df=2, tokenizer=lambda o: o, preprocessor=lambda o: o, token_pattern=None)
    return count.fit_transform(ts).toarray().astype(float), y, count.transform(ts_valid).toarray().astype(float), y_valid

def nb_svm(x, y, x_valid, C=0.1):
    "Log-odds of naive Bayes features in a logistic regression"
    from sklearn.linear_model import LogisticRegression
    p,q = 1+x[y].sum(0), 1+x[~y].sum(0)
    r = np.log((p/p.sum())/(q/q.sum()))
    return LogisticRegression(C=C, solver='liblinear').fit(x*r, y).decision_function(x_valid*r)

def noisy(df):
    "`df` with a third of the labels drawn anew, and a third class, so that nothing is perfect"
    rng = random.Random(1)
    return df.assign(label=[rng.choice(['pos','neg','odd']) if rng.random() < 0.4 else l for l in df.label])

def test_baseline_two_classes(df):
    dls = make_dls(df.assign(label=noisy(df).label.replace('odd', 'pos')))
    x,y,x_valid,y_valid = reference(dls)
    res = baseline(dls)
    assert res.model.tolist() == ['majority','bigrams, linear'] and (res.seconds > 0).all()
    assert res.accuracy[0] == pytest.approx((y_valid == np.bincount(y).argmax()).mean())
    assert res.accuracy[1] == pytest.approx(((nb_svm(x, y==1, x_valid) > 0) == y_valid).mean())
    assert res.accuracy[1] < 1

def test_baseline_three_classes(df):
    dls = make_dls(noisy(df))
    x,y,x_valid,y_valid = reference(dls)
    want = np.stack([nb_svm(x, y==i, x_valid) for i in range(3)]).argmax(0)
    assert baseline(dls).accuracy[1] == pytest.approx((want == y_valid).mean())

def test_baseline_draws_nothing(dls, dls_reg):
    "A training that follows has the random numbers that it would have had"
    def state(dls, look):
        set_seed(0)
        look(dls)
        return torch.rand(1).item(), np.random.rand(), random.random()
    for o in (dls, dls_reg): assert state(o, baseline) == state(o, lambda dls: None)

def test_baseline_many_labels(dls_multi):
    x,y,x_valid,y_valid = reference(dls_multi)
    want = np.stack([nb_svm(x, y[:,i]==1, x_valid) > 0 for i in range(y.shape[1])], 1)
    res = baseline(dls_multi)
    assert res.accuracy[1] == pytest.approx((want == y_valid).mean()) and res.accuracy[0] == pytest.approx(((y.mean(0) > 0.5) == y_valid).mean())

def test_mean_of_large_numbers():
    "The mean lies between two numbers of float32, and the error is that from there"
    y = np.float32([2**24, 2**24+2])
    mean = _predict_majority(y, 2, 'regression')
    assert mean.tolist() == [2**24+1]*2 and _score(mean, y, Target('regression', None, 1)) == 1

def test_baseline_numbers(dls_reg):
    from sklearn.linear_model import RidgeCV
    x,y,x_valid,y_valid = reference(dls_reg)
    norm = lambda o: o/np.sqrt((o**2).sum(1, keepdims=True))
    want = RidgeCV(np.logspace(-3, 3, 13)).fit(norm(x), y).predict(norm(x_valid))
    res = baseline(dls_reg)
    assert list(res) == ['model','mse','seconds'] and res.model[0] == 'mean'
    assert res.mse[1] == pytest.approx(((want-y_valid)**2).mean(), rel=1e-3) and res.mse[0] == pytest.approx(((y.mean()-y_valid)**2).mean(), rel=1e-5)

def test_baseline_one_label_everywhere(df):
    "A label that all training texts have, or none, needs no regression"
    encoded = df.assign(all=1, none=0, pos=(df.label=='pos').astype(int))
    dls = TransformerDataLoaders.from_df(encoded, text_col='text', label_col=['all','none','pos'], valid_col='is_valid', tok_tfm=BaseTokenizer(), bs=8)
    assert baseline(dls).accuracy[1] == 1.

def test_baseline_is_in_vain(df, dls, dls_lm, monkeypatch):
    with pytest.raises(ValueError, match='no targets'): baseline(dls_lm)
    for bad in (0, float('nan'), float('inf'), 'a', None):
        with pytest.raises(ValueError, match=f'C={bad!r} .*above 0'): baseline(dls, C=bad)
    with pytest.raises(TypeError, match='no DataLoaders'): baseline(df)
    with pytest.raises(ValueError, match='validation set is empty'): baseline(make_dls(df, valid_col=None, valid_pct=0.))
    pairs = Seq2SeqDataLoaders.from_df(df, src_col='text', tgt_col='label', tok_tfm=BaseTokenizer(), valid_pct=0.2, bs=8)
    with pytest.raises((TypeError,ValueError)): baseline(pairs)
    monkeypatch.setitem(sys.modules, 'sklearn.linear_model', None)
    with pytest.raises(ImportError, match='pip install scikit-learn'): baseline(dls)

# Words by counting

def counted(ts, d):
    "The vectors by dense loops and a full decomposition"
    n = np.array([[ids.count(j) for j in range(V)] for ids in ts], dtype=float)
    w = np.where(n > 0, 1+np.log(np.maximum(n, 1)), 0)*(1+np.log((1+len(ts))/(1+(n > 0).sum(0))))
    v = np.linalg.svd(w/np.linalg.norm(w, axis=1, keepdims=True))[2].T[:,:d]
    return v/np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12)

def test_count_vectors():
    "The angles between tokens are those of a full decomposition (signs and equal singular values are free); no other random number changes"
    ts = [[0,0,1,3],[1,1,2],[0,3,3,3],[2,1],[3,0,1],[2,2,2,1,0],[3]]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for d in (1, 2, V-1):
        rows,want = count_vectors(ts, V, d), counted(ts, d)
        assert rows.shape == (V,d) and not rows[4].any()
        np.testing.assert_allclose(rows[:4] @ rows[:4].T, want[:4] @ want[:4].T, atol=1e-4)
    assert torch.equal(torch.get_rng_state(), before)
    for same in ([torch.tensor(t) for t in ts], iter(ts)): assert torch.equal(count_vectors(ts, V, 2), count_vectors(same, V, 2))

@pytest.mark.parametrize('d', [0, 3])
def test_count_vectors_refuses(d):
    with pytest.raises(ValueError, match=f'd={d}'): count_vectors([[1,2],[1]], V, d)

def test_count_vectors_edges():
    "A token beyond the vocabulary or below 0 is refused; an empty text changes no more than the number of texts"
    for bad in (7,-1):
        for ids in ([bad,1], [1,bad]):
            with pytest.raises(ValueError, match=f'token id {bad} is none of the 5 tokens'): count_vectors([[1,2],ids], V, 1)
    rows = count_vectors([[0,1],[],[2,1,1]], V, 2)
    np.testing.assert_allclose(rows.norm(dim=1), [1,1,1,0,0], atol=1e-5)
    assert not count_vectors([[],[]], V, 1).any()

# Suggestions

@pytest.fixture
def speed(monkeypatch):
    "`speed(tokens)`: every model of `w` weights in its blocks trains on `tokens/w` tokens a second"
    def _set(tokens): monkeypatch.setattr(suggest, '_speed', lambda model, x: tokens/sum(p.numel() for p in model.encoder.blocks.parameters()))
    return _set

@pytest.mark.parametrize('loaders', ['dls','dls_lm'])
def test_suggestion(request, loaders, speed):
    "The same again from the same speeds; more time never gives a smaller model"
    dls,sizes = request.getfixturevalue(loaders), []
    for tokens in (1e5, 1e9, 1e14):
        speed(tokens)
        s = suggest_config(dls, minutes=1)
        assert repr(suggest_config(dls, minutes=1)) == repr(s) and s.minutes <= 1
        sizes.append((s.config['d_model'], s.config['n_layers']))
    assert sizes == sorted(sizes) and set(sizes) <= set(SIZES) and sizes[0] == SIZES[0]
    assert sizes[-1] == ((256,1) if loaders == 'dls' else SIZES[0])          # so little text is never enough for an LM of more
    assert s.epochs <= 60 and s.minutes < 1 and any('by heart' in r for r in s.reasons)

def test_rule_for_language_models(df, speed):
    "20 tokens for each weight, what is repeated more than four times not counted"
    dls = make_dls(pd.concat([df]*40), is_lm=True, seq_len=16, bs=8)
    total = len(dls.train)*8*16
    def block(d, n): return n*(12*d*d + 13*d)
    for tokens in (1e8, 1e10, 1e12):
        speed(tokens)
        fit = [o for o in SIZES if min(60*tokens/block(*o), 4*total) >= 20*block(*o)]
        s = suggest_config(dls, minutes=1)
        assert (s.config['d_model'], s.config['n_layers']) == (fit[-1] if fit else SIZES[0])
        assert ('even 64' in s.reasons[2]) == (not fit)
        by_heart = any('by heart' in o for o in s.reasons)
        assert ('more minutes' in s.reasons[2]) == (not fit and not by_heart)

@pytest.mark.parametrize('loaders', ['dls','dls_lm','dls_multi','dls_reg'])
def test_suggestion_can_be_followed(request, loaders, tmp_path):
    "Really timed; nothing is different afterwards, and a learner made of it trains"
    dls = request.getfixturevalue(loaders)
    def state(): return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(), dls.train.rng.getstate()
    before = state()
    s = suggest_config(dls, minutes=1e-4)
    assert state() == before and s.speeds.keys() == {SIZES[0]} and s.speeds[SIZES[0]] > 0
    learn = quiet(s.factory(dls, path=tmp_path, **s.config))
    learn.fit_one_cycle(1)
    assert learn.lr == s.config['lr'] and math.isfinite(learn.recorder.values[0][1])
    assert all(r in repr(s) for r in s.reasons) and f'{s.factory.__name__}(dls, ' in repr(s)

def test_no_suggestion(df, dls):
    with pytest.raises(ValueError, match='minutes=-1'): suggest_config(dls, minutes=-1)
    for bad in (None, float('inf')):
        with pytest.raises(ValueError, match=f'minutes={bad}'): suggest_config(dls, minutes=bad)
    with pytest.raises(TypeError, match='no DataLoaders'): suggest_config(df)
    pairs = Seq2SeqDataLoaders.from_df(df, src_col='text', tgt_col='label', tok_tfm=BaseTokenizer(), valid_pct=0.2, bs=8)
    with pytest.raises((TypeError,ValueError)): suggest_config(pairs)

def test_suggestion_counts_guesses(dls, speed):
    "Pseudo-labelled texts belong to the training set, with their lengths"
    texts = ['warm film '*40]*40
    both,n = add_pseudo_labels(dls, texts, torch.eye(2)[[0]*40]), len(dls.train_ds)
    data,before = suggest._Data.read(both), suggest._Data.read(dls)
    new = 40*len(both.train_ds[n][0])
    assert data.n == n+40 and data.longest == new//40 and abs(data.tokens - before.tokens - new) <= data.n
    assert f'{n+40} texts' in suggest_config(both, minutes=1).reasons[0]

# Unfreezing

@pytest.fixture
def clock(monkeypatch):
    "Every look at the clock takes a second"
    now = iter(range(10**6))
    monkeypatch.setattr(schedule, 'time', SimpleNamespace(perf_counter=lambda: next(now)))

class Stages(Callback):
    "What is frozen in each fit, how fast the groups may learn, and the weights at its end"
    def __init__(self): self.seen = []
    def before_fit(self): self.rates,self.steps = [], 0
    def after_batch(self):
        if self.training: self.rates.append([h['lr'] for h in self.opt.hypers]); self.steps += 1
    def after_fit(self): self.seen.append((self.opt.frozen_idx, np.max(self.rates, 0), self.steps, weights(self.learn)))

def test_fit_gradual(make, clock):
    learn = make(cbs=Stages())
    start = weights(learn)
    learn.fit_gradual(2, 1e-2, frozen=0.3, div=2)
    frozen,rates,steps,after = zip(*learn.stages.seen)
    assert frozen == (3,2,1,0)
    for r in rates: np.testing.assert_allclose(r, [1e-2/8,1e-2/4,1e-2/2,1e-2], rtol=0.2) # the peak of the cycle lies between two steps
    assert max(steps[:3]) <= 12 < 60 < steps[3] <= 84                        # 12 seconds each, then 84
    same = [{k for k in start if start[k].equal(a[k])} for a in after]
    assert 'encoder.emb.weight' in same[2] and not same[3] and same[0] == {k for k in start if k.startswith('encoder.') and 'encoder.norm' not in k}

@pytest.mark.parametrize('kw,words', [(dict(minutes=0), 'minutes=0'), (dict(minutes=1, frozen=1), 'frozen=1'), (dict(minutes=1, div=0), 'div=0')])
def test_fit_gradual_refuses(make, kw, words):
    learn = make()
    with pytest.raises(ValueError, match=words): learn.fit_gradual(**kw)
    assert learn.opt is None

# Pretraining on one's own text

OPTIONS = dict(**SMALL, minutes=0.25, valid_col='is_valid', tok_tfm=BaseTokenizer(), num_workers=0, bs=8, seq_len=16, verbose=False, min_freq=1)
more = [t + ' onlyhere' for t in texts_df(30, seed=5).text]

def pretrain(df, **kw):
    set_seed(3)
    return self_pretrain(df, **{**OPTIONS, 'unlabelled':more, **kw})

def all_weights(res): return [weights(o) for o in (res.learn, res.scratch, res.pretrained) if o is not None]
def equal(a, b): return all(x.keys() == y.keys() and all(x[k].equal(y[k]) for k in x) for x,y in zip(all_weights(a), all_weights(b)))

@pytest.mark.parametrize('objective', ['lm','mlm','counts'])
def test_validation_is_never_read(df, clock, objective):
    "Other labels or other texts in the validation rows: the same weights, other scores"
    res = pretrain(df, objective=objective)
    labels = df.label.where(~df.is_valid, df.label.map(dict(pos='neg', neg='pos')))
    other = pretrain(df.assign(label=labels), objective=objective)
    assert equal(res, other)
    np.testing.assert_allclose(other.results.accuracy, 1-res.results.accuracy)
    texts = df.text.where(~df.is_valid, 'unseen words ' + df.text)
    assert equal(res, pretrain(df.assign(text=texts), objective=objective))
    assert not equal(res, pretrain(df.assign(text=df.text.where(df.is_valid, df.text + ' film')), objective=objective))

def test_report(df, clock):
    res = pretrain(df, share=0.6, minutes=0.5)
    assert res.results.index.tolist() == ['with pretraining','labels only','baseline']
    np.testing.assert_allclose(res.results[['minutes for text','minutes for labels']][:2], [[0.3,0.2],[0,0.5]])
    assert res.results.accuracy['baseline'] == pytest.approx(baseline(res.learn.dls).accuracy.iloc[-1])
    for name,learn in {'with pretraining':res.learn, 'labels only':res.scratch}.items():
        assert quiet(learn).validate()[1] == pytest.approx(res.results.accuracy[name])
    assert repr(res) == res.results.to_string() and res.learn.predict('a warm film')[0] in ('pos','neg')
    enc = res.pretrained.model.encoder.config
    assert enc.causal and not res.learn.model.encoder.config.causal and res.learn.opt.frozen_idx == 0

@pytest.mark.parametrize('objective', ['lm','mlm'])
def test_what_is_compared_is_alike(df, clock, objective):
    "Where no field is given, the classifier of labels alone has no counted words, which the other lacks, and no other shape"
    res = self_pretrain(df, unlabelled=more, objective=objective, **{k:o for k,o in OPTIONS.items() if k not in SMALL})
    assert res.learn.model.config == res.scratch.model.config and res.learn.model.wide is res.scratch.model.wide is None

@pytest.mark.parametrize('objective,field', [('lm','tie'), ('mlm','mlm_head'), ('counts','share_emb')])
def test_fields_of_other_models(df, monkeypatch, objective, field):
    "What a classifier does not look at is refused before a text is cut; the others are those of its factory"
    monkeypatch.setattr(recipes, 'read_loaders', None)
    with pytest.raises(TypeError, match=f'no option {field!r}'): pretrain(df, objective=objective, **{field:True})
    mine,theirs = (inspect.signature(f).parameters.keys() & fields_of(*ROLES) for f in (self_pretrain, transformer_classifier_learner))
    assert mine == theirs - {'n_out'}

def below(df, **kw):
    "The warnings of a classifier that is not trained"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        pretrain(df, minutes=0.2, lr=1e-9, compare=False, **kw)
    return [o for o in seen if '`baseline`' in str(o.message)]

def test_worse_than_the_baseline(df, clock):
    "A warning with both figures, for labels and for numbers; none where the baseline is beaten"
    words = df.assign(text=df.label + ' ' + df.text)
    said, = below(words)
    assert 'accuracy' in str(said.message) and 'of a linear model' in str(said.message)
    assert len(below(words.assign(score=words.label.eq('pos')*10.+0.5), label_col='score')) == 1
    res = pretrain(df, minutes=0.2, compare=False)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        recipes._beside(res.learn.dls, recipes.Target.of(res.learn.dls), 1.)

def test_counts(df, clock, monkeypatch):
    "Vectors counted in all texts but those of validation are the embeddings that training starts with; no language model"
    counted,started = [],[]
    def count(texts, vocab_sz, d):
        counted.append((texts, count_vectors(texts, vocab_sz, d)))
        return counted[-1][1]
    fit_minutes = Learner.fit_minutes
    def fit(learn, minutes, *args):
        started.append((minutes, weights(learn)))
        fit_minutes(learn, minutes, *args)
    monkeypatch.setattr(recipes, 'count_vectors', count)
    monkeypatch.setattr(Learner, 'fit_minutes', fit)
    res = pretrain(df, objective='counts', minutes=0.3)
    (texts,vectors), = counted
    vocab = text_vocab(res.learn.dls)
    there = tokenize_texts([*{*df.text[~df.is_valid], *more}], tok=BaseTokenizer())
    assert sorted([vocab[i] for i in o] for o in texts) == sorted(map(list, there))
    (minutes,with_counts),(same,without) = started
    assert minutes == same == 0.3 and with_counts['encoder.emb.weight'].equal(vectors) and not without['encoder.emb.weight'].equal(vectors)
    assert res.pretrained is None and not weights(res.learn)['encoder.emb.weight'].equal(vectors)
    assert 0 < res.results['minutes for text'].iloc[0] < 0.3 and res.results['minutes for labels'].tolist()[:2] == [0.3,0.3]

@pytest.mark.parametrize('objective', ['lm','mlm'])
def test_language_model_begins_with_counts(df, clock, monkeypatch, objective):
    "The vectors of its own texts, if these are as many as a vector has numbers; if they are fewer, random ones"
    began = []
    fit_minutes = Learner.fit_minutes
    def fit(learn, *args, **kwargs):
        began.append((learn, learn.model.encoder.emb.weight.detach().clone()))
        fit_minutes(learn, *args, **kwargs)
    monkeypatch.setattr(Learner, 'fit_minutes', fit)
    for n in (len(df), 14):
        lm = pretrain(df[:n], objective=objective, minutes=0.2, compare=False, unlabelled=None).pretrained
        emb = next(emb for learn,emb in began if learn is lm)
        texts = [o.numpy() for ds in (lm.dls.train_ds, lm.dls.valid_ds) for o in ds.tls[0]]
        enough = len(texts) >= emb.shape[1]
        assert enough == (n > 14) and (enough and emb.equal(count_vectors(texts, *emb.shape))) == enough
        assert enough or 0.015 < emb.std() < 0.025 # as any embedding

@pytest.mark.parametrize('objective', ['lm','mlm'])
def test_fewer_tokens_than_numbers(df, clock, objective):
    "Characters: too few to count vectors of this width; the language model begins as any other"
    res = pretrain(df, objective=objective, tok_tfm=CharTokenizer(), d_model=64, minutes=0.2, compare=False)
    vocab_sz = len(text_vocab(res.learn.dls))
    assert vocab_sz < 64 <= len(res.pretrained.dls.train_ds) + len(res.pretrained.dls.valid_ds) and len(res.results) == 2

@pytest.mark.parametrize('objective', ['lm','mlm','counts'])
def test_empty_texts(df, clock, objective):
    res = pretrain(df.assign(text=df.text.where(df.index % 8 > 0, '')), objective=objective, tok_tfm=CharTokenizer(), minutes=0.2, num_workers=1, compare=False)
    assert np.isfinite(res.results.accuracy).all()

def test_few_texts(df, clock):
    "Ten texts are enough for one to validate the language model on"
    res = pretrain(df[:14], unlabelled=None, minutes=0.2, bs=4)
    assert len(res.pretrained.dls.valid_ds) == 1

@pytest.mark.parametrize('objective', ['lm','mlm'])
def test_dropout(df, clock, objective):
    "That of a preset for labels alone, one that is given for both"
    ps = lambda **kw: [(c.p, c.emb_p) for c in (o.model.config for o in (lambda r: (r.pretrained, r.learn, r.scratch))(pretrain(df, objective=objective, **{**dict(minutes=0.2), **kw})))]
    assert ps(config='reviews') == [(0.1,0.), (0.4,0.), (0.4,0.)] and ps(config='reviews', p=0.3) == [(0.3,0.)]*3
    assert ps(config='llama', emb_p=0.2) == [(0.,0.2)]*3 and ps() == [(0.1,0.1)]*3

def test_vocabulary(df, clock):
    "From training and unlabelled texts, not from validation; the same for all; validation texts among the unlabelled ones are left out"
    df = df.assign(text=df.text.where(~df.is_valid, df.text + ' secret'))
    for unlabelled in (more + df.text.tolist(), more + (df.text.str.upper() + ' ').tolist(), pd.DataFrame(dict(text=more)), pd.Series(more)):
        res = pretrain(df, unlabelled=unlabelled, compare=False, minutes=0.2)
        vocab = text_vocab(res.learn.dls)
        assert res.scratch is None and len(res.results) == 2
        assert list(vocab) == list(text_vocab(res.pretrained.dls)) and 'onlyhere' in vocab and 'secret' not in vocab
    assert 'secret' in text_vocab(pretrain(df, valid_texts=True, compare=False, minutes=0.2).learn.dls)
    assert 'onlyhere' not in text_vocab(pretrain(df, unlabelled=None, compare=False, minutes=0.2).learn.dls)

def test_options_of_both_loaders(df, clock):
    "A batch size for validation holds for both; `starts` is for the language model"
    for starts in (True,False):
        res = pretrain(df, tok_tfm=CharTokenizer(), val_bs=3, starts=starts, compare=False, minutes=0.2)
        assert res.pretrained.dls.valid.bs == res.learn.dls.valid.bs == 3
        assert (text_vocab(res.learn.dls)[res.pretrained.dls.train_ds[0][0][0]] == 'xxbos') == starts

def test_pairs_are_learned_as_texts_are_cut(df):
    "From what the rules make of the texts, as `from_df` does"
    pytest.importorskip('tokenizers')
    tok = BPETokenizer(300)
    both = recipes.read_loaders(df.assign(text=df.text.str.title()), 'text', 'label', None, df.is_valid.to_numpy(), 0, bs=4, seq_len=8, tok_tfm=tok, rules=iter([str.lower]), num_workers=0)
    assert all(TextCodec(dls).rules == [str.lower] for dls in both)
    joined = [p for p in tok.pieces if len(p) > 1]
    assert 'warm' in ''.join(joined) and not any(re.search('[A-Z]', p) for p in joined)

def test_stopped_in_the_comparison(df, clock, monkeypatch):
    "Ctrl-C in the last training: what was pretrained is returned"
    fit,begun = Learner.fit_minutes,[]
    def fit_or_stop(learn, *args):
        begun.append(learn)
        if len(begun) == 2: raise KeyboardInterrupt
        fit(learn, *args)
    monkeypatch.setattr(Learner, 'fit_minutes', fit_or_stop)
    with pytest.warns(UserWarning, match='stopped by hand'): res = pretrain(df, objective='counts', minutes=0.2)
    assert res.results.index.tolist() == ['with pretraining','baseline'] and res.scratch is None and res.learn is begun[0]

def test_other_targets(df, clock):
    "Several labels, numbers; fields of a classifier alone; a random split"
    kw = dict(minutes=0.2, objective='mlm', pool='max', token_p=0.1)
    many = pretrain(df, label_col='tags', label_delim=';', **kw)
    assert quiet(many.learn).validate()[0] > 0 and 0 <= many.results.accuracy.min() <= 1 and many.learn.model.config.token_p == 0.1
    preds,targs = many.scratch.get_preds()
    assert many.results.accuracy['labels only'] == pytest.approx(((preds > 0.5) == targs).float().mean().item())
    numbers = pretrain(df, label_col='score', valid_col=None, valid_pct=0.3, **kw)
    assert list(numbers.results)[0] == 'mse' and len(numbers.learn.dls.valid_ds) == 24

@pytest.mark.parametrize('kw,error,words', [(dict(label_col='lable'), ValueError, "'lable'"), (dict(text_col='txt'), ValueError, "'txt'"), (dict(valid_col='valid'), ValueError, "'valid'"),
    (dict(text_col=['text','label']), ValueError, 'name one column'), (dict(minutes=0), ValueError, 'minutes=0'), (dict(minutes=None), ValueError, 'minutes=None'), (dict(share=1), ValueError, 'share=1'), (dict(objective='bert'), ValueError, "objective='bert'"),
    (dict(unlabelled=[]), ValueError, 'unlabelled holds no text'), (dict(unlabelled=pd.DataFrame(dict(t=['a']))), ValueError, "no column 'text'"), (dict(unlabelled=['a', None]), TypeError, 'number 1 is None'),
    (dict(d_modle=3), TypeError, "'d_modle'"), (dict(minute=3), TypeError, "'minute'; close to it are .'minutes'"), (dict(config='gtp2'), ValueError, "'gtp2'"), (dict(n_heads=3), ValueError, 'n_heads=3')])
def test_refused(df, kw, error, words, monkeypatch):
    monkeypatch.setattr(Learner, 'fit', lambda *a, **k: pytest.fail('it trains before it looks'))
    with pytest.raises(error, match=words): pretrain(df, **kw)

@pytest.mark.parametrize('more', [None,['same']])
def test_nothing_to_read(df, more):
    "Every text is one of validation, too"
    with pytest.raises(ValueError, match='every text .* is one of validation.*valid_texts=True'): pretrain(df.assign(text='same'), unlabelled=more)
