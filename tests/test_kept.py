"What a training step keeps for its gradients: less than torch's layers do, and nobody can tell"
from functools import partial
import copy, pickle, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from fastai_txf.base import kept
from fastai_txf.base.kept import RMSNorm
from fastai_txf.model.attention import SelfAttention
from fastai_txf.model.config import PRESETS, TransformerConfig
from fastai_txf.model.layers import FEED_FORWARDS, FeedForward, TransformerBlock
from fastai_txf.model.models import TransformerLM
from fastai_txf.model.positions import RotaryPositions

D = 64
def text(n=1024, **kw): return torch.randn(4, n//4, D, **kw) # 1,024 tokens: a GELU of 2**18 numbers

class Plain(FeedForward):
    "The layers one by one."
    def forward(self, x): return self.out(self.drop(self.act(self.up(x))))

def pair(act=nn.GELU, bias=True, p=0.):
    torch.manual_seed(0)
    ours,theirs = FeedForward(D, act=act, bias=bias, p=p), Plain(D, act=act, bias=bias, p=p)
    theirs.load_state_dict(ours.state_dict())
    return ours,theirs

def both(m, x):
    "Output, and gradients of the input and the weights."
    x = x.detach().requires_grad_()
    out = m(x)
    g = torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [x, *m.parameters()], g)]

def n_kept(f):
    "Bytes that `f()` keeps for its gradients, views once."
    blocks = {}
    def note(t):
        blocks[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t
    with pytest.MonkeyPatch.context() as m, saved_tensors_hooks(note, lambda t: t):
        m.setattr(kept, 'is_followed', lambda: False)                # who counts does not count
        f()
    return sum(blocks.values())

@pytest.fixture(autouse=True)
def small_norms(monkeypatch): monkeypatch.setattr(kept, '_fewest', 1)

def counted(monkeypatch, cls):
    "How often `cls.apply` runs."
    calls,run = [], cls.apply
    monkeypatch.setattr(cls, 'apply', lambda *args: calls.append(1) or run(*args))
    return calls

# The feed-forward

@pytest.mark.parametrize('how', ['none','tanh'])
@pytest.mark.parametrize('bias', [True,False])
def test_feed_forward(how, bias, monkeypatch):
    "Outputs and gradients of the layers one by one"
    calls = counted(monkeypatch, kept._LinearOfGELU)
    ours,theirs = pair(partial(nn.GELU, approximate=how), bias)
    x = text()
    for a,b in zip(both(ours, x), both(theirs, x)): torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert len(calls) == 1
    assert n_kept(lambda: theirs(x)) - n_kept(lambda: ours(x)) == 4*1024*4*D

@pytest.mark.parametrize('device', ['cpu', pytest.param('cuda', marks=pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU'))])
@pytest.mark.parametrize('dtype', [torch.bfloat16,torch.float16])
def test_autocast(device, dtype, monkeypatch):
    "In 16 bits the gradients have the precision of the weights, and are as near to fp32 as those of the layers one by one"
    calls = counted(monkeypatch, kept._LinearOfGELU)
    ours,theirs = (m.to(device) for m in pair())
    x = text(device=device)
    exact = both(theirs, x)
    with torch.autocast(device, dtype): near,half = both(ours, x), both(theirs, x)
    assert len(calls) == 1
    for e,a,b in zip(exact[1:], near[1:], half[1:]):
        assert a.dtype == torch.float32
        assert (a-e).norm() < 1.2*(b-e).norm() + 1e-4*e.norm()

def test_hooks(monkeypatch):
    "Whoever listens to a layer is called, and a `forward` put in its place runs"
    calls,seen = counted(monkeypatch, kept._LinearOfGELU), []
    ours,_ = pair()
    handles = [m.register_forward_hook(lambda *args: seen.append(1)) for m in (ours.act,ours.out)]
    ours(text())
    assert (len(calls),len(seen)) == (0,2)
    for h in handles: h.remove()
    ours(text())
    assert (len(calls),len(seen)) == (1,2)
    handle = nn.modules.module.register_module_forward_hook(lambda m, *args: seen.append(m))
    try: ours(text())
    finally: handle.remove()
    assert len(calls) == 1 and {ours.act,ours.out} <= {*seen[2:]}
    ours.act.forward = lambda x: x*0
    assert ours(text()).sub(ours.out.bias).abs().max() < 1e-6 and len(calls) == 1

class Twice(nn.Linear):
    def forward(self, x): return 2*super().forward(x)

class Nothing(nn.Dropout):
    def forward(self, x): return x*0

@pytest.mark.parametrize('change', [
    lambda m: setattr(m, 'act', nn.SiLU()), lambda m: setattr(m, 'drop', nn.Identity()), lambda m: setattr(m, 'drop', Nothing(0.)), lambda m: setattr(m, 'drop', nn.Dropout(0.5)), lambda m: setattr(m, 'out', Twice(4*D, D)),
    lambda m: nn.utils.parametrizations.weight_norm(m.out), lambda m: nn.utils.parametrizations.spectral_norm(m.out)])
def test_other_parts(change, monkeypatch):
    "Other activations, dropout, other maps and parametrized weights: one by one, as ever"
    calls = counted(monkeypatch, kept._LinearOfGELU)
    ours,theirs = pair()
    for m in (ours,theirs):
        torch.manual_seed(1)
        change(m)
    for m in (ours,theirs): m.load_state_dict(ours.state_dict())
    outs = []
    for m in (ours,theirs):
        torch.manual_seed(2)
        outs.append(m(text()))
    torch.testing.assert_close(*outs)
    assert not calls

def test_where_not(monkeypatch):
    "Small tensors, no gradients, traces and exports"
    calls = counted(monkeypatch, kept._LinearOfGELU)
    ours,theirs = pair()
    ours(text(512))
    with torch.no_grad(): ours(text())
    x = text()
    traced = torch.jit.trace(ours, x, check_trace=False)
    assert not calls and 'gelu' in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), theirs(x))
    exported = torch.export.export(ours, (x,))
    assert not calls and any('gelu' in str(n.target) for n in exported.graph.nodes)

def test_changed_weights():
    "Weights that change between the passes are an error, as they always were"
    for m in pair():
        out = m(text(requires_grad=True)).sum()
        with torch.no_grad(): m.out.weight.mul_(2)
        with pytest.raises(RuntimeError, match='modified by an inplace operation'): out.backward()

def test_twice():
    "The gradient of a gradient, and gradients of many outputs at once"
    xs = [text().requires_grad_() for _ in range(2)]
    with torch.no_grad(): xs[1].copy_(xs[0])
    seconds = []
    for m,x in zip(pair(), xs):
        g, = torch.autograd.grad(m(x).square().sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(g.square().sum(), [x, m.up.weight, m.out.weight]))
        many, = torch.autograd.grad(m(x), x, torch.stack([torch.ones(4, 256, D), torch.zeros(4, 256, D)]), is_grads_batched=True)
        assert many[0].any() and not many[1].any()
    for a,b in zip(*seconds): torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)

def test_frozen():
    "Only what learns gets a gradient, and the same one"
    for frozen in ('out.weight','out.bias','up.weight','input'):
        got = []
        for m in pair():
            torch.manual_seed(3)
            x = text(requires_grad=frozen != 'input')
            for k,p in m.named_parameters(): p.requires_grad_(k != frozen)
            m(x).square().sum().backward()
            got.append([x.grad, *(p.grad for p in m.parameters())])
        assert [g is None for g in got[0]] == [g is None for g in got[1]]
        for a,b in zip(*got):
            if a is not None: torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)

def test_functional():
    "`torch.func`: another model's weights, gradients of each text, an ensemble"
    m,theirs = pair()
    x,params = text(), dict(m.named_parameters())
    def loss(m, params, x): return torch.func.functional_call(m, params, (x,)).square().mean()
    for a,b in zip(torch.func.grad(partial(loss, m))(params, x).values(), torch.func.grad(partial(loss, theirs))(params, x).values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    each = [torch.func.vmap(torch.func.grad(partial(loss, o)), (None,0))(params, x[:,None].repeat(1, 4, 1, 1)) for o in (m,theirs)]
    for a,b in zip(*(o.values() for o in each)): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    stacked = {k:torch.stack([p,2*p]).detach() for k,p in params.items()}
    outs = [torch.func.vmap(lambda ps: torch.func.functional_call(o, ps, (x,)))(stacked) for o in (m,theirs)]
    torch.testing.assert_close(*outs)

# The norm

NORM = dict(rtol=1e-5, atol=1e-5)

@pytest.mark.parametrize('dtype', [torch.float32,torch.float64])
@pytest.mark.parametrize('shape', [(3,8), (2,3,8), (2,3,4,8)])
def test_norm(shape, dtype, monkeypatch):
    "torch's output to the last bit, its gradients up to rounding"
    calls = counted(monkeypatch, kept._RMSNorm)
    ours,theirs = (cls(8, eps=1e-5).to(dtype) for cls in (RMSNorm,nn.RMSNorm))
    for m in (ours,theirs): nn.init.uniform_(m.weight, -1, 2, torch.Generator().manual_seed(0))
    x = 5*torch.randn(*shape).to(dtype)
    a,b = both(ours, x), both(theirs, x)
    assert a[0].equal(b[0]) and len(calls) == 1
    monkeypatch.undo()
    calls = counted(monkeypatch, kept._RMSNorm)
    assert ours(x.requires_grad_()).equal(a[0]) and not calls              # too few to be worth it
    for o,t in zip(a[1:], b[1:]): torch.testing.assert_close(o, t, **NORM)

@pytest.mark.parametrize('x', [torch.zeros(3, 8), torch.full((3,8), 1e-30), torch.full((3,8), 1e15), torch.tensor([[float('inf')]*8, [float('nan')]*8]), torch.randn(0, 8), torch.randn(6, 24)[:,8:16], torch.randn(8, 6).T])
def test_odd_numbers(x):
    "Zeros, very small and very large numbers, none at all, and views"
    ours,theirs = (cls(x.shape[-1], eps=1e-5) for cls in (RMSNorm,nn.RMSNorm))
    for a,b in zip(both(ours, x), both(theirs, x)): torch.testing.assert_close(a, b, equal_nan=True, **NORM)

@pytest.mark.parametrize('norm', [dict(normalized_shape=8), dict(normalized_shape=8, eps=1e-5, elementwise_affine=False), dict(normalized_shape=(4,8), eps=1e-5), dict(normalized_shape=8, eps=1e-5, dtype=torch.bfloat16)])
def test_other_norms(norm, monkeypatch):
    "Norms of other kinds are torch's own"
    calls = counted(monkeypatch, kept._RMSNorm)
    x = torch.randn(2, 4, 8).to(norm.get('dtype', torch.float32)).requires_grad_()
    out = RMSNorm(**norm)(x)
    assert out.equal(nn.RMSNorm(**norm)(x)) and not calls

def test_wrong_width():
    "A width that the norm does not have is refused as torch refuses it"
    said = []
    for cls in (RMSNorm,nn.RMSNorm):
        with pytest.raises(RuntimeError) as e: cls(8, eps=1e-5)(torch.randn(2, 4, requires_grad=True))
        said.append(str(e.value))
    assert said[0] == said[1]

def test_norm_travels():
    "Copies, pickles and torch's weights"
    norm = RMSNorm(8, eps=1e-5)
    nn.init.normal_(norm.weight)
    x = torch.randn(3, 8)
    for m in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))): assert m(x).equal(norm(x))
    theirs = nn.RMSNorm(8, eps=1e-5)
    theirs.load_state_dict(norm.state_dict())
    assert theirs(x).equal(norm(x)) and isinstance(norm, nn.RMSNorm)

# Attention and models

def test_heads_lie_together():
    "With norms of queries and keys, too, the answers of the heads are joined without a copy"
    for norm in (None, partial(RMSNorm, eps=1e-5)):
        attn = SelfAttention(D, 4, causal=True, positions=RotaryPositions(D//4), qk_norm=norm)
        x = text(requires_grad=True)
        assert n_kept(lambda: attn(x))//x.untyped_storage().nbytes() <= (6 if norm is None else 8)

def kept_by(config, **kw):
    fields = dict(vocab_sz=100, d_model=D, n_heads=4, n_layers=2, max_len=1024, p=0., emb_p=0.)
    torch.manual_seed(0)
    m = TransformerLM(TransformerConfig(**(PRESETS[config] | fields | kw)))
    x = torch.randint(2, 100, (1,1024))
    return n_kept(lambda: m.hidden(x))/(2*4*1024*D) # in vectors of a token and layer

def test_models():
    "How many vectors a layer keeps for each token: the GELU's input is four of them"
    assert kept_by('default') < 14 and kept_by('modern') < 16.5

@pytest.mark.parametrize('ff', FEED_FORWARDS)
def test_block(ff):
    "A block with large and with small tensors is the same function: texts together and one by one"
    torch.manual_seed(0)
    block = TransformerBlock(D, 4, ff=FEED_FORWARDS[ff], norm=partial(RMSNorm, eps=1e-5))
    x = text()
    together = both(block, x)
    alone = [both(block, x[i:i+1]) for i in range(4)]
    torch.testing.assert_close(together[0], torch.cat([a[0] for a in alone]), rtol=1e-5, atol=1e-5)

# Whoever follows what is computed or kept sees torch's layers

def lm(**kw):
    torch.manual_seed(0)
    return TransformerLM(TransformerConfig(**(PRESETS['modern'] | dict(vocab_sz=100, d_model=D, n_heads=4, n_layers=2, max_len=256, p=0., emb_p=0.) | kw)))

def test_checkpoint():
    "What is computed twice keeps the same both times, though hooks come and go between"
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode
    x,grads = torch.randint(2, 100, (4,256)), []
    for again in (False,True):
        m = lm(checkpoint=again)
        with FlopCounterMode(display=False): loss = m(x).float().square().mean()
        loss.backward()
        grads.append([p.grad for p in m.parameters()])
    for a,b in zip(*grads): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    ours,_ = pair()
    handle = ours.act.register_forward_hook(lambda *args: handle.remove())
    out = checkpoint(ours, text(requires_grad=True), use_reentrant=False)
    out.sum().backward()
    assert ours.up.weight.grad.any()

@pytest.mark.parametrize('again', [False,True])
@pytest.mark.parametrize('kind', ['norm','ff'])
def test_forwards_twice(kind, again, monkeypatch):
    "Derivatives forwards, twice, are those backwards"
    monkeypatch.setattr(kept, '_least', 1)
    torch.manual_seed(0)
    m = (RMSNorm(4, eps=1e-5) if kind == 'norm' else FeedForward(4)).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    f = lambda x: m(x).pow(3).sum()
    way = torch.func.jacfwd if again else torch.func.jacrev
    torch.testing.assert_close(torch.func.jacfwd(way(f))(x), torch.func.jacrev(torch.func.jacrev(f))(x))

def test_forwards_in_half():
    "A derivative forwards under autocast has the precision of the output"
    ours,theirs = pair()
    x = text()
    def f(m, x):
        with torch.autocast('cpu', torch.bfloat16): return m(m(x))
    for a,b in zip(*(torch.func.jvp(partial(f, m), (x,), (x,)) for m in (ours,theirs))):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)
    with torch.autograd.forward_ad.dual_level(), torch.autocast('cpu', torch.bfloat16):
        dual = [torch.autograd.forward_ad.unpack_dual(m(m(torch.autograd.forward_ad.make_dual(x, x)))) for m in (ours,theirs)]
    torch.testing.assert_close(dual[0].tangent, dual[1].tangent)

def test_graphs():
    "Graphs of a gradient, and symbolic ones"
    from torch.fx.experimental.proxy_tensor import make_fx
    ours,theirs = pair()
    x = text(requires_grad=True)
    graph = make_fx(lambda x: torch.autograd.grad(ours(x).square().sum(), x)[0])(x)
    torch.testing.assert_close(graph(x), torch.autograd.grad(theirs(x).square().sum(), x)[0], rtol=1e-4, atol=1e-3)
    for m in (ours,theirs): m.up,m.out = (nn.Linear(o.in_features, o.out_features) for o in (m.up,m.out))
    assert len(torch.fx.symbolic_trace(ours).graph.nodes) == 6

def test_inference_tensors():
    "A norm takes what was made in inference mode"
    with torch.inference_mode(): x = torch.randn(3, 8)
    norm = RMSNorm(8, eps=1e-5)
    norm(x).sum().backward()
    assert norm.weight.grad.any()

class HeadNorm(nn.Module):
    "A norm with a factor for each head."
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(1., 5).view(4, 1, 1))
    def forward(self, q): return F.rms_norm(q, q.shape[-1:])*self.scale

@pytest.mark.parametrize('sl', [4,6])
def test_norms_of_heads(sl):
    "A norm of one's own gets heads before tokens, and so do hooks of any"
    shapes = []
    attn = SelfAttention(D, 4, qk_norm=HeadNorm)
    for norm in (attn.q_norm,attn.k_norm): norm.register_forward_pre_hook(lambda m, args: shapes.append(args[0].shape))
    attn(torch.randn(2, sl, D))
    hooked = SelfAttention(D, 4, qk_norm=nn.RMSNorm)
    x = torch.randn(2, sl, D)
    out = hooked(x)
    hooked.q_norm.register_forward_pre_hook(lambda m, args: shapes.append(args[0].shape))
    torch.testing.assert_close(hooked(x), out)
    assert shapes == 3*[(2,4,sl,D//4)]

def test_by_the_faster_library(monkeypatch):
    "The product of a GELU is made by oneDNN where the others are"
    from fastai_txf.base import products
    calls,run = [], products.onednn_linear
    monkeypatch.setattr(products, 'mkl_misses_avx512', lambda: True)
    monkeypatch.setattr(products, 'mkl_misses_half', lambda: False)
    monkeypatch.setattr(products, 'onednn_linear', lambda x, w, b=None: calls.append(tuple(w.shape)) or run(x, w, b))
    FeedForward(D)(torch.randn(4, 512, D, requires_grad=True))
    assert calls == [(4*D,D),(D,4*D)]
