"A language model trains without logits by itself, and nobody can tell."
import copy
import pytest, torch
from torch import nn
from torch.nn.functional import cross_entropy
from fastai.text.all import (
    accuracy, Callback, CrossEntropyLossFlat, FocalLossFlat, GradientAccumulation, GradientClip, LabelSmoothingCrossEntropyFlat, noop, set_seed)
from fastai_txf.all import *
from fastai_txf.train.lean import LeanLoss, NoLogits

TEXT = 'the cat sat on the mat while the rain fell on the roof of the old house . '*20

class Watch(Callback):
    "Which batches were trained without logits?"
    needs_logits = False
    def before_fit(self): self.lean = []
    def after_batch(self):
        if self.training: self.lean.append(isinstance(self.learn.pred, NoLogits))

class Look(Callback):
    def after_loss(self):
        if self.training: self.shape = self.pred.shape

def learner(keep=False, seed=0, **kwargs):
    set_seed(seed)
    dls = LMDataLoaders.from_texts([TEXT], [TEXT[:600]], tok_tfm=CharTokenizer(), starts=False, bs=4, seq_len=16)
    learn = transformer_lm_learner(dls, d_model=16, n_layers=1, n_heads=2, **{'vocab_sz':600, 'opt_func':adamw, **kwargs})
    learn.keep_logits,learn.logger = keep,noop
    return learn.remove_cb(learn.progress)

def fitted(learn, *cbs, n=1, **kwargs):
    watch = Watch()
    set_seed(1)
    learn.fit(n, 1e-2, cbs=[watch,*cbs], **kwargs)
    return set(watch.lean)

def weights(learn): return torch.cat([p.detach().flatten() for p in learn.model.parameters()])

@pytest.mark.parametrize('kw', [{}, dict(tie=False), dict(tie=False, bias=False), dict(p=0.3)])
def test_training_is_what_it_is_with_logits(kw):
    full,lean = learner(True, **kw), learner(**kw)
    assert fitted(full) == {False} and fitted(lean) == {True}
    assert (weights(full)-weights(lean)).abs().max() < 1e-4
    assert torch.allclose(torch.stack(full.recorder.losses), torch.stack(lean.recorder.losses), atol=1e-4)
    assert list(full.recorder.values[0]) == pytest.approx(list(lean.recorder.values[0]), abs=1e-4)

def test_gradients_are_those_with_logits():
    "Of one batch, before the step."
    class Grads(Callback):
        needs_logits = False
        def before_step(self):
            if self.train_iter == 0: self.found = [p.grad.clone() for p in self.model.parameters()]
    grads = []
    for keep in (True,False):
        cb = Grads()
        fitted(learner(keep), cb)
        grads.append(cb.found)
    for a,b in zip(*grads): assert torch.allclose(a, b, atol=1e-6)

def test_logits_at_a_time():
    "Ten megabytes of them, whatever their precision, and 128 rows at least"
    class Rows(Callback):
        needs_logits = False
        def after_pred(self): self.n = next(cb for cb in self.learn.cbs if isinstance(cb, LeanLoss)).chunk
    def rows(vocab_sz, half=False):
        learn,cb = learner(vocab_sz=vocab_sz), Rows()
        if half: learn.to_bf16()
        assert fitted(learn, cb) == {True}
        return cb.n
    assert (rows(10_000), rows(10_000, half=True), rows(60_000)) == (256, 512, 128)

def own_loss(pred, y): return nn.functional.cross_entropy(pred.flatten(0, 1), y.flatten())

class Own(TransformerLM):
    def forward(self, x, cache=None): return super().forward(x, cache)/2

@pytest.mark.parametrize('kw,cbs', [
    (dict(loss_func=own_loss), []), (dict(loss_func=LabelSmoothingCrossEntropyFlat()), []), (dict(arch=Own), []),
    ({}, [Look])])
def test_who_may_look_gets_logits(kw, cbs):
    learn,cbs = learner(**kw), [o() for o in cbs]
    assert fitted(learn, *cbs) == {False}
    for cb in cbs: assert cb.shape[-1] == 600

def test_short_callbacks_and_late_ones_get_logits():
    "`Callback(after_pred=…)`, and one that comes within a fit"
    shapes = []
    def look(self): shapes.append(self.pred.shape[-1]) if self.training else None
    assert fitted(learner(), Callback(after_pred=look)) == {False} and set(shapes) == {600}
    class Late(Callback): after_pred = look
    class Adds(Callback):
        def before_train(self):
            if self.epoch == 1: self.learn.add_cb(Late())
    shapes.clear()
    assert fitted(learner(), Adds(), n=2) == {True,False} and set(shapes) == {600}

def test_a_patched_forward_is_trained(monkeypatch):
    plain = TransformerLM.forward
    def half(self, x, cache=None): return plain(self, x, cache)/2
    monkeypatch.setattr(TransformerLM, 'forward', half)
    full,lean = learner(True), learner()
    assert fitted(full) == fitted(lean) == {False} and weights(full).equal(weights(lean))

def test_class_weights_need_logits():
    learn = learner()
    learn.loss_func = CrossEntropyLossFlat(weight=torch.ones(600))
    assert fitted(learn) == {False}

def test_a_small_vocabulary_has_nothing_to_save():
    assert fitted(learner(vocab_sz=511)) == {False} and fitted(learner(vocab_sz=512)) == {True}

def test_hooks_see_every_batch():
    for part in (lambda m: m, lambda m: m.head):
        learn,seen = learner(), []
        handle = part(learn.model).register_forward_hook(lambda m, i, o: seen.append(o.shape) if m.training else None)
        assert fitted(learn) == {False}
        assert len(seen) == len(learn.dls.train)
        handle.remove()
        assert fitted(learn) == {True}

def test_metrics_of_training_get_logits():
    learn = learner(metrics=accuracy)
    learn.recorder.train_metrics = True
    assert fitted(learn) == {False} and len(learn.recorder.values[0]) == 4

def test_fastais_own_callbacks_do_not_look():
    learn = learner(metrics=accuracy)
    assert fitted(learn, GradientClip(1.), GradientAccumulation(8)) == {True}
    learn.lr_find(num_it=10, show_plot=False)
    assert not learn.cbs.filter(lambda cb: isinstance(cb, LeanLoss))

def test_validation_and_predictions_are_those_of_the_logits(monkeypatch):
    monkeypatch.setattr('fastai_txf.train.lean._few', 2)
    learn = learner(metrics=accuracy, vocab_sz=32)
    assert fitted(learn) == {True}
    row = list(learn.recorder.values[-1])
    x,y = learn.dls.valid.one_batch()
    logp = learn.model.eval()(x).log_softmax(-1).gather(-1, y[...,None])[...,0]
    assert torch.allclose(learn.get_preds()[0][:,:16], logp.detach(), atol=1e-5)
    loss,acc = learn.validate()
    assert loss == pytest.approx(row[1], abs=1e-5) and 0 < acc <= 1
    learn.show_results(max_n=2)
    assert isinstance(learn.predict('the cat', n_words=2), str)

def test_a_killed_training_goes_on_to_the_bit(tmp_path):
    class Kill(Callback):
        needs_logits,now = False,False
        def after_batch(self):
            if Kill.now and self.training and self.train_iter == 20: raise KeyboardInterrupt
    def run():
        learn = learner(path=tmp_path)
        fitted(learn, ResumeCallback('r', every=7), Kill(), n=2)
        return weights(learn)
    there = run()
    Kill.now = True
    with pytest.raises(KeyboardInterrupt): run()
    Kill.now = False
    assert torch.equal(run(), there)

def test_the_stand_in_names_the_remedy():
    for touch in (lambda o: o.shape, lambda o: o[0], lambda o: torch.softmax(o, -1), lambda o: list(o)):
        with pytest.raises(AttributeError, match='needs_logits=True'): touch(NoLogits())
    copy.deepcopy(NoLogits())

@pytest.mark.parametrize('emulates', [True,False])
def test_to_bf16_warns_where_it_is_emulated(monkeypatch, recwarn, emulates):
    monkeypatch.setattr('fastai_txf.learn.base.emulates_bf16', lambda: emulates)
    learner().to_bf16()
    assert any('no units for bfloat16' in str(w.message) for w in recwarn) == emulates

@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_any_precision(dtype):
    "Without logits a model of another precision trains as it does with them"
    full,lean = learner(True),learner()
    for l in (full,lean): l.model.to(dtype)
    assert fitted(full) == {False} and fitted(lean) == {True}
    assert list(full.recorder.values[0]) == pytest.approx(list(lean.recorder.values[0]), rel=1e-6 if dtype == torch.float64 else 2e-2)

class Change(Callback):
    "From the second epoch on, another loss."
    needs_logits = False
    def __init__(self, loss_func): self.loss_func = loss_func
    def before_epoch(self):
        if self.epoch == 1: self.learn.loss_func = self.loss_func

@pytest.mark.parametrize('loss_func', [CrossEntropyLossFlat(label_smoothing=0.5), FocalLossFlat(gamma=2.), CrossEntropyLossFlat(label_smoothing=0.1),
                                       CrossEntropyLossFlat(weight=torch.linspace(0, 1, 600))])
def test_another_loss_in_the_middle(loss_func):
    "A loss that a callback puts in place is the one of training, too"
    full,lean,plain = learner(True),learner(),learner()
    for l in (full,lean): fitted(l, Change(loss_func), n=2)
    fitted(plain, n=2)
    assert list(full.recorder.values[1]) == pytest.approx(list(lean.recorder.values[1]), abs=1e-4)
    assert abs(plain.recorder.values[1][0] - lean.recorder.values[1][0]) > 1e-3

def test_the_last_callback_sees_the_batch():
    "However late a callback changes the batch, the model reads what it has made"
    class Late(Callback):
        order,n = 10**6,0
        def before_batch(self):
            self.n += 1
            self.learn.xb = (torch.full_like(self.xb[0], 7),)
    full,lean = learner(True),learner()
    late = [Late(),Late()]
    assert fitted(full, late[0]) == {False} and fitted(lean, late[1]) == {True}
    assert late[0].n == late[1].n
    assert (weights(full)-weights(lean)).abs().max() < 1e-4

@pytest.mark.parametrize('part', ['model','head','all'])
def test_a_forward_of_ones_own(part):
    "What stands in for `forward`, or listens to all modules, decides in training, too"
    def run(keep):
        learn = learner(keep)
        if part == 'all':
            handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out/2 if m is learn.model.head else None)
        else:
            m = learn.model if part == 'model' else learn.model.head
            m.forward = lambda *args, f=m.forward: f(*args)/2
            handle = None
        assert fitted(learn) == {False}
        if handle: handle.remove()
        return weights(learn)
    assert (run(True)-run(False)).abs().max() < 1e-6

@pytest.mark.parametrize('opt_func', [muon,adamw])
def test_gradients_of_an_earlier_fit(opt_func):
    "A fit that was broken off, or ended between two steps, leaves nothing to the next one"
    class Stop(Callback):
        needs_logits = False
        def before_step(self):
            if self.train_iter == 3: raise KeyboardInterrupt
    def stopped(learn):
        with pytest.raises(KeyboardInterrupt): learn.fit(1, 1e-3, cbs=Stop())
    def between(learn): learn.fit(1, 1e-3, cbs=GradientAccumulation(12))
    for first in (stopped,between):
        learn = learner(opt_func=opt_func)
        first(learn)
        learn.freeze()
        before = {n:p.detach().clone() for n,p in learn.model.named_parameters() if not p.requires_grad}
        assert before
        learn.fit(1, 1e-3)
        assert all(torch.equal(p, before[n]) for n,p in learn.model.named_parameters() if n in before)

@pytest.mark.parametrize('how', ['hook','forward'])
def test_a_changed_loss(how):
    "A hook on the loss, or a `forward` set on it, has its say; ChunkedLoss refuses it"
    learn = learner(loss_func=CrossEntropyLossFlat())
    loss,before = learn.loss_func.func, weights(learn)
    if how == 'hook': loss.register_forward_hook(lambda m, args, out: 0*out)
    else: loss.forward = lambda *args: 0*cross_entropy(*args)
    assert fitted(learn, wd=0.) == {False} and weights(learn).equal(before)
    with pytest.raises(TypeError, match='CrossEntropyLoss.* has a hook or a `forward` of its own.*: remove it'): learn.fit(1, 1e-2, cbs=ChunkedLoss())
