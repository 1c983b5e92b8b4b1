"What a step costs besides the model: `StepLearner` computes what fastai's loop does"
from functools import partial
import pytest, torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import AvgSmoothLoss, Learner, Recorder
from fastai.losses import BaseLoss, CrossEntropyLossFlat, FocalLossFlat, LabelSmoothingCrossEntropyFlat
from fastai.torch_core import TensorBase
from torch import nn
from fastai_txf.train.losses import batch_loss, SoftCrossEntropy
from fastai_txf.train.step import SmoothLoss, StepLearner

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
    "Losses, their running mean, metrics' rows and weights are those of fastai's loop, bit for bit"
    ours,theirs = small(StepLearner, make()), small(Learner, make())
    for learn in (ours,theirs): learn.fit(2)
    assert torch.stack(ours.recorder.losses).equal(torch.stack(theirs.recorder.losses).as_subclass(torch.Tensor))
    assert [o[:2] for o in ours.recorder.values] == [o[:2] for o in theirs.recorder.values]
    assert ours.model.weight.equal(theirs.model.weight)
    assert ours.loss_func(ours.model(torch.ones(2, 3)), torch.tensor([0,1])).item() == theirs.loss_func(theirs.model(torch.ones(2, 3)), torch.tensor([0,1])).item()

def test_plain():
    "No operation of a step goes through fastai's class of tensors"
    calls = []
    class Watch(Callback):
        def after_batch(self): calls.extend([type(self.learn.loss), type(self.learn.loss_grad), type(self.recorder.smooth_loss.value)])
    learn = small(StepLearner)
    learn.fit(1, cbs=Watch())
    assert {*calls} == {torch.Tensor} and type(small(Learner).loss_func(torch.ones(1, 2), torch.tensor([0]))) is TensorBase

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

def test_smooth_loss():
    "A recorder's own mean and its β stay; what is no number on the CPU goes fastai's way"
    assert type(small(StepLearner).recorder.smooth_loss) is SmoothLoss and type(small(Learner).recorder.smooth_loss) is AvgSmoothLoss
    class Mine(AvgSmoothLoss): pass
    learn = small(StepLearner)
    learn.remove_cb(learn.recorder)
    learn.add_cb(Recorder(beta=0.5))
    assert type(learn.recorder.smooth_loss) is SmoothLoss and learn.recorder.smooth_loss.beta == 0.5
    learn.remove_cb(learn.recorder)
    rec = Recorder()
    rec.smooth_loss = Mine(beta=0.1)
    learn.add_cb(rec)
    assert type(learn.recorder.smooth_loss) is Mine
    class Given: pass
    for loss in (torch.tensor([1.,3.]), TensorBase(2.), torch.tensor(2.)):
        a,b,given = SmoothLoss(), AvgSmoothLoss(), Given()
        given.loss = loss
        given.loss.requires_grad_()
        for o in (a,b,a,b): o.accumulate(given)
        assert a.value.item() == b.value.item() and a.count == b.count == 2 and not a.val.requires_grad

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

class Low(nn.Module):
    def forward(self, x): return x.bfloat16()
