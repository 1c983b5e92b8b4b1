"Batches that grow: what the model sees, when, and who is refused"
import math, pytest
from functools import partial
from fastai.text.all import AWD_LSTM, Callback, language_model_learner, set_seed
from hypothesis import given, strategies as st
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.learn.mlm import transformer_mlm_learner
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import CharTokenizer
from fastai_txf.train.batch_warmup import BatchWarmup, doubling
from fastai_txf.train.resume import ResumeCallback
from fixtures import *

class Watch(Callback):
    "What the model is given, in training and in validation, with the part of the fit that is done"
    needs_logits = False
    def before_fit(self): self.train,self.valid = [],[]
    def before_batch(self): (self.train if self.training else self.valid).append((self.pct_train, self.x, self.y))

def flat_dls(**kw):
    texts = ['a warm and clever film. ', 'the dull story was cold. ']*200
    return LMDataLoaders.from_texts(texts, texts[:40], tok_tfm=CharTokenizer(), **{**dict(bs=16, seq_len=64), **kw})

@given(pct=st.floats(0, 1), start=st.integers(1, 300), more=st.integers(0, 300), warmup=st.floats(1e-6, 1))
def test_doubling(pct, start, more, warmup):
    "From the start to the full size by doublings alone, full from the end of the warm-up on"
    full = start+more
    size = doubling(pct, start, full, warmup)
    assert size == full or size/start in [2**i for i in range(10)]
    assert start <= size <= full and (pct < warmup or size == full)
    assert doubling(0, start, full, warmup) == start
    assert size <= doubling(min(1, pct+0.1), start, full, warmup)

@pytest.mark.parametrize('loaders', [flat_dls, partial(flat_dls, windows='random', epoch_len=9), 'fastai'])
@pytest.mark.parametrize('kw', [dict(seq_len=4), dict(seq_len=None, bs=2), dict(seq_len=4, bs=2, warmup=1.)])
def test_cut(loaders, kw, df):
    "The batches of the loader, each cut as its place in the fit says; validation is whole"
    def seen(*cbs):
        set_seed(0)
        dls = make_dls(df, is_lm=True, seq_len=16) if loaders == 'fastai' else loaders()
        learn = quiet(transformer_lm_learner(dls, **SMALL, cbs=(watch := Watch())))
        learn.fit_one_cycle(3, 1e-3, cbs=[*cbs])
        return watch
    whole,cut = seen(), seen(BatchWarmup(**kw))
    assert len(whole.train) == len(cut.train) and len(whole.valid) == len(cut.valid)
    assert all(a.shape == b.shape for (_,a,_),(_,b,_) in zip(whole.valid, cut.valid))
    sizes = set()
    for (_,x,y),(pct,short,targ) in zip(whole.train, cut.train):
        sl,bs = (doubling(pct, kw.get(k) or n, n, kw.get('warmup', 0.3)) for k,n in (('seq_len', x.shape[1]), ('bs', x.shape[0])))
        assert short.equal(x[:bs,:sl]) and targ.equal(y[:bs,:sl]) and type(short) is type(x)
        sizes.add(short.shape)
    assert len(sizes) > 2

def test_by_the_clock():
    "Under `fit_minutes` the parts are those of the time"
    class Clock(Callback):
        order = -21
        def before_batch(self):
            if self.training: self.learn.time_budget.used += 0.6
    watch = Watch()
    quiet(transformer_lm_learner(flat_dls(), **SMALL, cbs=watch)).fit_minutes(1, 1e-3, cbs=[BatchWarmup(seq_len=8, warmup=0.5), Clock()])
    assert len(watch.train) > 20
    for pct,x,_ in watch.train: assert x.shape[1] == doubling(pct, 8, 64, 0.5) or x.shape[1] < 64 and pct >= 0.5
    assert {8,16,32,64} <= {x.shape[1] for _,x,_ in watch.train}

def test_resumed(tmp_path):
    "A fit that was broken off inside the warm-up ends as if it had not been"
    class Stop(Callback):
        order = 200
        def __init__(self, at=None): self._at = at
        def after_batch(self):
            if self.training and self.learn.train_iter == self._at: raise KeyboardInterrupt
    def new():
        set_seed(0)
        return quiet(transformer_lm_learner(flat_dls(), path=tmp_path, **SMALL))
    def cbs(seq_len=8, at=None): return [BatchWarmup(seq_len=seq_len, bs=4, warmup=0.6), ResumeCallback('run', every=1), Stop(at)]
    whole = new()
    whole.fit_one_cycle(2, 1e-2, cbs=cbs())
    with pytest.raises(KeyboardInterrupt): new().fit_one_cycle(2, 1e-2, cbs=cbs(at=3))
    with pytest.raises(ValueError, match='another run'): new().fit_one_cycle(2, 1e-2, cbs=cbs(seq_len=16))
    again = new()
    again.fit_one_cycle(2, 1e-2, cbs=cbs())
    assert not changed(again, weights(whole)) and [*map(float, again.recorder.losses)] == [*map(float, whole.recorder.losses)]

def test_lr_find_is_whole(tmp_path):
    "The search has full batches, and the next fit short ones"
    learn = quiet(transformer_lm_learner(flat_dls(), path=tmp_path, **SMALL, cbs=[BatchWarmup(seq_len=8, bs=2), watch := Watch()]))
    learn.lr_find(num_it=8, show_plot=False)
    assert {o.shape for _,o,_ in watch.train} <= {(16,64), (16,dls_last(learn))}
    learn.fit(1, 1e-3)
    assert watch.train[0][1].shape == (2,8)

def dls_last(learn): return learn.dls.train.last_len

def test_masked_model(df):
    "A masked model takes it where its loaders are those of a language model"
    dls = make_dls(df, is_lm=True, seq_len=16)
    learn = quiet(transformer_mlm_learner(dls, **SMALL, cbs=(watch := Watch())))
    learn.fit(2, 1e-3, cbs=BatchWarmup(seq_len=4))
    assert watch.train[0][1].shape[1] == 4 and max(x.shape[1] for _,x,_ in watch.train) == 16

@pytest.mark.parametrize('kw,why', [(dict(seq_len=None), 'give seq_len, bs, or both'), (dict(seq_len=0), 'seq_len=0 is out of range'), (dict(bs=1.5), 'bs=1.5 is out of range'), (dict(bs=2, warmup=0), 'warmup=0 is out of range: a part of the fit'),
                                    (dict(bs=2, warmup=math.nan), 'warmup=nan is out of range'), (dict(bs=2, warmup=1.1), 'warmup=1.1 is out of range'), (dict(bs=2, warmup='half'), "warmup='half' is out of range")])
def test_refuses_options(kw, why):
    with pytest.raises(ValueError, match=why): BatchWarmup(**kw)

def test_refuses_where_it_fits_nothing(make, dls_lm):
    "Before a weight has moved"
    for kw,why in ((dict(seq_len=17), 'seq_len=17 is more than the 16'), (dict(seq_len=None, bs=9), 'bs=9 is more than the 8')):
        learn = quiet(transformer_lm_learner(dls_lm, **SMALL))
        before = weights(learn)
        with pytest.raises(ValueError, match=why): learn.fit(1, cbs=BatchWarmup(**kw))
        assert not changed(learn, before)
    with pytest.raises(TypeError, match='no batches of a language model'): make('clf').fit(1, cbs=BatchWarmup(4))
    with pytest.raises(ValueError, match='carries a state from batch to batch'): quiet(language_model_learner(dls_lm, AWD_LSTM, pretrained=False)).fit(1, cbs=BatchWarmup(4))
