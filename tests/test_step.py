"What a step costs besides the model: `StepLearner` computes what fastai's loop does"
from functools import partial
from pathlib import Path
import os, pytest, subprocess, sys, torch, weakref
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import AvgSmoothLoss, Learner
from fastai.losses import BaseLoss, CrossEntropyLossFlat, FocalLossFlat, LabelSmoothingCrossEntropyFlat
from fastai.metrics import accuracy
from fastai.torch_core import TensorBase
from torch import nn
from fastai_txf.train import step
from fastai_txf.train.losses import batch_loss, in_full, SoftCrossEntropy
from fastai_txf.train.step import StepLearner

def small(cls, loss=None, model=None, **kw):
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    dl = DataLoader([*zip(x, (x.sum(-1) > 0).long())], bs=8)
    learn = cls(DataLoaders(dl, dl), model or nn.Linear(3, 2), loss or CrossEntropyLossFlat(), lr=0.1, **kw)
    learn.remove_cb(learn.progress)
    learn.logger = lambda *args: None
    return learn

LOSSES = [CrossEntropyLossFlat, SoftCrossEntropy, LabelSmoothingCrossEntropyFlat, FocalLossFlat, partial(CrossEntropyLossFlat, weight=torch.tensor([1.,2.])), nn.CrossEntropyLoss]

@pytest.mark.parametrize('make', LOSSES)
def test_as_fastai(make):
    "Losses, their running mean, a metric and weights are those of fastai's loop, bit for bit"
    ours,theirs = (small(cls, make(), metrics=accuracy) for cls in (StepLearner,Learner))
    for learn in (ours,theirs): learn.fit(2)
    assert torch.stack(ours.recorder.losses).equal(torch.stack(theirs.recorder.losses).as_subclass(torch.Tensor))
    assert ours.recorder.values == theirs.recorder.values and len(ours.recorder.values[0]) == 3
    assert ours.model.weight.equal(theirs.model.weight)

def test_plain(monkeypatch):
    "No operation of a step goes through fastai's class of tensors"
    calls,way = [], vars(TensorBase)['__torch_function__'].__func__
    def counted(cls, *args, **kwargs):
        calls.append(args[0])
        return way(cls, *args, **kwargs)
    def fit(cls):
        learn = small(cls)
        calls.clear()
        learn.fit(1)
        return len(calls)
    monkeypatch.setattr(TensorBase, '__torch_function__', classmethod(counted))
    assert fit(StepLearner) == 0 < fit(Learner)

def test_batch_loss():
    "Losses and tensors that are not known take their usual way"
    class Marked(TensorBase): pass
    x,y = torch.randn(4, 2), torch.tensor([0,1,1,0])
    want = CrossEntropyLossFlat()(x, y)
    assert type(batch_loss(CrossEntropyLossFlat(), x, y)) is torch.Tensor and batch_loss(CrossEntropyLossFlat(), x, y).item() == want.item()
    assert type(batch_loss(CrossEntropyLossFlat(), Marked(x), y)) is TensorBase
    class Own(CrossEntropyLossFlat): pass
    class Inner(nn.Module):
        def forward(self, x, y): return (x.sum()*2).as_subclass(Marked)
    assert type(batch_loss(Own(), x, y)) is TensorBase and type(batch_loss(BaseLoss(Inner), x, y)) is Marked
    assert batch_loss(lambda p, *ys: (p,*ys), x, y, y) == (x,y,y)
    x.requires_grad_()
    batch_loss(CrossEntropyLossFlat(), x, y).backward()
    grad,x.grad = x.grad,None
    CrossEntropyLossFlat()(x, y).backward()
    assert grad.equal(x.grad)

def test_losses_that_look_at_tensors():
    "Weights of a class of their own, hooks and a `forward` of its own see what they saw"
    class Marked(TensorBase): pass
    x,y = torch.randn(4, 2), torch.tensor([0,1,1,0])
    seen = []
    def own(x, y):
        seen.append(type(x))
        return x.sum()
    weighted = CrossEntropyLossFlat(weight=torch.ones(2).as_subclass(Marked))
    hooked,replaced = CrossEntropyLossFlat(), CrossEntropyLossFlat()
    hooked.func.register_forward_pre_hook(lambda m, args: seen.append(type(args[0])))
    replaced.func.forward = own
    assert type(batch_loss(weighted, x, y)) is not torch.Tensor
    for loss in (hooked,replaced): batch_loss(loss, x, y)
    assert seen == [TensorBase]*2

def test_recorder():
    "The recorder's mean goes on where callbacks come in the middle, and is of fastai's class"
    class Add(Callback):
        def before_epoch(self):
            if self.epoch == 1: self.learn.add_cb(Callback())
    ours,theirs = small(StepLearner), small(Learner)
    for learn in (ours,theirs): learn.fit(3, cbs=Add())
    assert type(ours.recorder.smooth_loss) is AvgSmoothLoss and ours.recorder.iters == theirs.recorder.iters == [5,10,15]
    assert ours.recorder.values[-1][0] == theirs.recorder.values[-1][0]

def test_another_step(monkeypatch):
    "A step that was put in the place of fastai's is taken"
    steps,before = [], Learner._do_one_batch
    def mine(self):
        steps.append(self.iter)
        before(self)
    monkeypatch.setattr(Learner, '_do_one_batch', mine)
    small(StepLearner).fit(1)
    assert steps == [*range(5)]*2
    lines = """from fastai.learner import Learner
before,n = Learner._do_one_batch, []
def mine(self): n.append(self.iter); before(self)
Learner._do_one_batch = mine
from test_step import *
small(StepLearner).fit(1)
assert len(n) == 10"""
    env = {**os.environ, 'PYTHONPATH':os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, '-c', lines], env=env, check=True)      # put there before the import

def test_device():
    "A batch that is there is not touched; others are moved, however deep"
    learn = small(StepLearner)
    x = torch.ones(2)
    for b in [(x,x), [x,x], (TensorBase(x),x)]: assert learn._set_device(b) is b
    for b in [(x,[x]), dict(a=x), (x,3)]:
        got = learn._set_device(b)
        assert type(got) is type(b) and got is not b
    learn.model.to('meta')
    assert learn._set_device((x,[x]))[1][0].is_meta and learn._set_device((x,x))[0].is_meta and learn._set_device(x).is_meta

def test_low():
    "Losses of a model that answers in 16 bits are computed in fp32"
    seen = []
    class Watch(Callback):
        def after_pred(self): seen.append(self.learn.pred.dtype)
        def after_loss(self): seen.append('loss')
    learn = small(StepLearner, model=nn.Sequential(nn.Linear(3, 2), Low()))
    learn.fit(1, cbs=Watch())
    assert seen[:2] == [torch.float32,'loss'] and all(p.isfinite().all() for p in learn.model.parameters())

def test_predictions_are_let_go(monkeypatch):
    "In 16 bits, the last batch's are gone when those of this one become fp32"
    last,gone = [lambda: None], []
    def full(pred):
        gone.append(last.pop()() is None)
        res = in_full(pred)
        last.append(weakref.ref(res))
        return res
    monkeypatch.setattr(step, 'in_full', full)
    small(StepLearner, model=nn.Sequential(nn.Linear(3, 2), Low())).fit(1)
    assert gone == [True]*10

class Low(nn.Module):
    def forward(self, x): return x.bfloat16()
