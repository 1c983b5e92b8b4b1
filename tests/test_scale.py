"What training needs beyond the plain loop: loss without logits, decay that spares, torch's optimizers, blocks computed twice"
from contextlib import nullcontext
from functools import partial
import numpy as np, pandas as pd, pytest, torch, torch.nn as nn, torch.nn.functional as F
from fastai.text.all import (Adam, Callback, CrossEntropyLossFlat, DataLoaders, GradientAccumulation, LMDataLoader, LabelSmoothingCrossEntropyFlat, Learner, OptimWrapper, SaveModelCallback,
                             accuracy, set_seed)
from hypothesis import given, settings, strategies as st
from fastai_txf.model.models import Seq2SeqTransformer, TransformerClassifier, TransformerLM
from fastai_txf.text.pairs import Seq2SeqDataLoaders
from fastai_txf.train.losses import chunked_cross_entropy, ChunkedLoss
from fastai_txf.train.optim import adamw, spared_params, SpareDecay, TorchOptimizer
from fastai_txf.learn.lm import TransformerLMLearner
from fastai_txf.learn.mlm import transformer_mlm_learner
from fastai_txf.learn.seq2seq import transformer_seq2seq_learner
from fastai_txf.text.tokens import CharTokenizer
from fixtures import *

# Loss without logits

def full_loss(h, weight, targ, bias=None, **kw):
    "The reference: all logits at once"
    return F.cross_entropy(F.linear(h, weight, bias).float().flatten(0, -2), targ.flatten(), **kw)

def loss_and_grads(f, inputs, targ, **kw):
    h,w,b = [None if o is None else o.clone().requires_grad_() for o in inputs]
    loss = f(h, w, targ, b, **kw)
    (3*loss).backward() # what comes from above counts
    return [loss.detach(), *(o.grad for o in (h,w,b) if o is not None)]

@settings(max_examples=60)
@given(shape=st.sampled_from([(1,),(7,),(2,5),(3,1,4)]), d=st.integers(1, 6), vocab_sz=st.integers(1, 9), chunk=st.integers(1, 20), bias=st.booleans(),
       smoothing=st.sampled_from([0.,0.1,0.9]), ignored=st.sampled_from([0.,0.3,1.]), ignore_index=st.sampled_from([-100,0]), seed=st.integers(0, 99))
def test_chunked_cross_entropy(shape, d, vocab_sz, chunk, bias, smoothing, ignored, ignore_index, seed):
    "Value and gradients of `F.cross_entropy`, whatever the shapes; NaN and no gradient where nothing counts"
    torch.manual_seed(seed)
    inputs = torch.randn(*shape, d), torch.randn(vocab_sz, d), torch.randn(vocab_sz) if bias else None
    targ = torch.randint(0, vocab_sz, shape).masked_fill(torch.rand(shape) < ignored, ignore_index)
    kw = dict(ignore_index=ignore_index, label_smoothing=smoothing)
    ours,theirs = loss_and_grads(partial(chunked_cross_entropy, chunk=chunk), inputs, targ, **kw), loss_and_grads(full_loss, inputs, targ, **kw)
    for o,t in zip(ours, theirs, strict=True): assert torch.allclose(o, t, rtol=1e-5, atol=1e-5, equal_nan=True)

def test_chunked_cross_entropy_in_double():
    "The gradients are those of finite differences, and only those asked for are made"
    torch.manual_seed(0)
    h,w,b = (torch.randn(*s, dtype=torch.double, requires_grad=True) for s in ((5,3),(4,3),(4,)))
    targ = torch.tensor([0,3,-100,1,1])
    assert torch.autograd.gradcheck(lambda *o: chunked_cross_entropy(o[0], o[1], targ, o[2], label_smoothing=0.1, chunk=2), (h,w,b))
    chunked_cross_entropy(h, w.detach(), targ).backward()
    assert h.grad is not None and w.grad is None
    with torch.no_grad(): assert not chunked_cross_entropy(h, w, targ).requires_grad

@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_chunked_cross_entropy_under_autocast(dtype):
    "The loss of the same low-precision logits, and gradients as near to the exact ones as torch's are"
    torch.manual_seed(0)
    inputs,targ = (torch.randn(64, 32), torch.randn(100, 32)/6, torch.randn(100)), torch.randint(0, 100, (64,))
    exact = loss_and_grads(full_loss, inputs, targ)
    with torch.autocast('cpu', dtype): ours,theirs = (loss_and_grads(f, inputs, targ) for f in (partial(chunked_cross_entropy, chunk=10), full_loss))
    assert [o.dtype for o in ours] == [torch.float32]*4
    assert ours[0] != exact[0] and abs(ours[0]-exact[0]) < 1e-2
    for o,t,e in zip(ours, theirs, exact): assert (o-e).norm() < 2*(t-e).norm() + 1e-3*e.norm() < 0.02*e.norm()

def test_chunked_cross_entropy_in_half_of_many_tokens():
    "float16 ends at 65,504 and near 6e-8: neither the totals of many tokens nor their reciprocals are stored in it"
    torch.manual_seed(0)
    inputs,targ = (torch.randn(6, 4)/100, torch.randn(70_000, 4)/100, None), torch.randint(0, 70_000, (6,))
    exact = loss_and_grads(full_loss, inputs, targ)
    with torch.autocast('cpu', torch.float16): ours = loss_and_grads(partial(chunked_cross_entropy, chunk=4), inputs, targ)
    for o,e in zip(ours, exact): assert (o-e).norm() < 0.01*e.norm()

def test_chunked_cross_entropy_backwards_twice():
    "A second backward pass adds the same gradients, and none is changed by what becomes of the first"
    torch.manual_seed(0)
    h,w = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    loss = chunked_cross_entropy(h, w, torch.randint(0, 4, (5,)))
    loss.backward(retain_graph=True)
    once = h.grad.clone(), w.grad.clone()
    loss.backward()
    for o,g in zip(once, (h.grad, w.grad)): assert torch.equal(g, 2*o)

def test_no_logits():
    "Nothing as large as the logits is made or kept"
    sizes = []
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(o.numel() for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor))
            return out
    h,w = torch.randn(512, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    with Watch(): chunked_cross_entropy(h, w, torch.randint(0, 1000, (512,)), chunk=16).backward()
    assert max(sizes) == 16*1000

def test_chunked_cross_entropy_refuses():
    h,w,targ = torch.randn(2, 5, 4), torch.randn(9, 4), torch.zeros(2, 5).long()
    with pytest.raises(ValueError, match='chunk=0'): chunked_cross_entropy(h, w, targ, chunk=0)
    with pytest.raises(ValueError, match=r'\(2, 5, 4\).*\(10,\)'): chunked_cross_entropy(h, w, targ.flatten())

def pairs_learner(path, **kw):
    days = pd.date_range('2020-01-01', periods=48)
    df = pd.DataFrame(dict(a=days.strftime('%d %B'), b=days.strftime('%m-%d')))
    set_seed(0)
    dls = Seq2SeqDataLoaders.from_df(df, src_col='a', tgt_col='b', tok_tfm=CharTokenizer(), bs=8, seed=0, num_workers=0)
    return quiet(transformer_seq2seq_learner(dls, **{**SMALL, 'path':path, **kw}))

def start(learn, seed=1):
    "From here, learners that share their loaders see the same batches"
    set_seed(seed)
    if isinstance(learn.dls.train, LMDataLoader): learn.dls.train.items.idxs.items.sort() # fastai shuffles the last order, not the first

def fitted(learn, *cbs, n=2, lr=1e-2):
    "Training losses, the record of the epochs, and the weights after a fit that starts from a seed"
    start(learn)
    learn.fit(n, lr, cbs=cbs)
    return [torch.stack([torch.as_tensor(o) for o in learn.recorder.losses]), torch.tensor(learn.recorder.values), *weights(learn).values()]

@pytest.fixture(params=['lm','lm untied','seq2seq','mlm'])
def make_same(request, make, tmp_path, dls):
    "Makes learners of one kind that are equal"
    def _make(**kw):
        set_seed(0)
        if request.param == 'seq2seq': return pairs_learner(tmp_path, **kw)
        if request.param == 'mlm': return quiet(transformer_mlm_learner(dls, **{**SMALL, 'path':tmp_path, **kw}))
        return make('lm', metrics=accuracy, tie=request.param == 'lm', opt_func=adamw, **kw)
    return _make

@pytest.mark.parametrize('low', [False,True])
def test_chunked_loss(make_same, low):
    "Losses, validation and weights are those of the full loss: tied head or not, label smoothing, padding, dropout; in bf16 the losses within its rounding"
    learns = [make_same() for _ in range(2)]
    if low: learns = [o.to_bf16() for o in learns]
    res = [fitted(learn, *cbs) for learn,cbs in zip(learns, ([], [ChunkedLoss(chunk=20)]))]
    if low: assert (res[0][0]-res[1][0]).abs().max() < 0.01
    else:
        for full,chunked in zip(*res, strict=True): assert (full-chunked).abs().max() < 1e-4
    assert 'forward' not in vars(learns[1].model.head) and isinstance(learns[1].loss_func, CrossEntropyLossFlat)

def test_chunked_loss_among_others(make):
    "Gradients are accumulated, rates found and likelihoods gathered as without it"
    res = []
    for cbs in ([], [ChunkedLoss(chunk=20)]):
        set_seed(0)
        learn = make('lm', cbs=cbs, opt_func=adamw)
        start(learn)
        res.append([torch.tensor(learn.lr_find(num_it=10, show_plot=False)[0]), *fitted(learn, GradientAccumulation(16), n=1), *learn.get_preds()])
        learn.export('learn.pkl')
    for full,chunked in zip(*res, strict=True): assert (full-chunked).abs().max() < 1e-4

class Stop(Callback):
    "KeyboardInterrupt at `event` of the third batch, after or before other callbacks"
    def __init__(self, event, order): self.event,self.order = event,order
    def __call__(self, event_name):
        if event_name == self.event and self.learn.training and self.learn.iter == 2: raise KeyboardInterrupt

@pytest.mark.parametrize('where', ['before_batch','model','after_pred','after_loss','before_step'])
def test_interrupted_chunked_loss(make, where):
    "After Ctrl-C the model gives logits, the loss is the learner's own, and training goes on without the callback"
    learn = make('lm')
    loss_func,handle = learn.loss_func, None
    if where == 'model': handle = learn.model.encoder.norm.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[ChunkedLoss(), *([] if handle else [Stop(where, 50)])])
    if handle: handle.remove()
    assert learn.loss_func is loss_func and not vars(learn.model.head).keys() & {'forward'}
    assert learn.model(learn.dls.one_batch()[0]).shape[-1] == len(learn.dls.vocab)
    learn.fit(1)

def state_of(learn):
    "What a broken-off batch could leave behind: attributes of every module, and the learner's own"
    skip = {'_parameters','_buffers','training','_modules'}
    parts = [{k:id(v) for k,v in vars(m).items() if k not in skip} for m in learn.model.modules()]
    return parts, [list(m._modules) for m in learn.model.modules()], id(learn.loss_func), id(learn.model)

@pytest.mark.parametrize('low', [False,True])
@pytest.mark.parametrize('where', ['before_batch','after_pred','after_loss','before_backward','after_backward','after_step'])
def test_chunked_loss_touches_no_module(make_same, where, low):
    "In the middle of a batch, too, every module and the learner's loss are what they were; a batch that breaks off leaves nothing"
    learn = make_same()
    if low: learn.to_bf16()
    before,during = state_of(learn), []
    class Look(Callback):
        order = 50
        def __call__(self, name):
            if name != where or not self.learn.training: return
            during.append(state_of(self.learn))
            if self.learn.iter == 1: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=[ChunkedLoss(), Look()])
    assert len(during) == 2 and all(o == before for o in [*during, state_of(learn)])
    assert not torch.is_autocast_enabled('cpu')
    for cb in learn.cbs.filter(lambda o: isinstance(o, (ChunkedLoss,Look))): learn.remove_cb(cb)
    learn.fit(1)

def test_chunked_loss_events(make):
    "A step has the events of fastai's, and one that ends it early"
    seen = []
    class Watch(Callback):
        run_valid = False
        def __call__(self, name):
            if name in event_order + ['after_cancel_batch'] and self.learn.training and self.learn.iter == 0: seen[-1].append(name)
    for cbs in ([], [ChunkedLoss()]):
        seen.append([])
        make('lm').fit(1, 1e-3, cbs=[Watch(), *cbs])
    full,chunked = seen
    assert full == event_order and chunked == [*full[:-1], 'after_cancel_batch', full[-1]]

event_order = ['before_batch','after_pred','after_loss','before_backward','after_backward','before_step','after_step','after_batch']

def test_chunked_loss_refuses(make, dls_lm):
    class Scaled(TransformerLM):
        def forward(self, x, cache=None): return 2*super().forward(x, cache)
    for kw,error in ((dict(arch=Scaled), 'not that of its head'), (dict(loss_func=LabelSmoothingCrossEntropyFlat()), 'CrossEntropyLossFlat'),
                     (dict(loss_func=CrossEntropyLossFlat(weight=torch.ones(len(dls_lm.vocab)))), 'class weights')):
        learn = make('lm', **kw)
        before,loss_func = weights(learn),learn.loss_func
        with pytest.raises(TypeError, match=error): learn.fit(1, cbs=ChunkedLoss())
        assert not changed(learn, before) and learn.loss_func is loss_func and 'forward' not in vars(learn.model.head)
    learn = make('lm')
    learn.recorder.train_metrics = True
    with pytest.raises(ValueError, match='train_metrics'): learn.fit(1, cbs=ChunkedLoss())
    with pytest.raises(TypeError, match='no linear `head`'): quiet(Learner(dls_lm, nn.Embedding(len(dls_lm.vocab), 4), CrossEntropyLossFlat())).fit(1, cbs=ChunkedLoss())
    with pytest.raises(ValueError, match='chunk=-1'): ChunkedLoss(-1)

class CapHead(nn.Linear):
    def forward(self, h): return 5*torch.tanh(super().forward(h)/5)

class FocalLoss(nn.CrossEntropyLoss):
    def forward(self, pred, targ): return super().forward(2*pred, targ)

class FocalFlat(CrossEntropyLossFlat):
    def __call__(self, pred, targ): return super().__call__(2*pred, targ)

@pytest.mark.parametrize('loss', [FocalLoss(), FocalFlat()])
def test_chunked_loss_refuses_a_loss_that_computes_more(make, loss):
    with pytest.raises(TypeError, match='use CrossEntropyLossFlat'): make('lm', loss_func=loss).fit(1, cbs=ChunkedLoss())

heads = dict(subclass=(lambda head: setattr(head, '__class__', CapHead), 'is a CapHead'), hook=(lambda head: head.register_forward_hook(lambda m,i,o: 5*o.tanh()), 'has a hook'),
             parametrized=(lambda head: nn.utils.parametrizations.weight_norm(head), 'is a ParametrizedLinear'), forward=(lambda head: setattr(head, 'forward', lambda h: h.sum()), 'has a hook or a `forward`'))

@pytest.mark.parametrize('kind', heads)
def test_chunked_loss_refuses_a_head_that_computes_more(make, kind):
    "It would train on another loss; without it, the learner trains on that of the head"
    change,match = heads[kind]
    learn = make('lm', tie=False)
    change(learn.model.head)
    with pytest.raises(TypeError, match=match): learn.fit(1, cbs=ChunkedLoss())

# Weight decay and torch's optimizers

@pytest.mark.parametrize('norm', ['layer','rms'])
@pytest.mark.parametrize('opt_func', [Adam,adamw])
def test_spare_decay(make, norm, opt_func):
    "Without a gradient only the matrices shrink, by the factor of their group; norms, biases and embeddings stay"
    learn = make('lm', norm=norm, positions='learned', max_len=16, opt_func=opt_func, tie=False)
    learn.loss_func = lambda pred, targ: 0.*pred.sum()
    before = weights(learn)
    learn.fit(1, slice(1e-3, 1e-1), wd=0.1, cbs=SpareDecay())
    spared = {n for n in before if n.endswith('bias') or 'norm' in n or 'emb' in n}
    assert changed(learn, before) == before.keys() - spared and 'positions.emb.weight' in str(spared)
    steps,rates = len(learn.dls.train),[h['lr'] for h in learn.opt.hypers]
    assert len(set(rates)) == len(rates) > 2
    of = {id(p):lr for g,lr in zip(learn.opt.param_lists, rates) for p in g}
    for n,p in learn.model.named_parameters():
        if n not in spared: assert torch.allclose(p.cpu(), before[n]*(1-0.1*of[id(p)])**steps, rtol=1e-4)

@pytest.mark.parametrize('cls', [None,Learner])
@pytest.mark.parametrize('mine', [False,True])
def test_interrupted_spare_decay(make, dls_lm, cls, mine):
    "However a fit ends, later ones without the callback decay every parameter; those that were spared anyway stay so"
    learn = make('lm')
    if cls: learn = quiet(cls(dls_lm, learn.model, CrossEntropyLossFlat()))
    def spared(): return {p for p,s in learn.opt.state.items() if not s.get('do_wd', True)}
    learn.create_opt()
    own = spared()                                                          # fastai's own: biases, and norms that it knows
    class Look(Callback):
        def after_step(self): assert spared() > own
    cb,stop = SpareDecay(), Stop('after_step', 50)
    if mine: learn.add_cb(cb)
    for more in ([stop], [stop], [Look()]):                                 # twice broken off, once to the end
        with pytest.raises(KeyboardInterrupt) if stop in more else nullcontext(): learn.fit(1, cbs=more + [cb]*(not mine))
        if not mine: assert spared() == own
    if mine:
        with pytest.raises(KeyboardInterrupt): learn.fit(1, cbs=stop)
        learn.remove_cb(cb)
    assert spared() == own
    learn.fit(1)

@pytest.mark.parametrize('cls', [None,Learner])
def test_spared_in_no_file(make, dls_lm, cls, tmp_path):
    "What a fit spares is spared in no later one, though its state was loaded at its end; a file loaded within it lets nothing of that decay"
    learn = make('lm', opt_func=Adam)
    if cls: learn = quiet(cls(dls_lm, learn.model, CrossEntropyLossFlat(), opt_func=Adam, path=tmp_path))
    def spared(l): return [i for i,(p,*_) in enumerate(l.opt.all_params()) if not l.opt.state[p].get('do_wd', True)]
    learn.create_opt()
    own,emb = spared(learn), learn.model.encoder.emb.weight
    learn.fit(1, 1e-3, cbs=[SpareDecay(),SaveModelCallback(with_opt=True)])
    assert spared(learn) == own
    before = emb.norm().item()
    learn.fit(1, 1e-3, wd=50.)
    assert emb.norm() < 0.9*before
    if cls: return                                                          # fastai's own `save` writes all that there is
    class Mid(Callback):
        def after_epoch(self):
            self.learn.save('mid')
            self.learn.load('mid')
            self.within = spared(self.learn)
    mid = Mid()
    learn.fit(1, 1e-3, cbs=[mid,SpareDecay()])
    assert len(mid.within) > len(own) and spared(learn) == own
    assert spared(make('lm', opt_func=Adam).load('mid')) == own

@pytest.mark.parametrize('cls', [None,Learner])
def test_spared_after_a_validation_within_the_fit(make, dls_lm, cls):
    "A validation in the middle of a fit leaves spared what the fit spares"
    learn = make('lm', opt_func=Adam)
    if cls: learn = quiet(cls(dls_lm, learn.model, CrossEntropyLossFlat(), opt_func=Adam))
    class Look(Callback):
        def before_train(self): seen.append([self.opt.state[p].get('do_wd', True) for p,*_ in self.opt.all_params()])
        def after_train(self): self.learn.validate()
    seen = []
    learn.fit(2, 1e-3, cbs=[SpareDecay(),Look()])
    assert seen[0] == seen[1]

def test_lr_find_spares_for_itself(make):
    "A search for a rate whose learner spares weights leaves none of them spared when the callback is gone"
    learn = make('lm', opt_func=Adam, cbs=SpareDecay())
    learn.create_opt()
    def spared(): return {n for n,p in learn.model.named_parameters() if not learn.opt.state[p].get('do_wd', True)}
    own = spared()
    learn.lr_find(num_it=8, show_plot=False)
    learn.remove_cb(SpareDecay)
    assert spared() == own

def test_spared_params():
    "A tied head is an embedding; without embeddings, it decays with them"
    model = TransformerLM(vocab_sz=9, d_model=8, n_layers=1, n_heads=2)
    names = {id(p):n for n,p in model.named_parameters()}
    spared,fewer = ({names[id(p)] for p in spared_params(model, e)} for e in (True,False))
    assert spared - fewer == {'encoder.emb.weight'} and not any('weight' in n and 'norm' not in n for n in fewer)
    assert {n for n in names.values() if n.endswith('bias')} < fewer

@both
def test_adamw_is_adam(make, kind):
    "One cycle with discriminative rates, decay and freezing: the weights that fastai's Adam gives"
    res = []
    for opt_func in (Adam, adamw, partial(adamw, fused=False)):
        set_seed(0)
        learn = make(kind, opt_func=opt_func, wd=0.2, cbs=SpareDecay())
        start(learn)
        learn.freeze_to(-2); learn.fit_one_cycle(1, slice(1e-3, 1e-2))
        learn.unfreeze(); learn.fit_one_cycle(1, slice(1e-4, 1e-2))
        res.append(list(weights(learn).values()))
    for theirs,*ours in zip(*res):
        for o in ours: assert torch.allclose(o, theirs, atol=2e-5)

@pytest.mark.parametrize('opt_func', [adamw, partial(TorchOptimizer, opt=torch.optim.SGD)])
def test_hypers(opt_func):
    "What fastai's `OptimWrapper` finds, group by group, but for what torch is left to choose"
    opt = opt_func([[nn.Parameter(torch.ones(1))] for _ in range(3)], lr=0.1)
    opt.set_hyper('lr', slice(1e-3, 1e-1)); opt.set_hyper('mom', [0.1,0.2,0.3])
    found = [{k:v for k,v in h.items() if v is not None} for h in OptimWrapper.hypers.fget(opt)]
    assert opt.hypers == found
    assert [h['mom'] for h in opt.hypers] == [0.1,0.2,0.3]

@both
def test_adamw_saves(make, kind):
    "Optimizer state goes with `save` and `export`; wd set in `fit` arrives"
    learn = make(kind, opt_func=adamw)
    learn.fit(1, 1e-2, wd=0.3)
    assert {h['wd'] for h in learn.opt.hypers} == {0.3} and {h['weight_decay'] for h in learn.opt.hypers} == {0.}
    learn.save('with_opt')
    other = make(kind, opt_func=adamw)
    other.load('with_opt', with_opt=True)
    p,q = (o.opt.opt.state_dict()['state'] for o in (learn,other))
    assert all(torch.equal(p[i]['exp_avg'].cpu(), q[i]['exp_avg'].cpu()) for i in p) and p.keys() == q.keys()
    learn.export('learn.pkl')
    learn.fit(1, 1e-2)

def test_any_torch_optimizer(make):
    learn = make('lm', opt_func=partial(TorchOptimizer, opt=torch.optim.SGD, momentum=0.9))
    first = learn.validate()[0]
    learn.fit_one_cycle(2, 0.5, moms=(0.9,0.8,0.9))
    assert learn.recorder.values[-1][1] < first and min(learn.recorder.hps['mom']) == pytest.approx(0.8, abs=0.01)
    with pytest.raises(TypeError, match='every parameter alike'): make('lm', opt_func=partial(OptimWrapper, opt=torch.optim.SGD)).fit(1, cbs=SpareDecay())

# Blocks computed twice

@pytest.mark.parametrize('cls,args', [(TransformerLM,1), (TransformerClassifier,1), (Seq2SeqTransformer,2)])
def test_checkpoint(cls, args):
    "Outputs and gradients are those of the plain model, dropout included; in evaluation nothing differs"
    res,x = [],torch.randint(2, 30, (3,11))
    x[1,6:] = 1
    for checkpoint in (False,True):
        torch.manual_seed(0)
        model = cls(vocab_sz=30, d_model=16, n_heads=2, n_layers=3, p=0.3, attn_p=0.2, max_len=8, checkpoint=checkpoint)
        torch.manual_seed(1)
        y = model(*[x]*args)
        y.sin().sum().backward()
        res.append([y, model.eval()(*[x]*args), *(p.grad for p in model.parameters())])
    for once,twice in zip(*res): assert torch.allclose(once, twice, atol=1e-5)

def test_checkpoint_keeps_less(make):
    "In a learner, under bf16 too: the same training, and each block runs twice a step"
    res,runs = [],[]
    for checkpoint in (False,True):
        set_seed(0)
        learn = make('lm', checkpoint=checkpoint, n_layers=3)
        count = []
        learn.model.encoder.blocks[0].register_forward_pre_hook(lambda *args: count.append(learn.training))
        res.append(fitted(learn.to_bf16(), n=1)); runs.append((count.count(True), count.count(False)))
    for once,twice in zip(*res): assert torch.allclose(once, twice, atol=1e-4)
    (a,b),(c,d) = runs
    assert c == 2*a and b == d

class Batches(list):
    "Batches in place of a loader"
    n_inp = 1
    @property
    def dataset(self): return self

def test_batches_in_place_of_loaders():
    "A fit takes lists of batches, too: what a loader keeps of a fit is cleared where there is a place for it"
    x = torch.randint(2, 30, (4,9))
    dls = DataLoaders(Batches([(x[:,:-1], x[:,1:])]*3), [])
    learn = quiet(TransformerLMLearner(dls, TransformerLM(vocab_sz=30, **SMALL), CrossEntropyLossFlat()))
    learn._do_epoch_validate = lambda *args, **kw: None
    learn.fit(2, 1e-2)
    assert learn.recorder.losses[-1] < learn.recorder.losses[0]
