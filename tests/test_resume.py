"A training that was killed ends as if it had not been"
import json, os, random, subprocess, sys, warnings
from collections import Counter, defaultdict
from copy import deepcopy
from functools import partial
import numpy as np, pandas as pd, pytest, torch
from fastai.text.all import (Adam, Callback, CancelFitException, CSVLogger, CrossEntropyLossFlat, DataLoaders, EarlyStoppingCallback, FocalLossFlat, GradientAccumulation, Learner, MSELossFlat, Recorder, RegressionBlock, SaveModelCallback, accuracy,
                             set_seed)
from fastai.callback.schedule import LRFinder
from fastai.data.load import DataLoader
from hypothesis import given, settings, strategies as st
from pathlib import Path
from fastai_txf.base.files import load_tensors, save_tensors
from fastai_txf.model.layers import TransformerBlock
from fastai_txf.train import resume as resume_room
from fastai_txf.train.resume import ResumeCallback
from fastai_txf.train.runs import _about_data, describe_run, differences
from fastai_txf.train.losses import ChunkedLoss
from fastai_txf.train.optim import adamw, SpareDecay
from fastai_txf.train.muon import muon
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.text.tokens import CharTokenizer
from fixtures import *

class Kill(Callback):
    "`how` at `event` of training step `at`"
    order = 200
    def __init__(self, at=None, event='after_batch', how=None): self._at,self._event,self._how = at,event,how # under other names: no options of the run
    def __call__(self, event_name):
        if event_name == self._event and self.learn.train_iter == self._at: (self._how or stop)()

N = 2 # epochs

@pytest.fixture
def new(make):
    "`new(kind, seed, …)`: a learner with loaders, weights and random numbers of its own"
    def _new(kind, seed, df=None, data={}, **kw):
        set_seed(seed)
        dls = make_dls(texts_df(40) if df is None else df, **{**dict(bs=4), **(dict(is_lm=True, seq_len=16) if kind == 'lm' else {}), **data})
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

def test_progress_bars(tmp_path):
    "With fastai's own bars, which a learner has unless they are taken away, and an end in the second epoch"
    x = torch.randn(16, 3)
    def line(seed):
        set_seed(seed)
        dl = DataLoader(list(zip(x, x.sum(1, keepdim=True))), bs=4, shuffle=True)
        return Learner(DataLoaders(dl, dl), torch.nn.Linear(3, 1), MSELossFlat(), path=tmp_path)
    assert hasattr(line(0), 'progress')
    whole = run(line(0), Kill())
    killed(line(0), ResumeCallback(every=3), Kill(6))
    assert_same(run(line(1), ResumeCallback(every=3), Kill()), whole)

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

def described(learn):
    learn.n_epoch = 1
    learn.create_opt()
    return describe_run(learn, [*learn.cbs, GradientAccumulation(3), SaveModelCallback(), *learn.metrics])

_elsewhere = """import json, torch; from fastai.text.all import accuracy, partial, Adam; from fixtures import *; from test_resume import described
from fastai_txf.all import *
print(json.dumps(described(quiet(transformer_classifier_learner(make_dls(texts_df(40), bs=4), **SMALL, metrics=accuracy, opt_func=partial(Adam, eps=1e-4))))))"""

def test_same_run_in_another_process(new):
    "What tells a run from another depends on no hash and on no place in memory"
    about = json.dumps(described(new('clf', 5, token_p=0., opt_func=partial(Adam, eps=1e-4))))
    assert 'adam_step' in about and ' at 0x' not in about
    env = {**os.environ, 'PYTHONHASHSEED':'7', 'PYTHONPATH':os.pathsep.join(sys.path)}
    there = subprocess.run([sys.executable, '-c', _elsewhere], env=env, capture_output=True, text=True, check=True).stdout
    assert json.loads(there.strip().split('\n')[-1]) == json.loads(about)

@pytest.mark.parametrize('event', ['before_validate','after_epoch'])
def test_killed_between_epochs(new, whole, event):
    steps = len(whole('clf')['losses'])                                     # before the next learner draws its numbers
    killed(new('clf', 0), ResumeCallback(every=3), Kill(steps//N, event))
    assert_same(whole('clf'), run(new('clf', 1), ResumeCallback(every=3), Kill()))

@pytest.mark.parametrize('kind,kw,cbs,low', [('clf', {}, [partial(GradientAccumulation, 6)], 'to_fp16'), ('lm', dict(opt_func=adamw), [ChunkedLoss], 'to_bf16'),
                                                ('lm', dict(config='modern', bigrams=40, opt_func=muon), [], 'to_bf16')])
def test_what_else_a_run_has(new, kind, kw, cbs, low):
    "Accumulated gradients and the gradient scaler; torch's optimizer and a loss without logits; normalised queries, pairs and Muon"
    def learner(seed): return getattr(new(kind, seed, **kw), low)()
    def more(): return [cb() for cb in cbs]
    want = run(learner(0), Kill(), *more())
    killed(learner(0), ResumeCallback(every=3), Kill(11), *more())
    assert_same(want, run(learner(1), ResumeCallback(every=3), Kill(), *more()))

def test_decay_after_it(new):
    "What SpareDecay spares in a resumed fit, it spares in no later one"
    def spared(learn): return {n for n,p in learn.model.named_parameters() if not learn.opt.state[p].get('do_wd', True)}
    killed(new('lm', 0), ResumeCallback(), SpareDecay(), Kill(11))
    learn = new('lm', 1)
    learn.create_opt()
    own = spared(learn)
    run(learn, ResumeCallback(), SpareDecay(), Kill())
    assert spared(learn) == own and 'encoder.emb.weight' not in own

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

@pytest.mark.parametrize('at', [8,11])
def test_what_counts_through_fine_tune(new, at):
    "What callbacks and a loss have counted and learnt in the first fit is there in the second, though the first is skipped"
    class Tally(Callback):
        def __init__(self, steps=0, seen=()): self.steps,self.seen,self.first = steps,[*seen],None
        def after_step(self):
            self.steps += 1
            self.seen.append(self.steps)
            if self.first is None: self.first = float(self.loss)
    class KillLast(Kill):
        def __call__(self, event_name):
            if self.opt.frozen_idx == 0: super().__call__(event_name)
    def tuned(seed, *cbs):
        loss,tally = Temperature(), Tally()
        learn = new('clf', seed, loss_func=loss, splitter=lambda m: [[*m.encoder.parameters()], [*m.head.parameters(), loss.t]])
        learn.fine_tune(2, 1e-2, freeze_epochs=1, cbs=[*cbs, tally, GradientAccumulation(7)])
        return dict(t=loss.t.detach(), counts=torch.tensor([loss.calls, loss.seen, tally.steps, tally.first, *tally.seen]), epochs=torch.tensor(learn.last_fit['epochs']), **weights(learn))
    want = tuned(0, KillLast())
    with pytest.raises(KeyboardInterrupt): tuned(0, ResumeCallback(every=4), KillLast(at))
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        assert_same(want, tuned(1, ResumeCallback(every=4), KillLast()))

def test_resume_needs_the_record(new):
    learn = new('clf', 0)
    learn.remove_cb(Recorder)
    with pytest.raises(ValueError, match=r'learn.add_cb.Recorder'): learn.fit(1, 1e-3, cbs=ResumeCallback())
    learn.add_cb(Recorder())
    learn.fit(1, 1e-3, cbs=ResumeCallback())

def test_refuses_another_first_fit(new, capsys):
    "A file of the second fit of `fine_tune` belongs to the first as it was; that one is skipped, aloud"
    def tune(*cbs, n=1): new('clf', 0).fine_tune(2, 1e-2, freeze_epochs=n, cbs=[ResumeCallback(), *cbs])
    class KillLast(Kill):
        def __call__(self, event_name):
            if self.opt.frozen_idx == 0: super().__call__(event_name)
    with pytest.raises(KeyboardInterrupt): tune(KillLast(3))
    with pytest.raises(ValueError, match='epochs 1 .here 3.'): tune(KillLast(), n=3)
    learn = new('clf', 0)
    before = weights(learn)
    with pytest.raises(ValueError, match='another run'): learn.fit_one_cycle(2, 1e-2, cbs=[ResumeCallback(), KillLast()])
    assert not changed(learn, before)
    capsys.readouterr()
    tune(KillLast())
    assert 'this fit is done, and a later one goes on' in capsys.readouterr().out

@pytest.mark.parametrize('validates', [0,1])
def test_warmup_counts_batches_of_training(new, validates):
    "The schedule is the same after a validation, of another number of batches, in one of the processes; also in the second fit"
    def fitted(seed, *cbs, validates=0):
        learn = new('clf', seed)
        if validates: learn.validate()
        for n in (1,2): learn.fit_warmup(n, 1e-2, warmup=12, cbs=[*cbs])
        return dict(lrs=torch.tensor(learn.recorder.lrs), **weights(learn))
    class KillLast(Kill):
        def __call__(self, event_name):
            if self.n_epoch == 2: super().__call__(event_name)
    want = fitted(0, KillLast())
    assert want['lrs'].argmax() == 11
    with pytest.raises(KeyboardInterrupt): fitted(0, ResumeCallback(every=2), KillLast(5))
    assert_same(want, fitted(1, ResumeCallback(every=2), KillLast(), validates=validates))

@pytest.mark.parametrize('fit,change', [('fit_one_cycle', dict(div=2)), ('fit_one_cycle', dict(div_final=10)), ('fit_one_cycle', dict(moms=(.5,.85,.5))),
                                        ('fit_wsd', dict(warmup=.2)), ('fit_wsd', dict(decay=.7)), ('fit_flat_cos', dict(pct_start=.5))], ids=str)
def test_refuses_another_schedule(new, fit, change):
    "Whatever its shape depends on"
    def go(at=None, **kw): getattr(new('clf', 0), fit)(3, 1e-2, cbs=[ResumeCallback(every=1), Kill(at)], **kw)
    with pytest.raises(KeyboardInterrupt): go(2)
    with pytest.raises(ValueError, match='another run, schedules'): go(**change)
    go()

def test_refuses_the_file_of_the_best_model(new, tmp_path):
    "Two callbacks that would write one file"
    learn = new('clf', 0)
    with pytest.raises(ValueError, match='SaveModelCallback keeps its weights in .*mine.pth'):
        learn.fit_one_cycle(1, 1e-2, cbs=[SaveModelCallback(fname='mine'), ResumeCallback('mine')])
    learn.fit_one_cycle(1, 1e-2, cbs=[SaveModelCallback(fname='mine'), ResumeCallback('other')])
    assert (tmp_path/'models'/'mine.pth').exists()

def test_costs_nothing(new, whole):
    "The callback alone changes nothing, and can stay in the learner: predictions and the search for a rate leave the file alone"
    want = whole('clf') # it draws random numbers, so it comes first
    learn = new('clf', 0, cbs=ResumeCallback(every=3))
    assert_same(want, run(learn))
    killed(learn, Kill(9))
    file = learn.path/learn.model_dir/'resume.pth'
    before = file.read_bytes()
    learn.validate(); learn.predict('a warm film'); learn.get_preds(); learn.lr_find(num_it=5, show_plot=False)
    class Finder(LRFinder): "A search by another name"
    learn.fit(2, cbs=Finder(num_it=6))
    assert file.read_bytes() == before

def test_copy_after_ctrl_c(new):
    "The loader that is left halfway, inside the one that passes over batches, has no iterator any more"
    learn = new('lm', 0)
    with pytest.raises(KeyboardInterrupt): learn.fit(1, 1e-2, cbs=[ResumeCallback(), Kill(3)])
    assert [len(dl) for dl in deepcopy(learn).dls] == [len(dl) for dl in learn.dls]

def test_validation_within_a_fit(new, tmp_path):
    "It leaves the callback at work: a kill after it finds the epoch that it was in, and the end removes the file"
    class Test(Callback):
        def after_epoch(self):
            if self.epoch == 0 and not self.learn.lock.locked(): self.learn.validate()
    def cbs(*more): return [ResumeCallback(every=3), Test(), *more]
    def trained(learn):
        learn.fit_one_cycle(N, 1e-2, cbs=cbs(Kill()))
        return dict(drawn=torch.rand(3), **weights(learn))
    want = trained(new('clf', 0))
    assert not list((tmp_path/'models').iterdir())
    learn = new('clf', 0)
    killed(learn, *cbs(Kill(len(learn.dls.train)+5)))
    file = load_tensors(tmp_path/'models'/'resume.pth', '', '')
    assert (file['epoch'],file['iter']) == (1,3)
    assert_same(want, trained(new('clf', 1)))

def test_two_that_begin_at_once(new, tmp_path):
    "The second to save is refused, the first goes on, and its file is its own"
    class Late(Callback):
        "Another training begins when this one has looked for a file, and is killed"
        order = 50
        def before_fit(self): killed(new('lm', 0), ResumeCallback(every=1), Kill(3))
    file = tmp_path/'models'/'resume.pth'
    with pytest.raises(ValueError, match='another training has begun to keep its state in .*resume.pth: give each a name of its own'):
        new('clf', 1).fit_one_cycle(N, 1e-2, cbs=[ResumeCallback(every=1), Late()])
    run(new('lm', 5), ResumeCallback(every=1), Kill())
    assert not file.exists()
    new('clf', 1).fit_one_cycle(N, 1e-2, cbs=[ResumeCallback('mine', every=1), Late()])
    assert file.exists()

# Refused

def resume(learn, *cbs, fit='fit_one_cycle', lr=1e-2, **kw): getattr(learn, fit)(N, lr, cbs=[ResumeCallback(), Kill(), *cbs], **kw)

def refused(learn, match, *cbs, **kw):
    before = weights(learn)
    with pytest.raises(ValueError, match=f'another run, .*{match}'): resume(learn, *cbs, **kw)
    assert not changed(learn, before)

def test_refuses_another_model(new):
    "Whatever of it leaves all weights their shapes; from the same file, the run that it is of goes on"
    def other(match, **kw): refused(new('lm', 0, **kw), match)
    killed(new('lm', 0), ResumeCallback(), Kill(3))
    other(r"config: positions \w+ \(here alibi\)", positions='alibi')
    other(r"config: n_heads 2 \(here 4\)", n_heads=4)
    other(r"config: p 0.1 \(here 0.5\)", p=0.5)
    other(r"seq_len 16 \(here 17\)", data=dict(seq_len=17))
    other(r"loss: label_smoothing 0.0 \(here 0.1\)", loss_func=CrossEntropyLossFlat(label_smoothing=0.1))
    other(r"loss: weight None \(here checksum", loss_func=CrossEntropyLossFlat(weight=torch.rand(len(new('lm', 0).dls.vocab))))
    other(r"loss: name CrossEntropyLossFlat \(here FocalLossFlat\)", loss_func=FocalLossFlat())
    other(r"opt_func muon_or_adamw \(here adamw\(.*0.001.*hypers: eps \[1e-05.*\(here \[0.001", opt_func=partial(adamw, eps=1e-3))
    other(r"callbacks .*Metric\({'func': 'accuracy'}\)", metrics=accuracy)
    frozen = new('lm', 0)
    frozen.freeze()
    refused(frozen, r"trained: encoder\S+ True \(here False\)")
    resume(new('lm', 0))

def test_refuses_another_module(new):
    "What no configuration says: another range, a block of one's own, another model's dropout"
    class Mine(TransformerBlock): pass
    def numbers(**kw): return new('reg', 0, data=dict(label_col='score', y_block=RegressionBlock()), **kw)
    killed(numbers(y_range=(0,1)), ResumeCallback(), Kill(3))
    refused(numbers(y_range=(0,2)), r"modules: range SigmoidRange\({'low': 0.0, 'high': 1.0}\) \(here")
    refused(numbers(y_range=(0,1), block=Mine), r"modules: encoder.blocks.0 TransformerBlock\(.*\(here Mine")
    def plain(p): return quiet(Learner(DataLoaders(*[DataLoader([(torch.ones(2),torch.ones(1))]*8, bs=2)]*2), torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(p)), MSELossFlat()))
    assert differences(*(described(plain(p)) for p in (0.1,0.2))) == "modules: 1 Dropout({'p': 0.1, 'inplace': False}) (here Dropout({'p': 0.2, 'inplace': False}))"

def test_refuses_another_fit(new):
    "Decay, a plain fit's rate, accumulated gradients"
    killed(new('lm', 0), ResumeCallback(), Kill(3), GradientAccumulation(4))
    refused(new('lm', 0), r"GradientAccumulation\({'n_acc': 4}\).*GradientAccumulation\({'n_acc': 8}\)", GradientAccumulation(8))
    refused(new('lm', 0), r"hypers: wd \[0.01.*\(here \[0.5", GradientAccumulation(4), wd=0.5)
    learn = new('lm', 0, path=new('lm', 0).path/'plain')
    killed(learn, ResumeCallback(), Kill(3), fit='fit')
    refused(learn, r"hypers: lr \[0.01.*\(here \[1e-05", fit='fit', lr=1e-5)
    resume(learn, fit='fit')

def test_refuses_other_data(new):
    "Other labels, or the same ones swapped; other texts, or the same ones in another order"
    df = texts_df(40).assign(label=['abc'[i%3] for i in range(40)])
    killed(new('clf', 0, df), ResumeCallback(), Kill(3))
    def labels(**names): return df.assign(label=df.label.map(lambda o: names.get(o, o)))
    refused(new('clf', 0, labels(a='x', b='a', c='b')), r"vocab: of targets \['a', 'b', 'c'\] \(here \['a', 'b', 'x'\]\)")
    one,more = df.index[~df.is_valid][:2]
    for other in (labels(a='b', b='a'), df.assign(text=df.text.where(df.index != one, df.text[one].replace('film', 'story')+' film')),
                  df.assign(label=df.label.where(df.index != one, 'c')), df.rename(index={one:more, more:one}).sort_index()):
        refused(new('clf', 0, other), r"data: checksum \w{8} \(here \w{8}\)")
    other = df.assign(label=df.label.where(~df.is_valid, 'a'))
    refused(new('clf', 0, other), r"validation: checksum \w{8} \(here \w{8}\)")
    refused(new('clf', 0, df.assign(text=df.text + ' newword')), 'vocab: of texts checksum')
    resume(new('clf', 0, df))

@pytest.mark.parametrize('change', [dict(windows='random'), dict(windows='random', epoch_len=9), dict(ids=7)])
def test_refuses_another_array(make, change):
    "Loaders over one array of ids: one id of it, and how it is cut"
    def new(ids=0, **kw):
        ids = np.arange(5000) % 50 + (np.arange(5000) == 2500)*ids
        return make('lm', dls=LMDataLoaders.from_ids(ids, ids[:200], ['xxunk','xxpad', *(f't{i}' for i in range(97))], bs=4, seq_len=16, **kw))
    killed(new(), ResumeCallback(), Kill(3))
    refused(new(**change), 'data: checksum' if 'ids' in change else 'loader: windows continuous .here random')

def test_any_items(new):
    "A checksum of whatever a training set holds, the same each time though chance has a part, and nothing of the random states is used up"
    class Noisy:
        def __len__(self): return 5000
        def __getitem__(self, i): return dict(x=torch.rand(2)+i, y=np.array([i, 'a'], dtype=object)), np.random.rand(), random.random(), Kill()
    dls = DataLoaders(DataLoader(Noisy(), bs=4), DataLoader([1]))
    set_seed(3)
    want = torch.rand(1), np.random.rand(), random.random()
    set_seed(3)
    first = _about_data(dls)
    assert first['data']['items'] == 5000 and (torch.rand(1), np.random.rand(), random.random()) == want
    assert _about_data(dls) == first
    class Stream:
        def __iter__(self): yield 1
    assert _about_data(DataLoaders(DataLoader(Stream(), n=9), DataLoader([1])))['data']['items'] == 0

def test_files_that_cannot_be_read(new):
    "Cut short, of another kind, or of a version that kept less"
    killed(new('clf', 0), ResumeCallback(), Kill(3))
    learn = new('clf', 0)
    file = learn.path/learn.model_dir/'resume.pth'
    whole = file.read_bytes()
    for bad in (b'abc', b'', whole[:len(whole)//2]):
        file.write_bytes(bad)
        with pytest.raises(ValueError, match='resume.pth cannot be read as .*file of ResumeCallback.*delete it to start anew'): resume(learn)
    file.write_bytes(whole)
    saved = torch.load(file, weights_only=True)
    del saved['run']['loss']
    torch.save(saved, file)
    with pytest.raises(ValueError, match='resume.pth comes from another version.*delete'): resume(learn)

def test_refuses(new, tmp_path):
    "Another run's file, with the difference in words; nothing is changed or removed"
    killed(new('clf', 0), ResumeCallback('mine'), Kill(3))
    def refused(match, learn, fit=lambda learn: learn.fit_one_cycle(N, 1e-2, cbs=[ResumeCallback('mine'), Kill()]), error=ValueError):
        before = weights(learn)
        with pytest.raises(error, match=match): fit(learn)
        assert not changed(learn, before) and (tmp_path/'models'/'mine.pth').exists()
    refused(r'another run, epochs 2 \(here 5\)', new('clf', 0), lambda learn: learn.fit_one_cycle(5, 1e-2, cbs=[ResumeCallback('mine'), Kill()]))
    refused('schedules: lr', new('clf', 0), lambda learn: learn.fit_one_cycle(N, 2e-2, cbs=[ResumeCallback('mine'), Kill()]))
    refused('callbacks', new('clf', 0), lambda learn: learn.fit_one_cycle(N, 1e-2, cbs=ResumeCallback('mine')))
    refused(r"parameters: encoder.emb.weight \[\d+, 16\] \(here \[\d+, 32\]\)", new('clf', 0, d_model=32))
    refused(r"optimizer \['weight_decay', .*'adam_step'\] \(here \['Adam'\]\)", new('clf', 0, opt_func=adamw))
    refused('batches', new('lm', 0))
    refused('by the clock', new('clf', 0), lambda learn: learn.fit_minutes(1, cbs=ResumeCallback('mine')), TypeError)
    torch.save(dict(a=1), tmp_path/'models'/'mine.pth')
    refused('mine.pth is no .*file of ResumeCallback.*delete it', new('clf', 0))
    with pytest.raises(ValueError, match='every=0'): ResumeCallback(every=0)

def test_full_disk(new, whole, tmp_path, monkeypatch):
    "A save that fails warns; training goes on, and the last whole file is what a killed run resumes from"
    def full(o, path):
        if Path(path).exists(): raise OSError(28, f'cannot write {path}: No space left on device')
        save_tensors(o, path)
    monkeypatch.setattr(resume_room, 'save_tensors', full)
    with pytest.warns(UserWarning, match='resume.pth: No space left.*training goes on.*earlier state'):
        assert_same(whole('clf'), run(new('clf', 0), ResumeCallback(every=3), Kill()))
    with pytest.warns(UserWarning, match='training goes on'):
        killed(new('clf', 0), ResumeCallback(every=3), Kill(11))
    saved = torch.load(tmp_path/'models'/'resume.pth', weights_only=True)
    assert (saved['epoch'],saved['iter']) == (0,0)
    monkeypatch.undo()
    assert_same(whole('clf'), run(new('clf', 1), ResumeCallback(every=3), Kill()))

def test_never_written(new, whole, monkeypatch):
    "Nor does a folder that may not be written stop a training"
    def no(o, path): raise PermissionError(13, f'cannot write {path}: Permission denied')
    monkeypatch.setattr(resume_room, 'save_tensors', no)
    with pytest.warns(UserWarning, match='Permission denied.*nothing to resume from'):
        assert_same(whole('clf'), run(new('clf', 0), ResumeCallback(every=3), Kill()))

def test_leftovers(new, tmp_path):
    "What a kill in the middle of writing has left is removed by the next run, other files are not"
    (tmp_path/'models').mkdir()
    for n in ('.resume.pth.abc.tmp','.other.pth.abc.tmp'): (tmp_path/'models'/n).write_bytes(b'half')
    new('clf', 0).fit(1, 1e-2, cbs=ResumeCallback())
    assert [o.name for o in (tmp_path/'models').iterdir()] == ['.other.pth.abc.tmp']

def test_mappings_keep_their_class(new):
    "What a callback counts in a mapping of a class of its own, it goes on counting"
    class Lengths(Callback):
        def before_fit(self): self.seen,self.by_epoch = Counter(),defaultdict(list)
        def after_batch(self):
            if not self.training: return
            self.seen[self.y.sum().item()] += 1
            self.by_epoch[self.epoch].append(self.train_iter)
    want,got = Lengths(),Lengths()
    run(new('clf', 0), want, Kill())
    killed(new('clf', 0), ResumeCallback(every=2), Lengths(), Kill(5))
    run(new('clf', 1), ResumeCallback(every=2), got, Kill())
    assert (got.seen,got.by_epoch) == (want.seen,want.by_epoch) and len(got.by_epoch) == N
    assert isinstance(got.seen, Counter) and got.by_epoch.default_factory is list

class Temperature(torch.nn.Module):
    "A loss with a weight, a buffer and a count of its own"
    def __init__(self):
        super().__init__()
        self.t,self.calls = torch.nn.Parameter(torch.zeros(())),0
        self.register_buffer('seen', torch.zeros(()))
    def forward(self, pred, y):
        if self.training: self.calls += 1; self.seen += len(y)
        return torch.nn.functional.cross_entropy(pred*self.t.exp(), y)
    def activation(self, pred): return (pred*self.t.exp()).softmax(-1)
    def decodes(self, pred): return pred.argmax(-1)

def test_a_loss_that_learns(new):
    "What a loss has learnt and counted is kept, too"
    def learner(seed):
        loss = Temperature()
        return new('clf', seed, loss_func=loss, splitter=lambda m: [[*m.parameters()], [loss.t]])
    want = run(first := learner(0), Kill())
    killed(learner(0), ResumeCallback(every=2), Kill(5))
    assert_same(want, run(last := learner(1), ResumeCallback(every=2), Kill()))
    a,b = first.loss_func,last.loss_func
    assert a.t.item() == b.t.item() != 0 and (a.calls, a.seen) == (b.calls, b.seen)

def test_blocks_left_out_by_chance(new):
    "A weight that no batch after the resumed one reaches keeps its gradient of 0: it decays and its momentum moves it, as without a kill"
    class Sometimes(TransformerBlock):
        def forward(self, x, *args, **kwargs): return x if self.training and torch.rand(1) < .5 else super().forward(x, *args, **kwargs)
    def learner(seed): return new('clf', seed, block=Sometimes, n_layers=3)
    want = run(learner(0), Kill())
    for at in (1,5):
        killed(learner(0), ResumeCallback(every=1), Kill(at))
        assert_same(want, run(learner(1), ResumeCallback(every=1), Kill()))

@pytest.mark.parametrize('stop_early', [False,True])
def test_another_callback_fails_at_the_end(new, whole, tmp_path, stop_early):
    "The file goes last: what fails after the training, in whatever order, does not take it away"
    class Report(Callback):
        order = 500
        def __init__(self, fails): self._fails = fails
        def after_epoch(self):
            if stop_early and self.epoch == N-1: raise CancelFitException
        def after_fit(self):
            if self._fails and not self.learn.lock.locked(): raise ConnectionError('no network')
    learn = new('clf', 0)
    with pytest.raises(ConnectionError): run(learn, ResumeCallback(every=3), Kill(), Report(True))
    learn.validate()
    assert [o.name for o in (tmp_path/'models').iterdir()] == ['resume.pth']
    callback = ResumeCallback(every=3)
    assert_same(whole('clf'), run(new('clf', 1), callback, Kill(), Report(False)))
    assert not list((tmp_path/'models').iterdir()) and callback.order < 0

@pytest.mark.parametrize('append', [True,False])
def test_each_epoch_once_in_a_log(new, tmp_path, append):
    "Also where a log is appended to: below what earlier fits wrote there, and not where another training wrote in between"
    log = tmp_path/'history.csv'
    def epochs(): return [o.split(',')[0] for o in log.read_text().splitlines()]
    def fit(at=None, event='after_batch'): new('clf', 0).fit(3, 1e-2, cbs=[ResumeCallback(), CSVLogger(append=append), Kill(at, event)])
    fit()
    earlier = ['epoch','0','1','2']*append
    for at,event in ((18,'after_batch'),(20,'after_batch'),(24,'after_epoch')):
        with pytest.raises(KeyboardInterrupt): fit(at, event)
    fit()
    assert epochs() == [*earlier,'epoch','0','1','2']
    with pytest.raises(KeyboardInterrupt): fit(18)
    other = log.read_text()
    if append:
        log.write_text(other + 'epoch,other\n0,1\n')
        fit()
        assert log.read_text().startswith(other + 'epoch,other\n0,1\nepoch,')
        with pytest.raises(KeyboardInterrupt): fit(18)
        log.unlink()
    fit()
    assert epochs() == ['epoch','0','1','2']

def test_log_of_two_fits(new, tmp_path):
    "A first fit that is skipped leaves its rows as they are, and adds none"
    def tuned(*cbs):
        new('clf', 0).fine_tune(2, 1e-2, freeze_epochs=1, cbs=[*cbs, CSVLogger(append=True)])
        return [o.split(',')[:3] for o in (tmp_path/'history.csv').read_text().splitlines()]
    class KillLast(Kill):
        def __call__(self, event_name):
            if self.opt.frozen_idx == 0: super().__call__(event_name)
    want = tuned(KillLast())
    with pytest.raises(KeyboardInterrupt): tuned(ResumeCallback(), KillLast(10))
    assert tuned(ResumeCallback(), KillLast()) == want*2 and len(want) == 5
