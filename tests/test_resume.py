"A training that was killed ends as if it had not been"
import os
from functools import partial
import numpy as np, pandas as pd, pytest, torch
from fastai.text.all import (Callback, CSVLogger, EarlyStoppingCallback, GradientAccumulation, SaveModelCallback, accuracy, set_seed)
from hypothesis import given, settings, strategies as st
from fastai_txf.resume import ResumeCallback, _describe
from fastai_txf.scale import ChunkedLoss, adamw
from fastai_txf.stream import LMDataLoaders
from fastai_txf.tokens import CharTokenizer
from fixtures import *

class Kill(Callback):
    "`how` at `event` of training step `at`"
    order = 200
    def __init__(self, at=None, event='after_batch', how=None): self.at,self.event,self.how = at,event,how
    def __call__(self, event_name):
        if event_name == self.event and self.learn.train_iter == self.at: (self.how or stop)()

def stop(): raise KeyboardInterrupt

N = 2 # epochs

@pytest.fixture
def new(make):
    "`new(kind, seed, …)`: a learner with loaders, weights and random numbers of its own"
    def _new(kind, seed, **kw):
        set_seed(seed)
        dls = make_dls(texts_df(40), bs=4, **(dict(is_lm=True, seq_len=16) if kind == 'lm' else {}))
        return make(kind, dls=dls, **{**(dict(metrics=accuracy, token_p=0.1) if kind == 'clf' else {}), **kw})
    return _new

runs = {}

@pytest.fixture
def whole(new):
    "`whole(kind)`: what an uninterrupted run leaves behind"
    def _whole(kind):
        if kind not in runs: runs[kind] = run(new(kind, 0), Kill())
        return runs[kind]
    return _whole

def run(learn, *cbs, fit='fit_one_cycle'):
    "All that a fit leaves behind"
    getattr(learn, fit)(N, 1e-2, cbs=[*cbs])
    rec = learn.recorder
    return dict(losses=torch.stack([torch.as_tensor(o) for o in rec.losses]), rows=torch.tensor(rec.values), lrs=torch.tensor(rec.lrs), iters=torch.tensor(rec.iters),
                mom=torch.tensor(rec.hps['mom']), drawn=torch.rand(3), np=torch.from_numpy(np.random.rand(3)), **weights(learn))

def assert_same(a, b):
    "Bit for bit"
    assert a.keys() == b.keys()
    for k in a: assert torch.equal(a[k], b[k]), k

def killed(learn, *cbs, fit='fit_one_cycle'):
    with pytest.raises(KeyboardInterrupt): getattr(learn, fit)(N, 1e-2, cbs=[*cbs])

# Exact

@both
def test_resumed_is_whole(new, whole, kind):
    "Killed at any step and any event, resumed by a learner that began with other random numbers"
    steps = len(whole(kind)['losses'])
    assert steps >= 16
    @settings(max_examples=2)
    @given(at=st.integers(1, steps-1), every=st.integers(1, 12), event=st.sampled_from(['before_batch','after_pred','after_batch']), seed=st.integers(1, 9))
    def check(at, every, event, seed):
        killed(new(kind, 0), ResumeCallback(every=every), Kill(at, event))
        assert_same(whole(kind), run(new(kind, seed), ResumeCallback(every=every), Kill()))
    check()

@pytest.mark.parametrize('windows', ['continuous','random'])
def test_ids_in_one_array(make, windows):
    "Loaders that keep their order themselves"
    def new(seed):
        set_seed(seed)
        return make('lm', dls=LMDataLoaders.from_df(texts_df(40), text_col='text', valid_col='is_valid', tok_tfm=CharTokenizer(), bs=4, seq_len=16, windows=windows))
    whole = run(new(0), Kill())
    at = len(whole['losses'])*3//4                                          # in the second epoch
    killed(new(0), ResumeCallback(every=3), Kill(at))
    assert_same(whole, run(new(5), ResumeCallback(every=3), Kill()))

def test_same_run_in_another_process(new):
    "Nothing that tells a run from another depends on where objects lie in memory"
    learn = new('clf', 0)
    learn.n_epoch = 1
    learn.create_opt()
    about = str(_describe(learn, []))
    assert 'adam_step' in about and ' at 0x' not in about

@pytest.mark.parametrize('event', ['before_validate','after_epoch'])
def test_killed_between_epochs(new, whole, event):
    killed(new('clf', 0), ResumeCallback(every=3), Kill(len(whole('clf')['losses'])//N, event))
    assert_same(whole('clf'), run(new('clf', 1), ResumeCallback(every=3), Kill()))

@pytest.mark.parametrize('kind,kw,cbs,low', [('clf', {}, [partial(GradientAccumulation, 6)], 'to_fp16'), ('lm', dict(opt_func=adamw), [ChunkedLoss], 'to_bf16')])
def test_what_else_a_run_has(new, kind, kw, cbs, low):
    "Accumulated gradients and the gradient scaler; torch's optimizer and a loss without logits"
    def learner(seed): return getattr(new(kind, seed, **kw), low)()
    def more(): return [cb() for cb in cbs]
    want = run(learner(0), Kill(), *more())
    killed(learner(0), ResumeCallback(every=3), Kill(11), *more())
    assert_same(want, run(learner(1), ResumeCallback(every=3), Kill(), *more()))

def test_killed_process(new, whole, tmp_path):
    "Two processes that are gone without a word, and one that ends; then the file is gone, too"
    want = whole('lm')
    for seed,at in ((0,5),(1,15)):
        pid = os.fork()
        if pid == 0:
            try: run(new('lm', seed), ResumeCallback(every=4), Kill(at, 'after_step', partial(os._exit, 3)))
            finally: os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert [o.name for o in (tmp_path/'models').iterdir()] == ['resume.pth']
    assert_same(want, run(new('lm', 2), ResumeCallback(every=4), Kill()))
    assert not list((tmp_path/'models').iterdir())

def test_other_callbacks_go_on(new, tmp_path):
    "The best value and the patience are remembered, no finished epoch is saved or counted again, the log is whole"
    def cbs(*more): return [SaveModelCallback(fname='best'), EarlyStoppingCallback(patience=2), CSVLogger(), Worse(), *more]
    learn = new('clf', 0)
    learn.fit(9, 1e-2, cbs=cbs(Kill()))
    want,rows,log = weights(learn),learn.recorder.values,pd.read_csv(tmp_path/'history.csv')
    assert len(rows) == 3
    for at in (10,20):
        learn = new('clf', 0)
        with pytest.raises(KeyboardInterrupt): learn.fit(9, 1e-2, cbs=cbs(ResumeCallback(), Kill(at)))
        saved = (tmp_path/'models'/'best.pth').stat().st_mtime_ns
        learn = new('clf', 1)
        learn.fit(9, 1e-2, cbs=cbs(ResumeCallback(), Kill()))
        assert learn.recorder.values == rows and not changed(learn, want)
        assert (tmp_path/'models'/'best.pth').stat().st_mtime_ns == saved
        assert pd.read_csv(tmp_path/'history.csv').drop(columns='time').equals(log.drop(columns='time'))
        assert all(cb.run for cb in learn.cbs)

@pytest.mark.parametrize('at', [3,10])
def test_fine_tune(new, at):
    "Two fits with one callback: killed in either"
    class KillIn(Kill):
        def __call__(self, event_name):
            if self.opt.frozen_idx == (1-(at == 10))*(len(self.opt.param_lists)-1): super().__call__(event_name)
    def tuned(seed, *cbs):
        learn = new('clf', seed)
        learn.fine_tune(2, 1e-2, freeze_epochs=1, cbs=[*cbs])
        return dict(drawn=torch.rand(1), rows=torch.tensor(learn.recorder.values), **weights(learn))
    want = tuned(0, KillIn())
    with pytest.raises(KeyboardInterrupt): tuned(0, ResumeCallback(every=2), KillIn(at))
    assert_same(want, tuned(1, ResumeCallback(every=2), KillIn()))

def test_costs_nothing(new, whole):
    "The callback alone changes nothing, and can stay in the learner: predictions and the search for a rate leave the file alone"
    learn = new('clf', 0, cbs=ResumeCallback(every=3))
    assert_same(whole('clf'), run(learn))
    killed(learn, Kill(9))
    file = learn.path/learn.model_dir/'resume.pth'
    before = file.read_bytes()
    learn.validate(); learn.predict('a warm film'); learn.get_preds(); learn.lr_find(num_it=5, show_plot=False)
    assert file.read_bytes() == before

# Refused

def test_refuses(new, tmp_path):
    "Another run's file, with the difference in words; nothing is changed or removed"
    killed(new('clf', 0), ResumeCallback('mine'), Kill(3))
    def refused(match, learn, fit=lambda learn: learn.fit_one_cycle(N, 1e-2, cbs=[ResumeCallback('mine'), Kill()]), error=ValueError):
        before = weights(learn)
        with pytest.raises(error, match=match): fit(learn)
        assert not changed(learn, before) and (tmp_path/'models'/'mine.pth').exists()
    refused(r'another run, epochs 2 \(here 5\)', new('clf', 0), lambda learn: learn.fit_one_cycle(5, 1e-2, cbs=[ResumeCallback('mine'), Kill()]))
    refused('schedule: lr', new('clf', 0), lambda learn: learn.fit_one_cycle(N, 2e-2, cbs=[ResumeCallback('mine'), Kill()]))
    refused('callbacks', new('clf', 0), lambda learn: learn.fit_one_cycle(N, 1e-2, cbs=ResumeCallback('mine')))
    refused(r"parameters: encoder.emb.weight \[\d+, 16\] \(here \[\d+, 32\]\)", new('clf', 0, d_model=32))
    refused(r"optimizer \['weight_decay', .*'adam_step'\] \(here \['Adam'\]\)", new('clf', 0, opt_func=adamw))
    refused('batches', new('lm', 0))
    refused('by the clock', new('clf', 0), lambda learn: learn.fit_minutes(1, cbs=ResumeCallback('mine')), TypeError)
    torch.save(dict(a=1), tmp_path/'models'/'mine.pth')
    refused('not written by ResumeCallback', new('clf', 0))
    with pytest.raises(ValueError, match='every=0'): ResumeCallback(every=0)
