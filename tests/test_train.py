"Fitting: rates, frozen groups, time budgets, mixed precision and fastai's callbacks, on classifiers and language models"
import copy, math, os, pickle, subprocess, sys, time, warnings, numpy as np, pandas as pd, pytest, torch
from torch import nn
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from fastai.callback.fp16 import AMPMode
from fastai.text.all import (Adam, Callback, CancelBatchException, CancelFitException, CSVLogger, DataLoader, DataLoaders, EarlyStoppingCallback, GradientAccumulation, GradientClip, L,
                             Learner, MSELossFlat, ProgressCallback, ReduceLROnPlateau, SaveModelCallback, SGD, accuracy, slide, steep, valley, minimum)
from fastai_txf.model.models import classifier_splitter, lm_splitter
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.train import heap, schedule
from fastai_txf.train.losses import chunked_cross_entropy
from fastai_txf.train.muon import _best_dtype, muon
from fastai_txf.train.optim import adamw
from fastai_txf.train.precision import DeviceMixedPrecision
from fastai_txf.train.schedule import warmup_stable_decay
from fixtures import *

def toy_learner(**kw):
    "A plain fastai `Learner` on a line, in three groups"
    x = torch.randn(512, 8); y = x @ torch.randn(8, 1)
    dl = DataLoader(list(zip(x, y)), bs=16)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    return quiet(Learner(DataLoaders(dl, dl), model, MSELossFlat(), splitter=lambda m: [list(m[i].parameters()) for i in (0,2,4)], **kw))

def max_lrs(learn):
    "The largest learning rate of each group while `learn` trained, through a callback"
    seen = []
    class Watch(Callback):
        def before_step(self): seen.append([h['lr'] for h in self.opt.hypers])
    return Watch(), seen

# Rates and loss

@both
def test_lr_find(make, kind):
    "Suggests a rate for each function asked for, and puts weights and batches back"
    learn = make(kind)
    before = weights(learn)
    res = learn.lr_find(num_it=30, show_plot=False, suggest_funcs=(minimum, steep, valley, slide))
    assert res._fields == ('minimum','steep','valley','slide')
    assert all(1e-7 <= o <= 10 for o in res if o is not None) and res.valley is not None
    assert not changed(learn, before)
    assert len(learn.recorder.lrs) <= 30 and learn.recorder.lrs[-1] > learn.recorder.lrs[0]*1e3
    learn.fit(1, 1e-3) # still trains after it
    assert changed(learn, before)

@both
def test_fit_one_cycle(make, kind):
    "Training and validation loss fall, and the rate rises and falls"
    learn = make(kind)
    first = learn.validate()[0]
    learn.fit_one_cycle(3, 1e-2)
    train,valid = np.array(learn.recorder.values)[:,:2].T
    assert train[-1] < train[0] and valid[-1] < first*0.95
    lrs = learn.recorder.hps['lr']
    assert max(lrs) == pytest.approx(1e-2, rel=0.02) and lrs[0] < 1e-3 and lrs[-1] < 1e-4

@both
def test_fine_tune(make, kind):
    "The last group alone first, then everything at rates ten times apart"
    learn = make(kind)
    before,frozen = weights(learn), []
    watch,lrs = max_lrs(learn)
    class Frozen(Callback):
        def after_epoch(self): frozen.append(changed(self.learn, before))
    learn.fine_tune(2, 1e-2, freeze_epochs=1, cbs=[watch, Frozen()])
    names = {id(p):k for k,p in learn.model.named_parameters()}
    assert frozen[0] == {names[id(p)] for p in learn.opt.param_lists[-1]}
    assert len(frozen) == 3 and frozen[2] == set(before)
    second = np.array(lrs[len(lrs)//3:])
    assert second[:,-1].max() == pytest.approx(0.5e-2, rel=0.02) and second[:,0].max() == pytest.approx(0.5e-3, rel=0.02)

@both
def test_callbacks_from_a_generator(make, kind):
    "They take part in every fit, once, and are gone after it and after a validation"
    class Counts(Callback):
        def __init__(self): self.fits = 0
        def before_fit(self): self.fits += 1
    learn = make(kind)
    for f,fits in ((partial(learn.fit, 1, 1e-3), 1), (partial(learn.fit_one_cycle, 1, 1e-3), 1), (partial(learn.fine_tune, 1, 1e-3), 2), (partial(learn.fit_gradual, 0.002, 1e-3), None),
                   (learn.validate, 1), (learn.get_preds, 1)):
        cb,before = Counts(), [*learn.cbs]
        f(cbs=(o for o in [cb]))
        assert cb.fits == (fits or len(learn.opt.param_lists)) and [*learn.cbs] == before, f

@both
def test_fit_by_position(make, kind):
    "fastai's order, to the last argument"
    learn = make(kind)
    learn.create_opt()
    before = learn.opt
    learn.fit(1, 1e-3, None, None, True)
    assert learn.opt is not before
    learn.fit(3, 1e-3, 0.1, None, False, 2)
    assert len(learn.recorder.losses) == len(learn.dls.train)
    learn.fit_one_cycle(1, 1e-2, 10., 1e3, 0.5, 0.2, (0.9,0.8,0.9))
    lrs = learn.recorder.hps['lr']
    assert lrs[0] == pytest.approx(1e-3) and np.argmax(lrs) == pytest.approx(len(lrs)/2, abs=1) and learn.opt.hypers[0]['wd'] == 0.2
    with pytest.raises(ValueError, match='div=0'): learn.fit_one_cycle(1, 1e-2, 0)
    learn.fit_flat_cos(1, 1e-3, 1e3, 0.5)
    assert learn.recorder.hps['lr'][-1] < 1e-3
    learn.fit_sgdr(2, 1, 1e-3, 2)
    assert learn.recorder.hps['lr'][0] == pytest.approx(1e-3) and len(learn.recorder.hps['lr']) == 3*len(learn.dls.train)

@pytest.mark.parametrize('lr', [torch.tensor(2e-3), np.array(2e-3), np.float32(2e-3)], ids=['tensor','array','scalar'])
def test_fine_tune_leaves_the_rate(lr, make):
    "Half of the rate is taken for the second part, and what was given stays as it was"
    make('clf').fine_tune(1, lr)
    assert float(lr) == pytest.approx(2e-3)

@pytest.mark.parametrize('kw', [dict(moms=(2,2,2)), dict(base_lr=-1.), dict(div_final=0)], ids=str)
def test_a_refused_fine_tune_freezes_nothing(kw, make):
    learn = make('clf')
    learn.fit(1)
    with pytest.raises(ValueError, match='moms|rate|div_final'): learn.fine_tune(1, **kw)
    assert learn.opt.frozen_idx == 0

def test_fine_tune_by_position(make):
    "epochs, base_lr, freeze_epochs, lr_mult, pct_start, div: fastai's order"
    res = []
    for args,kw in [((1,1e-2,2,5,0.5,2.),{}), ((1,1e-2),dict(freeze_epochs=2, lr_mult=5, pct_start=0.5, div=2.))]:
        learn = make('clf')
        watch,lrs = max_lrs(learn)
        learn.fine_tune(*args, **kw, cbs=watch)
        assert len(lrs) == 3*len(learn.dls.train)
        second = np.array(lrs[-len(learn.dls.train):])
        assert second.max(0)[-1]/second.max(0)[0] == pytest.approx(5)
        res.append(second.tolist())
    assert res[0] == res[1]

# Frozen groups

@both
@pytest.mark.parametrize('n', [-1,-2,2,'freeze','unfreeze'])
def test_freeze(make, kind, n):
    "What is frozen stays bit for bit, norms included; all the rest trains"
    learn = make(kind, positions='learned', max_len=64)
    if isinstance(n, str): getattr(learn, n)()
    else: learn.freeze_to(n)
    before = weights(learn)
    learn.fit(2, 1e-2)
    groups = (lm_splitter if kind == 'lm' else classifier_splitter)(learn.model)
    first = dict(freeze=len(groups)-1, unfreeze=0).get(n, n)
    names = {id(p):k for k,p in learn.model.named_parameters()}
    assert changed(learn, before) == {names[id(p)] for g in groups[first:] for p in g}
    if n == -1: assert any('norm' in names[id(p)] for g in groups[:first] for p in g) # there was a norm to freeze

@pytest.mark.parametrize('before', ['fit','freeze'])
def test_a_part_that_comes_later(make, before):
    "It is named before a fit that would not train it"
    learn = make('clf')
    learn.fit(1) if before == 'fit' else learn.freeze()
    last = [m for m in learn.model.modules() if isinstance(m, torch.nn.Linear)][-1]
    last.weight = torch.nn.Parameter(last.weight.detach().clone())
    with pytest.raises(ValueError, match='weight came after the optimizer.*learn.create_opt'): learn.fit(1, 1e-2)
    old = last.weight.detach().clone()
    learn.create_opt()
    learn.fit(1, 1e-2)
    assert not last.weight.equal(old)

@both
def test_groups_cover_every_parameter_once(make, kind):
    learn = make(kind)
    learn.create_opt()
    grouped = [id(p) for g in learn.opt.param_lists for p in g]
    assert sorted(grouped) == sorted(id(p) for p in learn.model.parameters()) and len(learn.opt.param_lists) >= 3

@both
def test_discriminative_rates(make, kind):
    "A slice gives each group its rate: even steps between two, a tenth below the head for one"
    learn = make(kind)
    learn.fit(1, slice(1e-5, 1e-3))
    n = len(learn.opt.hypers)
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx(np.geomspace(1e-5, 1e-3, n).tolist())
    learn.fit(1, slice(1e-3))
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx([1e-4]*(n-1) + [1e-3])
    watch,lrs = max_lrs(learn)
    learn.fit_one_cycle(1, slice(1e-4, 1e-2), cbs=watch)
    assert np.array(lrs).max(0).tolist() == pytest.approx(np.geomspace(1e-4, 1e-2, n).tolist(), rel=0.2)

@both
def test_discriminative_decay(make, kind):
    "A list gives each group its weight decay, a number all of them the same"
    learn = make(kind)
    learn.create_opt()
    decays = [0.1*i for i in range(len(learn.opt.hypers))]
    learn.fit(1, 1e-3, wd=decays)
    assert [h['wd'] for h in learn.opt.hypers] == decays
    learn.fit_minutes(0.005, 1e-3, wd=0.3)
    assert {h['wd'] for h in learn.opt.hypers} == {0.3}

@pytest.mark.parametrize('opt_func', [Adam,adamw,muon], ids=['Adam','adamw','muon'])
def test_rates_set_group_by_group(make, opt_func):
    "What a callback sets in `opt.hypers` holds, as with fastai's optimizers; a plateau lowers the rate"
    learn = make('lm', opt_func=opt_func)
    watch,lrs = max_lrs(learn)
    learn.fit(4, 1e-3, cbs=[watch,ReduceLROnPlateau(min_delta=10, patience=1)])
    steps = [o[-1] for o in lrs][::len(learn.dls.train)]
    assert steps == pytest.approx([1e-3,1e-3,1e-4,1e-5]) and learn.opt.hypers[0]['lr'] == pytest.approx(1e-6)

def test_hypers_write_through(make):
    learn = make('lm', opt_func=adamw)
    learn.create_opt()
    *_,last = learn.opt.hypers
    last['lr'] = 0.5
    last.update(mom=0.3, wd=0.2)
    group,first = learn.opt.opt.param_groups[-1], learn.opt.opt.param_groups[0]
    assert (group['lr'],group['betas'][0],group['wd'],group['weight_decay']) == (0.5,0.3,0.2,0.) and first['lr'] != 0.5
    assert last == learn.opt.hypers[-1] and type(copy.deepcopy(last)) is type(pickle.loads(pickle.dumps(last))) is dict
    with pytest.raises(KeyError): last['rate'] = 1
    last |= dict(lr=0.4)
    assert group['lr'] == 0.4

# A time budget

def timed(learn, seconds, *args, **kw):
    "Seconds of training that `fit_minutes` took"
    spent = []
    class Clock(Callback):
        order = -50
        def before_train(self): self.start = time.perf_counter()
        def after_train(self): spent.append(time.perf_counter()-self.start)
    learn.fit_minutes(seconds/60, *args, cbs=[Clock(), *L(kw.pop('cbs', None))], **kw)
    return sum(spent)

@both
def test_fit_minutes(make, kind):
    "The time is kept, the cycle is complete, every row too"
    learn = make(kind, metrics=accuracy)
    first = learn.validate()[0]
    assert 1.5 <= timed(learn, 1.5, 1e-2) < 3.5
    lrs,rows = learn.recorder.hps['lr'], learn.recorder.values
    assert max(lrs) == pytest.approx(1e-2, rel=0.1) and lrs[-1] < 2e-3 and lrs[-1] < max(lrs)/5
    assert len(rows) > 1 and {len(r) for r in rows} == {3} and np.isfinite(np.array(rows)).all()
    assert rows[-1][1] < first

def test_fit_minutes_on_a_plain_learner():
    "Any fastai `Learner` has it, with a rate for each group"
    learn = toy_learner()
    watch,lrs = max_lrs(learn)
    assert 0.5 <= timed(learn, 0.5, slice(1e-4, 1e-2), cbs=watch) < 1.5
    assert np.array(lrs).max(0) == pytest.approx([1e-4, 1e-3, 1e-2], rel=0.1)
    assert max(lrs[-1]) < 1e-3 and learn.recorder.values[-1][1] < learn.recorder.values[0][0]
    for bad in (-1, 0, 'a', math.nan, math.inf):
        with pytest.raises(ValueError, match=f'minutes={bad!r} .*more than 0'): learn.fit_minutes(bad)
    with pytest.raises(TypeError, match='n_epoch'): learn.fit_minutes(1, n_epoch=3)

def test_rate_under_another_name():
    "The error says how the fit calls its largest rate; `fit_warmup` and `fit_wsd` took no notice of `lr`"
    learn = toy_learner()
    for fit,k,own in ((learn.fit_minutes, 'lr_max', 'lr'), (learn.fit_gradual, 'lr_max', 'lr'),
                      (learn.fit_warmup, 'lr', 'lr_max'), (learn.fit_wsd, 'lr', 'lr_max')):
        with pytest.raises(TypeError, match=f'{fit.__name__} has no {k}: give {own}=0.01'): fit(1, **{k:1e-2})

def test_fit_minutes_shorter_than_an_epoch():
    "A part of one epoch is an epoch, with its validation; a second fit starts the clock anew"
    learn = toy_learner(cbs=TimeSink())
    for _ in range(2):
        assert timed(learn, 0.2, 1e-2) >= 0.2 # 32 batches would take 0.64 s at least
        row, = learn.recorder.values
        assert len(row) == 2 and np.isfinite(row).all() and len(learn.recorder.losses) < 32
    learn.fit_one_cycle(1, 1e-2) # and an ordinary fit is ordinary again
    assert len(learn.recorder.losses) == 32

def test_wsd_by_steps_and_by_the_clock():
    "Each group rises, stays and falls; the clock ends the fit at the end of the fall"
    learn = toy_learner()
    watch,lrs = max_lrs(learn)
    learn.fit_wsd(4, slice(1e-4, 1e-2), warmup=0.1, decay=0.5, cbs=watch)
    want = warmup_stable_decay(np.arange(len(lrs))/len(lrs), 0.1, 0.5)
    assert np.array(lrs) == pytest.approx(want[:,None]*[1e-4, 1e-3, 1e-2])
    start = time.perf_counter()
    learn.fit_wsd(minutes=2/60, lr_max=1e-2, cbs=TimeSink())
    assert time.perf_counter()-start > 1.9
    lrs = learn.recorder.hps['lr']
    assert max(lrs) == pytest.approx(1e-2) and lrs[-1] < 5e-3 # a slow step may be the last one

def test_wsd_refuses():
    learn = toy_learner()
    for kw in (dict(), dict(n_epoch=1, minutes=1)):
        with pytest.raises(ValueError, match='give one of them'): learn.fit_wsd(**kw)
    for kw in (dict(warmup=-0.1), dict(decay=0), dict(warmup=0.6, decay=0.6)):
        with pytest.raises(ValueError, match='together at most 1'): learn.fit_wsd(1, **kw)
    with pytest.raises(ValueError, match='minutes=0'): learn.fit_wsd(minutes=0)
    assert warmup_stable_decay([0, 0.5, 1], warmup=0).tolist() == [1, 1, 0]

class TimeSink(Callback):
    "20 ms more for each batch"
    run_valid = False
    def after_batch(self): time.sleep(0.02)

def test_fit_minutes_counts_no_validation():
    class Slow(Callback):
        def before_validate(self): time.sleep(0.4)
    learn = toy_learner(cbs=[TimeSink(), Slow()])
    learn.fit_minutes(1.5/60, 1e-2)
    assert len(learn.recorder.losses) > 32 # 1.5 s of batches, though half a second went to each validation

@pytest.mark.parametrize('f', ['validate','get_preds'])
@pytest.mark.parametrize('new', [lambda make: toy_learner(), lambda make: make('clf')], ids=['plain','clf'])
def test_a_validation_within_a_fit_by_the_clock(make, monkeypatch, new, f):
    "The clock goes on: the fit has the steps that it has without, on a clock that goes by its readings"
    def fit(**kw):
        monkeypatch.setattr(schedule, 'time', SimpleNamespace(perf_counter=iter(range(10_000)).__next__))
        new(make).fit_minutes(2, 1e-3, cbs=Watch(**kw))
        return steps
    class Watch(Callback):
        def __init__(self, asks): self.asks = asks
        def after_step(self): steps.append(self.pct_train)
        def after_train(self):
            if self.asks: getattr(self.learn, f)()
            if self.epoch > 20 or len(steps) > 500: raise CancelFitException()
    steps = []; want = fit(asks=False)
    steps = []; assert fit(asks=True) == want and 1 > want[-1] > 0.9

# Mixed precision

def dtypes(learn):
    "What the linear maps of the encoder compute in, and what the loss is given"
    seen = dict(linear=set(), loss=set())
    for m in learn.model.encoder.modules():
        if isinstance(m, nn.Linear): m.register_forward_hook(lambda m,i,o: seen['linear'].add(o.dtype))
    class Watch(Callback):
        order = 100
        def after_pred(self): seen['loss'].add(self.pred.dtype)
    learn.add_cb(Watch())
    return seen

@both
@pytest.mark.parametrize('how,dtype', [('to_bf16', torch.bfloat16), ('to_fp16', torch.float16)])
def test_mixed_precision(make, kind, how, dtype):
    "Computes in low precision, on this device, with weights, loss and predictions in fp32, and learns as well"
    losses = []
    for low in (False,True):
        torch.manual_seed(0)
        learn = make(kind, p=0., emb_p=0., **({} if kind == 'lm' else dict(head_p=0.)))
        start = learn.validate()[0]
        seen = dtypes(learn)
        if low: assert getattr(learn, how)() is learn
        torch.manual_seed(0)
        learn.fit_one_cycle(3, 1e-2)
        losses.append(learn.recorder.values[-1][1])
        assert seen['linear'] == {dtype if low else torch.float32} and seen['loss'] == {torch.float32}
        assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
    assert losses[0] < start*0.95 and losses[1] < start*0.95 and abs(losses[0]-losses[1]) < 0.1*start
    seen['linear'].clear()
    learn.to_fp32().validate()
    assert seen['linear'] == {torch.float32}

@pytest.mark.parametrize('config', ['gpt2','modern'])
def test_doubles_stay_in_bf16(make, config):
    "As torch does it, autocast leaves weights in double precision alone: outputs, loss and training are as without it"
    learn = make('lm', config=config, p=0., emb_p=0., attn_p=0.)
    model,(x,y) = learn.model.double(), learn.dls.one_batch()
    def out():
        h = model.hidden(x)
        return model(x), chunked_cross_entropy(h, model.head.weight, y, model.head.bias)
    want = out()
    with torch.autocast('cpu', torch.bfloat16): got = out()
    assert all(a.dtype == torch.float64 and a.equal(b) for a,b in zip(got, want, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.to_bf16().fit(1, 1e-3)

def test_bf16_without_units(monkeypatch):
    "A GPU that emulates bfloat16 is refused, and Muon's products stay in fp32 there"
    weight = SimpleNamespace(device=torch.device('cuda'), dtype=torch.float32)
    cb = DeviceMixedPrecision(AMPMode.BF16)
    cb.learn = SimpleNamespace(model=SimpleNamespace(parameters=lambda: iter([weight])))
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda including_emulation=True: including_emulation)
    with pytest.raises(ValueError, match='to_fp16'): cb.before_fit()
    assert _best_dtype(weight) == torch.float32

def test_mixed_precision_predicts(make):
    learn = make().to_bf16()
    learn.fit(1, 1e-2)
    exact = make('clf')
    exact.model.load_state_dict(learn.model.state_dict())
    p,q = (o.get_preds()[0] for o in (learn,exact))
    assert p.dtype == torch.float32 and 0 < (p-q).abs().max() < 0.02
    p,q = (o.predict('a warm film')[2] for o in (learn,exact))              # without the loop, and so without its callbacks
    assert p.dtype == torch.float32 and (p-q).abs().max() < 0.02
    assert learn.to_bf16().to_bf16().cbs.map(lambda c: isinstance(c, DeviceMixedPrecision)).count(True) == 1 # one, however often it is asked for

class Interrupt(Callback):
    "KeyboardInterrupt at `event` of the third batch"
    def __init__(self, event, order): self.event,self.order = event,order
    def __call__(self, event_name):
        if event_name == self.event and self.learn.training and self.learn.iter == 2: raise self.exc
    exc = KeyboardInterrupt

class Ctrl(nn.Module):
    "A loss that is interrupted"
    def forward(self, *args): raise KeyboardInterrupt

def outputs(learn, x):
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16): return learn.model.eval()(x).float()

@both
@pytest.mark.parametrize('where', ['before_batch','after_pred','loss','model','after_loss','before_step'])
def test_interrupted_batch(make, kind, where):
    "Leaves no autocast open, and no copy of the weights that a later forward would use"
    learn = make(kind, lr=1e-3).to_bf16()
    if where == 'loss': learn.loss_func = Ctrl()
    elif where == 'model': handle = learn.model.encoder.blocks[1].register_forward_hook(stop)
    else: learn.add_cb(Interrupt(where, 50))
    with pytest.raises(KeyboardInterrupt): learn.fit(1)
    if where == 'model': handle.remove()
    x = learn.dls.one_batch()[0].as_subclass(torch.Tensor)
    assert not torch.is_autocast_enabled(x.device.type)
    was = outputs(learn, x)
    with torch.no_grad():
        for p in learn.model.parameters(): p *= 5
    assert (outputs(learn, x)-was).abs().max() > 0.1*was.abs().max()
    with torch.no_grad(): assert learn.model.encoder(x).dtype == torch.float32
    learn.export('interrupted.pkl')

def test_cancelled_batch_and_error_leave_autocast(make):
    "So does a batch that a callback skips, and one that fails"
    class Skip(Callback):
        order = 50
        def before_batch(self):
            if self.iter: raise CancelBatchException()
    learn = make().to_bf16()
    learn.fit(1, cbs=Skip())
    assert not torch.is_autocast_enabled('cpu')
    learn.loss_func = partial(torch.nn.functional.cross_entropy, weight='wrong')
    with pytest.raises(TypeError): learn.fit(1)
    assert not torch.is_autocast_enabled('cpu')

# fastai's callbacks

def flat(learn): return torch.cat([p.flatten() for p in weights(learn).values()])

@both
def test_gradient_accumulation(make, kind):
    "Two batches of half the size move the weights as one does"
    res = []
    for bs,cbs in ((8,None),(4,GradientAccumulation(8)),(4,None)):
        torch.manual_seed(0)
        learn = make(kind, opt_func=SGD, p=0., emb_p=0., **({} if kind == 'lm' else dict(head_p=0.)), moms=(0,0,0), wd=0.)
        batches = fixed_batches(learn, kind, bs)
        learn.dls = DataLoaders(batches, batches)
        before = flat(learn)
        learn.fit(1, 0.5, cbs=cbs)
        res.append(flat(learn)-before)
    big,acc,small = res
    assert (big-acc).abs().max() < 1e-3*big.abs().max() < 0.1*(big-small).abs().max()

class Batches:
    "A loader of given batches"
    n_inp = 1
    def __init__(self, bs): self.bs,self.dataset = bs,bs
    def __iter__(self): return iter(self.bs)
    def __len__(self): return len(self.bs)

def fixed_batches(learn, kind, bs):
    "The same 32 texts in the same order, in batches of `bs`"
    torch.manual_seed(1)
    n = len(learn.dls.vocab if kind == 'lm' else learn.dls.vocab[0])
    x = torch.randint(2, n, (32, 17), device=next(learn.model.parameters()).device)
    y = x[:,1:] if kind == 'lm' else torch.arange(32, device=x.device)%2
    return Batches([(x[i:i+bs,:16], y[i:i+bs]) for i in range(0, 32, bs)])

@both
def test_gradient_clip(make, kind):
    "No step sees a longer gradient"
    norms = []
    class Norm(Callback):
        order = 50
        def before_step(self): norms.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]).norm().item())
    learn = make(kind)
    learn.fit(1, 1e-2, cbs=Norm())
    n = len(norms)
    learn.fit(1, 1e-2, cbs=[GradientClip(0.01), Norm()])
    assert min(norms[:n]) > 0.02 and max(norms[n:]) <= 0.01001

@both
def test_save_model(make, kind, tmp_path):
    "The best epoch's weights are on disk and back in the model"
    learn = make(kind)
    learn.fit(3, 1e-2, cbs=[SaveModelCallback(fname='best'), Worse()])
    valid = [r[1] for r in learn.recorder.values]
    assert valid[0] < min(valid[1:]) and (tmp_path/'models'/'best.pth').exists()
    assert learn.validate()[0] == pytest.approx(valid[0], rel=1e-4)

@both
def test_early_stopping(make, kind):
    learn = make(kind)
    learn.fit(9, 1e-3, cbs=[EarlyStoppingCallback(patience=2), Worse()])
    assert len(learn.recorder.values) == 3
    learn = make(kind)
    learn.fit_minutes(1, 1e-3, cbs=[EarlyStoppingCallback(patience=1), Worse()])
    assert len(learn.recorder.values) == 2

@both
def test_csv_logger(make, kind, tmp_path):
    "A row for each epoch, by epochs and by minutes"
    learn = make(kind, metrics=accuracy)
    learn.fit(2, 1e-3, cbs=CSVLogger())
    rows = pd.read_csv(tmp_path/'history.csv')
    assert rows.columns.tolist() == ['epoch','train_loss','valid_loss','accuracy','time'] and rows.epoch.tolist() == [0,1]
    learn.fit_minutes(1/60, 1e-3, cbs=CSVLogger('minutes.csv'))
    rows = pd.read_csv(tmp_path/'minutes.csv')
    assert len(rows) == len(learn.recorder.values) > 0 and not rows.isna().any(axis=None)
    assert rows.valid_loss.tolist() == pytest.approx([r[1] for r in learn.recorder.values], abs=1e-5)

@both
def test_csv_logger_beside_fits(make, kind, tmp_path):
    "Predictions, a validation and the search for a rate leave the log of the last fit alone"
    learn,file = make(kind, cbs=CSVLogger()), tmp_path/'history.csv'
    learn.fit(1, 1e-3)
    before = file.read_text()
    for f in (learn.get_preds, learn.validate, partial(learn.lr_find, num_it=6, show_plot=False)):
        f()
        assert file.read_text() == before, f
    learn.fit(2, 1e-3)
    assert len(pd.read_csv(file)) == 2

@both
def test_no_bar_and_no_logging(make, kind, capsys):
    "Silence inside, and everything as before after it"
    learn = make(kind)
    learn.logger = print
    learn.fit(1)
    assert str(learn.recorder.values[0][1])[:6] in capsys.readouterr().out
    learn.add_cb(ProgressCallback())
    with learn.no_bar():
        assert not hasattr(learn, 'progress')
        learn.fit(1)
    assert hasattr(learn, 'progress')
    capsys.readouterr()
    with learn.no_logging(), learn.no_bar(): learn.fit(1)
    assert capsys.readouterr().out == '' and learn.logger is print

@pytest.mark.parametrize('call,error,why', [
    (lambda l: l.fit(1, 1e-3, wd=math.nan), ValueError, 'a weight decay of nan'), (lambda l: l.fit(1, 1e-3, wd=-1), ValueError, 'a weight decay of -1'),
    (lambda l: l.fit(1, 1e-3, wd=[0.1,0.2]), ValueError, '2 weight decays for'), (lambda l: l.fit(1, 1e-3, wd='0.1'), TypeError, 'a weight decay of .0.1.'),
    (lambda l: l.fit_wsd(1, 1e-3, warmup=math.nan), ValueError, 'warmup=nan'), (lambda l: l.fit_wsd(1, 1e-3, decay=math.nan), ValueError, 'decay=nan'),
    (lambda l: l.fit_warmup(1, 1e-3, warmup=math.nan), ValueError, 'warmup=nan'), (lambda l: l.fit_one_cycle(1, 1e-3, div=0), ValueError, 'div=0'),
    (lambda l: l.fit_gradual(1, slice(1e-4, 1e-3)), TypeError, 'rate of the last group alone'),
    (lambda l: l.fit(1, torch.full((3,3), 1e-3)), TypeError, 'Tensor: give a float'), (lambda l: l.fit(1, slice(None)), TypeError, 'rate of None'), (lambda l: l.fit_one_cycle(1, '1e-3'), TypeError, "'1e-3', a str"),
    (lambda l: l.fit(1, [1e-3,'a']), TypeError, "'a', a str"),
    (lambda l: l.fit_flat_cos(1, 1e-3, 0), ValueError, 'div_final=0'), (lambda l: l.fit_flat_cos(1, 1e-3, div_final=-1), ValueError, 'div_final=-1'),
    (lambda l: l.fit_flat_cos(1, 1e-3, pct_start=1.5), ValueError, 'pct_start=1.5'), (lambda l: l.fit_one_cycle(1, 1e-3, pct_start=-0.1), ValueError, 'pct_start=-0.1'),
    (lambda l: l.fit_one_cycle(1, 1e-3, moms=(0.9,1.,0.9)), ValueError, 'moms='), (lambda l: l.fit_one_cycle(1, 1e-3, moms=(0.9,0.8)), ValueError, 'moms='),
    (lambda l: l.fit_one_cycle(1, 1e-3, moms=0.9), ValueError, 'moms=0.9'), (lambda l: l.fine_tune(1, 1e-3, pct_start=2), ValueError, 'pct_start=2')])
def test_no_training_with_no_number(call, error, why, dls_lm):
    "What is no rate, share or decay is named before a weight has moved"
    learn = quiet(transformer_lm_learner(dls_lm, **SMALL))
    before = [p.clone() for p in learn.model.parameters()]
    with pytest.raises(error, match=why): call(learn)
    assert all(map(torch.equal, before, learn.model.parameters()))

def test_a_rate_of_the_optimizer(make):
    "One in `opt_func`, which goes before the learner's, is a number of NumPy's, too"
    learn = make('clf', opt_func=partial(Adam, lr=np.float32(0.01)))
    learn.fit(1)
    assert learn.recorder.lrs[-1] == pytest.approx(0.01)

@pytest.mark.parametrize('kind', [np.float64,torch.tensor])
def test_numbers_of_other_libraries(kind, dls_lm):
    "A rate, decay or warm-up of NumPy or torch is the number that it is, in every kind of fit and as the learner's own"
    learn = quiet(transformer_lm_learner(dls_lm, **SMALL, opt_func=Adam, lr=kind(2e-3)))
    fits = [lambda lr: learn.fit(1, lr, wd=kind(0.125)), lambda lr: learn.fit_one_cycle(1, lr), lambda lr: learn.fit_flat_cos(1, lr), lambda lr: learn.fit_sgdr(1, 1, lr),
            lambda lr: learn.fit_minutes(0.01, lr), lambda lr: learn.fit_wsd(1, lr), lambda lr: learn.fit_warmup(1, lr, warmup=np.int64(2)), lambda lr: learn.fit_gradual(0.03, lr),
            lambda lr: learn.fit(1, slice(lr/2, lr))]
    for fit in fits:
        watch,seen = max_lrs(learn)
        with learn.added_cbs([watch]): fit(kind(4e-3))
        assert 1e-4 < np.max(seen) < 4.001e-3
    assert {h['wd'] for h in learn.opt.hypers} == {0.125}
    learn.fit(1)
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx([2e-3]*3)
    learn.fit_warmup(1, warmup=np.int64(5))

@pytest.mark.parametrize('kw,error,why', [
    (dict(wd=-50.), ValueError, 'a weight decay of -50'), (dict(wd=math.nan), ValueError, 'a weight decay of nan'), (dict(wd=[0.1,0.2]), ValueError, '2 weight decays for 3'),
    (dict(wd='0.1'), TypeError, "a weight decay of '0.1'"), (dict(lr=[1e-3]*2), ValueError, '2 learning rates for 3'), (dict(lr='1e-3'), TypeError, "a learning rate of '1e-3'"),
    (dict(opt_func=partial(adamw, wd=-50.)), ValueError, 'a weight decay of -50'), (dict(opt_func=partial(muon, wd=math.nan)), ValueError, 'a weight decay of nan'),
    (dict(opt_func=partial(adamw, lr=-1.)), ValueError, 'a learning rate of -1'), (dict(opt_func=partial(muon, wd='0.1')), TypeError, "a weight decay of '0.1'")])
def test_no_learner_of_no_number(kw, error, why, dls_lm):
    "The learner's own rates and decays, and those of its optimizer, are named before a weight has moved"
    learn = quiet(transformer_lm_learner(dls_lm, **{**SMALL, 'opt_func':Adam, **kw}))
    before = weights(learn)
    for fit in (learn.fit, learn.fit_one_cycle):
        with pytest.raises(error, match=why): fit(1)
    assert not changed(learn, before)

@pytest.mark.parametrize('opt_func', [Adam,adamw,muon])
def test_a_rate_for_each_group(opt_func, dls_lm):
    "A learner's own rates and decays may differ from group to group, whatever its optimizer"
    learn = quiet(transformer_lm_learner(dls_lm, **SMALL, opt_func=opt_func, lr=slice(1e-4,1e-2), wd=[0.1,0.2,0.3]))
    learn.fit(1)
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx([1e-4,1e-3,1e-2]) and [h['wd'] for h in learn.opt.hypers] == [0.1,0.2,0.3]

@pytest.mark.parametrize('pct_start', [0,1])
def test_all_rise_or_all_fall(pct_start, dls_lm):
    "The ends of `pct_start`: no warning of a rate, and weights that are numbers"
    learn = quiet(transformer_lm_learner(dls_lm, **SMALL))
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='a learning rate')
        learn.fit_one_cycle(1, 1e-3, pct_start=pct_start)
    assert all(p.isfinite().all() for p in learn.model.parameters())

def test_gradients_that_never_step(make):
    "A fit with fewer texts than a step takes says so, and none is said of one that steps"
    learn = make()
    before = weights(learn)
    with pytest.raises(ValueError, match='n_acc=0: give'): learn.fit(1, 1e-3, cbs=GradientAccumulation(0))
    with pytest.warns(UserWarning, match='waits for 1000 texts, and this fit had 128: nothing is trained; take n_acc=128 or less'): learn.fit(2, 1e-3, cbs=GradientAccumulation(1000))
    assert not changed(learn, before)
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='GradientAccumulation')
        learn.fit(2, 1e-3, cbs=GradientAccumulation(100))
    assert learn.n_steps == 1 and changed(learn, before)

@both
@pytest.mark.parametrize('off', [torch.no_grad,torch.inference_mode])
def test_gradients_switched_off(make, kind, off):
    "A fit where torch keeps no gradients says so"
    with pytest.raises(ValueError, match=r'gradients are switched off: call fit outside of torch.no_grad\(\)'), off(): make(kind).fit(1, 1e-3)

@both
def test_all_frozen(make, kind):
    "A fit of no weight at all names the remedy, and it helps"
    learn = make(kind)
    learn.create_opt()
    for p in learn.model.parameters(): p.requires_grad_(False)
    with pytest.raises(ValueError, match=r'all groups .* frozen: call learn.unfreeze\(\)'): learn.fit(1, 1e-3)
    learn.unfreeze()
    learn.fit(1, 1e-3)

@pytest.mark.parametrize('n', [-3,1.5,None])
def test_no_number_of_epochs(make, n):
    learn = make()
    for fit in (learn.fit, learn.fit_one_cycle, learn.fit_flat_cos, learn.fit_warmup):
        with pytest.raises(ValueError, match=f'n_epoch={n} is out of range: a whole number'): fit(n, 1e-3)
    with pytest.raises(ValueError, match=f'freeze_epochs={n}'): learn.fine_tune(1, 1e-3, n)
    learn.fit(0)
    assert learn.opt is not None
    learn.fit(np.int64(1), 1e-3)

def test_minutes_without_a_recorder(make):
    learn = make()
    before = weights(learn)
    learn.remove_cb(learn.recorder)
    learn.fit_minutes(0.01)
    assert changed(learn, before)

@pytest.mark.parametrize('kw', [dict(opt_func='adam'), dict(metrics='accuracy'), dict(metrics=[accuracy,'f1'])])
def test_names_of_functions(kw, dls_lm):
    with pytest.raises(TypeError, match='is a str: give the function itself'): transformer_lm_learner(dls_lm, **SMALL, **kw)

def test_turns_of_muon(dls_lm):
    learn = quiet(transformer_lm_learner(dls_lm, **SMALL, opt_func=partial(muon, turns=0)))
    with pytest.raises(ValueError, match='turns=0 is out of range'): learn.fit(1, 1e-3)

# Memory

FAULTS = """
import resource, sys, torch
from fastai_txf.train.heap import hand_back, reuse_memory
def steps(n):
    for _ in range(n): [torch.ones(10*2**20) for _ in range(4)]
if sys.argv[1] == 'reuse': reuse_memory()
if sys.argv[1] == 'back':
    reuse_memory()
    steps(5)
    pages = lambda: int(open('/proc/self/statm').read().split()[1])
    held = pages()
    hand_back()
    print((held-pages())*resource.getpagesize()//4096)
    sys.exit()
steps(5)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
steps(10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

@pytest.mark.skipif(heap._glibc() is None, reason='another library of C, or limits in the environment')
def test_reuse_memory():
    "Steps clear no pages inside, and many before and where the user has set limits; afterwards the pages go back"
    def faults(what, **env): return int(subprocess.run([sys.executable, '-c', FAULTS, what], env=os.environ | env, check=True, capture_output=True, text=True).stdout)
    assert faults('reuse') < 500
    assert min(faults('not'), faults('reuse', MALLOC_MMAP_THRESHOLD_=str(2**20))) > 100_000
    assert faults('back') > 30_000 # of 41,000

class GlibC:
    "An old one, which takes no large limit; it notes what it is told"
    def __init__(self): self.said = []
    def mallopt(self, limit, n):
        self.said.append((limit, n))
        return limit != heap._map or n <= 2**25
    def malloc_trim(self, pad): self.said.append('trim')

@both
@pytest.mark.parametrize('end', [None, CancelFitException, KeyboardInterrupt])
def test_fit_reuses_memory(make, kind, end, monkeypatch):
    "A fit reuses memory after its first step, and hands it back however it ends"
    c = GlibC()
    monkeypatch.setattr(heap, '_glibc', lambda: c)
    class Watch(Callback):
        order = -1
        def after_step(self): c.said.append('step')
        def after_batch(self):
            if end and self.iter == 2: raise end
    with pytest.raises(KeyboardInterrupt) if end is KeyboardInterrupt else nullcontext(): make(kind).fit(1, 1e-3, cbs=Watch())
    apart,reuse,back = [(heap._map, 2**17), (heap._trim, 2**17)], [(heap._map, 2**30), (heap._map, 2**25), (heap._trim, 2**31-1)], [(heap._map, 2**25), (heap._trim, 2**26), 'trim']
    assert c.said[:7] == [*apart, 'step', *reuse, 'step'] and c.said[-3:] == back
    assert set(c.said[7:]) == {'step', *back}

def test_later_fits_reuse_memory_at_once(dls_lm, monkeypatch):
    "A fit reuses memory from the start where its optimizer has all that it keeps, and not after unfreezing"
    c = GlibC()
    monkeypatch.setattr(heap, '_glibc', lambda: c)
    for opt_func in (muon, adamw, Adam):
        learn = quiet(transformer_lm_learner(dls_lm, **SMALL, opt_func=opt_func))
        learn.freeze()
        def first(): return c.said[0]
        for limit in (2**17, 2**30):
            learn.fit(1, 1e-3)
            assert first() == (heap._map, limit)
            c.said.clear()
        learn.unfreeze()
        for limit in (2**17, 2**30):
            learn.fit(1, 1e-3)
            assert first() == (heap._map, limit)
            c.said.clear()

def test_reuse_memory_in_fastais(monkeypatch):
    "Any learner can have it, and without glibc nothing happens"
    c,learn = GlibC(), toy_learner()
    monkeypatch.setattr(heap, '_glibc', lambda: c)
    learn.fit(1, cbs=heap.ReuseMemory())
    assert c.said[-1] == 'trim'
    monkeypatch.setattr(heap, '_glibc', lambda: None)
    learn.fit(1, cbs=heap.ReuseMemory())
