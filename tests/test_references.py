"Layers and models against torch's own and against formulas written out in loops: outputs and gradients, fp32, 1e-5"
import math
from copy import deepcopy
from functools import partial
from itertools import product
import pytest, torch, torch.nn as nn, torch.nn.functional as F
from torch.overrides import BaseTorchFunctionMode
from fastai_txf.base import products
from fastai_txf.model import attention
from fastai_txf.model.attention import (
    attend, causal_mask, combine_masks, MultiHeadAttention, SelfAttention)
from fastai_txf.generate.cache import KVCache
from fastai_txf.share.torch import from_former, from_torch
from fastai_txf.model.layers import FEED_FORWARDS, NORMS, PostNorm, PreNorm, TransformerBlock
from fastai_txf.train.losses import chunked_cross_entropy
from fastai_txf.model.models import Seq2SeqTransformer, TransformerClassifier, TransformerLM
from fastai_txf.model.positions import (
    alibi_slopes, ALiBiPositions, LearnedPositions, RotaryPositions, rotate_pairs,
    SinusoidalPositions, sinusoids)

close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)
def leaf(*shape): return torch.randn(*shape, requires_grad=True)

def run(f, leaves):
    "The output of `f()` and the gradients of a random combination of its entries at `leaves`"
    out = f()
    torch.manual_seed(0)
    return out.detach(), torch.autograd.grad((out*torch.randn(out.shape)).sum(), leaves)

def same(f, g, *leaves):
    "`f()` and `g()`, which use the same tensors, agree, and so do their gradients at `leaves`"
    (a,ga),(b,gb) = run(f, leaves), run(g, leaves)
    close(a, b)
    for x,y in zip(ga, gb): close(x, y)

def same_converted(theirs, convert, f, inputs):
    "`f(module, *inputs)` is the same for `theirs` and `convert(theirs)`; gradients of weights are compared after the same conversion"
    ours = convert(theirs)
    (a,ga),(b,gb) = [run(partial(f, m, *inputs), [*inputs, *m.parameters()]) for m in (ours,theirs)]
    close(a, b)
    n,as_weights = len(inputs),deepcopy(theirs)
    for p,g in zip(as_weights.parameters(), gb[n:]): p.data = g
    for x,y in zip(ga, [*gb[:n], *convert(as_weights).parameters()]): close(x, y)
    return ours

def randomize(m):
    "Biases and norms away from 0 and 1, so that a mixed-up pair shows"
    for p in m.parameters(): p.data += torch.randn_like(p)*0.1
    return m

# Attention

@pytest.mark.parametrize('n_kv_heads,masked,causal,biased,scale', [*product((4,2,1), *[(False,True)]*3, (None,0.3))])
def test_fused(n_kv_heads, masked, causal, biased, scale):
    "`attend` with and without weights"
    q,k,v = leaf(2,4,5,6), leaf(2,n_kv_heads,5,6), leaf(2,n_kv_heads,5,3)
    bias = leaf(4,5,5) if biased else None
    mask = torch.rand(2,1,5,5) > 0.3 if masked else None
    leaves = [q,k,v] + ([bias] if biased else [])
    kw = dict(mask=mask, causal=causal, bias=bias, scale=scale)
    same(lambda: attend(q, k, v, **kw), lambda: attend(q, k, v, **kw, need_weights=True)[0], *leaves)

@pytest.mark.parametrize('shape', [(5,),(1,),()], ids=str)
def test_fused_mask_of_few_dimensions(shape):
    "What broadcasts need not have a dimension for queries"
    q,k,v = torch.randn(2,4,3,6), torch.randn(2,2,5,6), torch.randn(2,2,5,3)
    for kw in (dict(mask=torch.ones(shape, dtype=torch.bool)), dict(mask=torch.zeros(shape, dtype=torch.bool)), dict(bias=torch.randn(shape))):
        close(attend(q, k, v, **kw), attend(q, k, v, **kw, need_weights=True)[0])

@pytest.mark.parametrize('q_len,k_len', [(3,5),(5,5),(1,4)])
def test_attend_loop(q_len, k_len):
    "`attend` against sums over single keys, the queries being the last ones"
    q,k,v = leaf(2,2,q_len,4), leaf(2,2,k_len,4), leaf(2,2,k_len,3)
    def loop(b, h, i):
        seen = range(k_len-q_len+i+1)
        e = [(q[b,h,i]*k[b,h,j]).sum().div(2).exp() for j in seen]
        return sum(w*v[b,h,j] for w,j in zip(e,seen)) / sum(e)
    loops = lambda: torch.stack([loop(b, h, i) for b,h,i in product((0,1), (0,1), range(q_len))]).view(2, 2, q_len, 3)
    same(lambda: attend(q, k, v, causal=True), loops, q, k, v)

def test_hard():
    "Hard attention picks the value of the best allowed key; with a fully masked row, nothing"
    q,k,v = torch.randn(1,1,4,3), torch.randn(1,1,6,3), torch.randn(1,1,6,2)
    mask = torch.rand(4,6) > 0.4; mask[0],mask[1,0] = False, True
    out = attend(q, k, v, mask, hard=True)[0,0]
    for i in range(1,4):
        best = max((j for j in range(6) if mask[i,j]), key=lambda j: (q[0,0,i]@k[0,0,j]).item())
        close(out[i], v[0,0,best])
    assert out[0].abs().max() == 0

masks = dict(none=(), attn=('attn',), padding=('padding',), causal=('causal',), all=('attn','padding','causal'))

def make_masks(kinds, bs, q_len, k_len):
    "Torch's arguments (True = may not) and our mask (True = may) for the same thing; every query keeps its first key"
    allowed = torch.ones(q_len, k_len, dtype=torch.bool)
    if 'attn' in kinds: allowed = torch.rand(q_len, k_len) > 0.4
    if 'causal' in kinds: allowed = allowed & causal_mask(q_len, k_len)
    allowed[:,0] = True
    real = torch.arange(k_len) < torch.tensor([k_len, k_len-2])[:bs,None]
    theirs = dict(attn_mask=None if set(kinds) <= {'padding'} else ~allowed, key_padding_mask=~real if 'padding' in kinds else None)
    return theirs, combine_masks(None if theirs['attn_mask'] is None else allowed, real[:,None,None] if 'padding' in kinds else None)

@pytest.mark.parametrize('kinds', masks.values(), ids=masks)
@pytest.mark.parametrize('kdim,vdim,bias', [(None,None,True), (None,None,False), (10,6,True), (10,None,False)])
def test_multi_head(kdim, vdim, bias, kinds):
    "`MultiHeadAttention` is `nn.MultiheadAttention`, weights included"
    theirs = randomize(nn.MultiheadAttention(16, 4, kdim=kdim, vdim=vdim, bias=bias, batch_first=True))
    theirs_kw,mask = make_masks(kinds, 2, 3, 5)
    inputs = leaf(2,3,16), leaf(2,5,kdim or 16), leaf(2,5,vdim or 16)
    def f(m, *xs): return m(*xs, mask=mask) if isinstance(m, MultiHeadAttention) else m(*xs, **theirs_kw)[0]
    ours = same_converted(theirs, from_torch, f, inputs)
    close(ours(*inputs, mask=mask, need_weights=True)[1], theirs(*inputs, **theirs_kw, average_attn_weights=False)[1])

@pytest.mark.parametrize('kinds', masks.values(), ids=masks)
@pytest.mark.parametrize('bias', [True,False])
def test_self_attention(bias, kinds):
    "`SelfAttention` is `nn.MultiheadAttention` with one input, masks given or `causal=True`"
    layer = randomize(nn.TransformerEncoderLayer(16, 4, 8, 0., batch_first=True, bias=bias))
    theirs,ours = layer.self_attn, from_torch(layer).attn.fn
    assert isinstance(ours, SelfAttention)
    kw,mask = make_masks(kinds, 2, 5, 5)
    x = leaf(2,5,16)
    (a,ga),(b,gb) = run(lambda: ours(x, mask), [x, *ours.parameters()]), run(lambda: theirs(x, x, x, **kw)[0], [x, *theirs.parameters()])
    close(a, b)
    for g,h in zip(ga, gb): close(g, h)
    if kinds==('causal',):
        ours.causal = True
        close(ours(x), a)

# Blocks and stacks

kinds_of_layers = [*product((False,True), ('relu','gelu'), (True,)), (True,F.gelu,False), (False,nn.ReLU(),False)]
each_layer = pytest.mark.parametrize('norm_first,activation,bias', kinds_of_layers)

def layer_kw(norm_first, activation, bias):
    "Arguments of a torch layer"
    return dict(d_model=16, nhead=4, dim_feedforward=24, dropout=0., layer_norm_eps=1e-4, batch_first=True, norm_first=norm_first, activation=activation, bias=bias)

def encode(m, x, theirs_kw, mask, keep):
    "The vectors at real tokens, by a torch encoder or by ours"
    if isinstance(m, (nn.TransformerEncoderLayer,nn.TransformerEncoder)):
        attn = 'src_mask' if isinstance(m, nn.TransformerEncoderLayer) else 'mask'
        return m(x, **{attn:theirs_kw['attn_mask']}, src_key_padding_mask=theirs_kw['key_padding_mask'])[keep]
    return m(x, mask=mask)[keep]

def check_encoder(theirs, kinds):
    theirs_kw,mask = make_masks(kinds, 2, 5, 5)
    real = theirs_kw['key_padding_mask']
    f = partial(encode, theirs_kw=theirs_kw, mask=mask, keep=torch.ones(2,5, dtype=torch.bool) if real is None else ~real)
    x = leaf(2,5,16)
    ours = same_converted(randomize(theirs), from_torch, f, [x])
    with torch.no_grad(): close(f(ours.eval(), x), f(theirs.eval(), x))      # torch has a path of its own without gradients

@each_layer
@pytest.mark.parametrize('kinds', masks.values(), ids=masks)
def test_encoder_layer(norm_first, activation, bias, kinds):
    "`TransformerBlock` is `nn.TransformerEncoderLayer`"
    check_encoder(nn.TransformerEncoderLayer(**layer_kw(norm_first, activation, bias)), kinds)

@each_layer
@pytest.mark.parametrize('last_norm', [False,True])
def test_encoder(norm_first, activation, bias, last_norm):
    "Blocks in a row are `nn.TransformerEncoder`"
    layer = nn.TransformerEncoderLayer(**layer_kw(norm_first, activation, bias))
    check_encoder(nn.TransformerEncoder(layer, 3, nn.LayerNorm(16) if last_norm else None, enable_nested_tensor=False), ('attn','padding'))

def masks_of(name, theirs):
    "Torch's two masks under the names of one of its three attentions"
    return {f'{name}_mask':theirs['attn_mask'], f'{name}_key_padding_mask':theirs['key_padding_mask']}

@each_layer
@pytest.mark.parametrize('kinds', masks.values(), ids=masks)
@pytest.mark.parametrize('n', [None,2])
def test_decoder(norm_first, activation, bias, kinds, n):
    "A block with `cross` is `nn.TransformerDecoderLayer`, and several are `nn.TransformerDecoder`, whatever is hidden of the text and of the context"
    theirs = nn.TransformerDecoderLayer(**layer_kw(norm_first, activation, bias))
    if n: theirs = nn.TransformerDecoder(theirs, n, nn.LayerNorm(16))
    (tgt,mask),(memory,context_mask) = make_masks(kinds, 2, 5, 5), make_masks([k for k in kinds if k != 'causal'], 2, 5, 7)
    def f(m, y, x):
        if isinstance(m, (nn.TransformerDecoderLayer,nn.TransformerDecoder)): return m(y, x, **masks_of('tgt', tgt), **masks_of('memory', memory))
        return m(y, mask=mask, context=x, context_mask=context_mask)
    same_converted(randomize(theirs), from_torch, f, [leaf(2,5,16), leaf(2,7,16)])

@pytest.mark.parametrize('norm_first', [False,True])
@pytest.mark.parametrize('src,tgt,memory', [*product(masks, repeat=3)][::4], ids=str)
def test_transformer(norm_first, src, tgt, memory):
    "Two stacks are `nn.Transformer`, with masks of every kind at each of its three attentions"
    theirs = randomize(nn.Transformer(16, 4, 2, 2, 24, 0., batch_first=True, norm_first=norm_first))
    made = dict(x=make_masks(masks[src], 2, 7, 7), y=make_masks(masks[tgt], 2, 5, 5), context=make_masks(masks[memory], 2, 5, 7))
    def f(m, x, y):
        if isinstance(m, nn.Transformer): return m(x, y, **masks_of('src', made['x'][0]), **masks_of('tgt', made['y'][0]), **masks_of('memory', made['context'][0]))
        return m(x, y, **{f'{k}_mask':v[1] for k,v in made.items()})
    same_converted(theirs, from_torch, f, [leaf(2,7,16), leaf(2,5,16)])

@pytest.mark.parametrize('norm,wiring,ff', [*product(('layer','rms'), (PreNorm,PostNorm), FEED_FORWARDS)])
def test_block_formula(norm, wiring, ff):
    "A block against its formulas, written from the weights"
    block = randomize(TransformerBlock(8, 2, 12, ff=FEED_FORWARDS[ff], norm=partial(NORMS[norm], eps=1e-4), wiring=wiring))
    x = leaf(2,3,8)
    def normed(n, x):
        if norm=='rms': return x / (x.pow(2).mean(-1, keepdim=True) + 1e-4).sqrt() * n.weight
        mu = x.mean(-1, keepdim=True)
        return (x-mu) / ((x-mu).pow(2).mean(-1, keepdim=True) + 1e-4).sqrt() * n.weight + n.bias
    def feed(f, x):
        if ff=='swiglu':
            w1,w3 = f.up.weight[:12], f.up.weight[12:]
            z = x@w1.T
            return (z/(1+(-z).exp()) * (x@w3.T)) @ f.out.weight.T
        z = x@f.up.weight.T + f.up.bias
        acts = dict(relu=lambda: z*(z>0), gelu=lambda: z * (1+torch.erf(z/math.sqrt(2)))/2, gelu_tanh=lambda: z * (1+torch.tanh(math.sqrt(2/math.pi)*(z + 0.044715*z**3)))/2)
        z = acts[ff]()
        return z@f.out.weight.T + f.out.bias
    def formula():
        h = x
        for part,f in ((block.attn,block.attn.fn), (block.ff,partial(feed, block.ff.fn))):
            h = h + f(normed(part.norm, h)) if wiring is PreNorm else normed(part.norm, h + f(h))
        return h
    same(lambda: block(x), formula, x, *block.parameters())

# Modes of self-attention

def head(q, k, v, causal=False, bias=0.):
    "One head of one text: `q`, `k` and `v` are `(sl, ·)`"
    scores = q@k.T / math.sqrt(q.shape[-1]) + bias
    if causal: scores = scores + torch.full_like(scores, -math.inf).triu(1)
    return scores.exp() / scores.exp().sum(-1, keepdim=True) @ v

def by_head(attn, x, weights, slices, causal=False, turn=lambda x: x, bias=lambda h: 0.):
    "Self-attention head by head: `weights(h)` are its three matrices (and biases), `slices(h)` the part of the vector that it sees"
    res = []
    for text in x:
        outs = []
        for h in range(attn.n_heads):
            q,k,v = [text[:,slices(h)]@w.T + b for w,b in weights(h)]
            outs.append(head(turn(q), turn(k), v, causal, bias(h)))
        res.append(torch.cat(outs, -1)@attn.out.weight.T + attn.out.bias)
    return torch.stack(res)

def fused_weights(attn, h, d_head):
    "Head `h`'s three matrices and biases in the fused map; with grouped queries heads share keys and values"
    shared = h*attn.n_kv_heads//attn.n_heads
    starts = [h*d_head, attn.widths[0]+shared*d_head, attn.widths[0]+attn.widths[1]+shared*d_head]
    b = attn.qkv.bias
    return [(attn.qkv.weight[s:s+d_head], 0. if b is None else b[s:s+d_head]) for s in starts]

@pytest.mark.parametrize('causal', [False,True])
@pytest.mark.parametrize('kw,d_head', [(dict(), 4), (dict(n_kv_heads=2), 4), (dict(n_kv_heads=1, d_head=3), 3),
                                       (dict(mode='wide'), 16), (dict(mode='wide', n_kv_heads=2, bias=True), 16), (dict(mode='wide', d_head=5), 5)])
def test_heads_loop(kw, d_head, causal):
    "Standard and wide heads, grouped or not, against a loop over heads"
    attn,x = randomize(SelfAttention(16, 4, causal=causal, **kw)), leaf(2,5,16)
    same(lambda: attn(x), lambda: by_head(attn, x, lambda h: fused_weights(attn, h, d_head), lambda h: slice(None), causal), x, *attn.parameters())

@pytest.mark.parametrize('causal', [False,True])
def test_narrow_loop(causal):
    "Narrow heads see only their slice"
    attn,x = randomize(SelfAttention(12, 3, mode='narrow', causal=causal)), leaf(2,5,12)
    weights = lambda h: [(attn.qkv.weight[m,h], 0.) for m in range(3)]
    same(lambda: attn(x), lambda: by_head(attn, x, weights, lambda h: slice(4*h,4*h+4), causal), x, *attn.parameters())

cross_modes = dict(standard=(dict(), 4, True), wide=(dict(mode='wide'), 16, False), wide_grouped=(dict(mode='wide', n_kv_heads=2), 16, False),
                   wide_narrower=(dict(mode='wide', d_head=5), 5, False), wide_biased=(dict(mode='wide', bias=True), 16, True), narrow=(dict(mode='narrow'), 4, True))

@pytest.mark.parametrize('kw,d_head,biased', cross_modes.values(), ids=cross_modes)
def test_cross_loop(kw, d_head, biased):
    "A block's cross-attention against a loop over heads: wide ones have the whole width there too, narrow ones read all of a text that is not theirs"
    cross,x,context = randomize(TransformerBlock(16, 4, cross=True, **kw)).cross.fn, leaf(2,5,16), leaf(2,7,16)
    assert (cross.q.bias is not None) == biased and cross.out.bias is not None
    def part(lin, h): return lin.weight[h*d_head:(h+1)*d_head], 0. if lin.bias is None else lin.bias[h*d_head:(h+1)*d_head]
    def loop(text, read):
        outs = []
        for h in range(4):
            shared = h*cross.n_kv_heads//4
            (q,k,v) = [t@w.T + b for t,(w,b) in ((text,part(cross.q, h)), (read,part(cross.k, shared)), (read,part(cross.v, shared)))]
            outs.append(head(q, k, v))
        return torch.cat(outs, -1)@cross.out.weight.T + cross.out.bias
    same(lambda: cross(x, context), lambda: torch.stack([loop(*o) for o in zip(x, context)]), x, context, *cross.parameters())

# Positions

@pytest.mark.parametrize('d,base', [(8,10_000), (7,10_000), (6,100)])
def test_sinusoidal(d, base):
    "Each entry by the paper's formula"
    x,pos = leaf(2,5,d), torch.tensor([0,1,2,50,511])
    table = [[(math.sin if j%2==0 else math.cos)(p/base**((j - j%2)/d)) for j in range(d)] for p in pos.tolist()]
    close(sinusoids(pos, d, base), torch.tensor(table))
    same(lambda: SinusoidalPositions(d, base).embed(x, pos), lambda: x + torch.tensor(table), x)

def test_learned():
    "The vector of each position is added, for positions of one text or of each its own"
    learned,x = LearnedPositions(4, 9), leaf(2,3,4)
    pos = torch.tensor([[0,1,2],[5,3,8]])
    loop = lambda: torch.stack([torch.stack([x[b,i] + learned.emb.weight[pos[b,i]] for i in range(3)]) for b in range(2)])
    same(lambda: learned.embed(x, pos), loop, x, learned.emb.weight)
    close(learned.embed(x, pos[0])[0], learned.embed(x, pos)[0])

@pytest.mark.parametrize('positions', ['rotary','sinusoidal'])
def test_base_of_the_configuration(positions):
    "`pos_base` is the base of every turn or wave of the model, and each is the default's at 10,000"
    kw = dict(vocab_sz=30, d_model=16, n_heads=4, n_layers=2, positions=positions)
    x,(a,b) = torch.randint(2, 30, (2,9)), [TransformerLM(**kw, **o).eval() for o in (dict(pos_base=50.), {})]
    b.load_state_dict(a.state_dict())
    places = [o.positions for m in (a,b) for o in (m.encoder, *(k.attn.fn for k in m.encoder.blocks)) if hasattr(o.positions, 'base')]
    assert {o.base for o in places} == {50.,10_000.} and (a(x)-b(x)).abs().max() > 1e-4
    for o in places: o.base = 50.
    close(a(x), b(x))

@pytest.mark.parametrize('q_len,k_len,max_len', [(7,7,3), (3,7,4), (1,5,2), (5,5,1), (4,4,9)])
def test_band(q_len, k_len, max_len):
    "Each query sees itself and the `max_len-1` keys before, the queries being the last of the keys"
    loop = [[0 <= k_len-q_len+i-j < max_len for j in range(k_len)] for i in range(q_len)]
    assert causal_mask(q_len, k_len, max_len=max_len).tolist() == loop

@pytest.mark.parametrize('positions', ['rotary','alibi','none','sinusoidal'])
@pytest.mark.parametrize('cls', [TransformerLM,Seq2SeqTransformer])
def test_batch_longer_than_max_len(cls, positions):
    "A text three times `max_len` long in one batch, in one call with a rolling cache, token by token with one, and block by block from weights under a band"
    model = randomize(cls(vocab_sz=30, d_model=16, n_heads=2, n_layers=3, max_len=7, positions=positions)).eval()
    x = torch.randint(2, 30, (2,21))
    context = (model.encode(x[:,:4]) if cls is Seq2SeqTransformer else None)
    cache = lambda: KVCache(7, context=context)
    with torch.no_grad():
        whole = model(x[:,:4], x) if context else model(x)
        at_once,c = model.head(model.decoder(x, cache=cache())), cache()
        one_by_one = torch.cat([model.head(model.decoder(x[:,i:i+1], cache=c)) for i in range(21)], 1)
        seen = causal_mask(21, max_len=7)
        more = dict(context=context[0], context_mask=context[1]) if context else {}
        stack = model.decoder
        h = stack.emb(x)*(4. if stack.config.scale_emb else 1.)
        h = stack.positions.embed(h, torch.arange(21))
        for b in stack.blocks: h = b(h, mask=seen, pos=torch.arange(21), **more)
        by_hand = model.head(stack.norm(h))
        everything = model.head(stack(x, mask=causal_mask(21))) if not context else None
    for o in (at_once, one_by_one, by_hand): close(whole, o)
    if everything is not None:
        close(everything[:,:7], whole[:,:7])
        assert (everything[:,7:]-whole[:,7:]).abs().amax(-1).min() > 1e-4

def turned(x, pos, base):
    "`x (sl, d)` with each pair multiplied by a 2×2 rotation matrix"
    rows = []
    for v,p in zip(x, pos.tolist()):
        pairs = []
        for i in range(0, len(v), 2):
            a = p/base**(i/len(v))
            pairs.append(torch.tensor([[math.cos(a),-math.sin(a)],[math.sin(a),math.cos(a)]]) @ v[i:i+2])
        rows.append(torch.cat(pairs))
    return torch.stack(rows)

@pytest.mark.parametrize('base', [10_000., 50.])
def test_rotary(base):
    "Turning pairs is multiplying by rotation matrices, on its own and inside attention"
    x,pos = leaf(2,3,5,6), torch.tensor([0,1,7,100,300])
    same(lambda: rotate_pairs(x, pos, base), lambda: torch.stack([torch.stack([turned(h, pos, base) for h in t]) for t in x]), x)
    attn,x,pos = randomize(SelfAttention(16, 4, positions=RotaryPositions(4, base))), leaf(2,5,16), torch.arange(5)
    loop = lambda: by_head(attn, x, lambda h: fused_weights(attn, h, 4), lambda h: slice(None), turn=lambda t: turned(t, pos, base))
    same(lambda: attn(x), loop, x, *attn.parameters())

def kept(f):
    "Bytes of all memory that the backward pass of `f()` holds"
    held = {}
    def note(t):
        held[t.untyped_storage().data_ptr()] = t.untyped_storage() # held, so that no address is used twice
        return t
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t): f()
    return sum(s.nbytes() for s in held.values())

def test_rotary_memory():
    "What was turned is not kept beside what it was turned to: training holds no more than without positions, but for a number per pair"
    x,attn = torch.randn(2, 64, 32), [SelfAttention(32, 4, causal=True, positions=o) for o in (None, RotaryPositions(8))]
    bare,rotary = [kept(lambda: a(x)) for a in attn]
    assert rotary == bare + 64*4*8

@pytest.mark.parametrize('view', [lambda q: q[...,1:7], lambda q: q[...,::2], lambda q: q.transpose(1, 3)[:,:,:,:6], lambda q: q.half()[...,1:7], lambda q: q.transpose(-1,-2).contiguous().transpose(-1,-2)[...,:6]], ids=['offset','steps','across','half','columns'])
def test_rotary_views(view):
    "Numbers that lie anyhow in memory"
    x = view(torch.randn(2, 12, 5, 13)[...,:12])
    pos = torch.arange(x.shape[2])
    close(rotate_pairs(x, pos), rotate_pairs(x.contiguous(), pos))
    q,k = RotaryPositions(6).rotate(x, x[:,:1], pos)
    close(q, rotate_pairs(x, pos))
    close(k, q[:,:1])

def paper_slopes(n):
    "A geometric sequence that starts at 2^(-8/n), also its ratio; if n is no power of two, the next lower power's and every second of the next higher's"
    if n & (n-1) == 0:
        res = [2**(-8/n)]
        while len(res) < n: res.append(res[-1]*2**(-8/n))
        return res
    low = 1
    while 2*low < n: low *= 2
    return paper_slopes(low) + paper_slopes(2*low)[0::2][:n-low]

@pytest.mark.parametrize('n_heads', [1,2,3,4,6,8,12,16,20])
def test_alibi_slopes(n_heads):
    "The slopes of the paper"
    close(alibi_slopes(n_heads), torch.tensor(paper_slopes(n_heads)))

@pytest.mark.parametrize('causal', [False,True])
def test_alibi(causal):
    "Inside attention: the distance times the head's slope, subtracted from each score"
    attn,x = randomize(SelfAttention(16, 4, causal=causal, positions=ALiBiPositions(4))), leaf(2,5,16)
    bias = lambda h: torch.tensor([[-paper_slopes(4)[h]*abs(i-j) for j in range(5)] for i in range(5)])
    loop = lambda: by_head(attn, x, lambda h: fused_weights(attn, h, 4), lambda h: slice(None), causal, bias=bias)
    same(lambda: attn(x), loop, x, *attn.parameters())

# The wide post-norm model

def classic_weights(n_heads=3, d=8, n_layers=2, vocab_sz=20, max_len=10, n_out=4, d_ff=12):
    "Random weights in the classic layout"
    shapes = {'token_emb.weight':(vocab_sz,d), 'pos_emb.weight':(max_len,d), 'toprobs.weight':(n_out,d), 'toprobs.bias':(n_out,)}
    for i in range(n_layers):
        b,a = f'tblocks.{i}.', f'tblocks.{i}.attention.'
        shapes.update({f'{a}{o}.weight':(n_heads*d,d) for o in ('tokeys','toqueries','tovalues')})
        shapes.update({f'{a}unifyheads.weight':(d,n_heads*d), f'{b}ff.0.weight':(d_ff,d), f'{b}ff.2.weight':(d,d_ff)})
        shapes.update({f'{a}unifyheads.bias':(d,), f'{b}ff.0.bias':(d_ff,), f'{b}ff.2.bias':(d,)})
        shapes.update({f'{b}{n}.{p}':(d,) for n in ('norm1','norm2') for p in ('weight','bias')})
    return {k:(torch.randn(s)*(0.3 if len(s)>1 else 1)).requires_grad_() for k,s in shapes.items()}

def classic_attention(w, x, n_heads, causal):
    "Wide heads of one text `x (sl, d)`, one after the other, query by query"
    sl,d = x.shape
    heads = []
    for h in range(n_heads):
        q,k,v = [x@w[f'attention.{o}.weight'][h*d:(h+1)*d].T for o in ('toqueries','tokeys','tovalues')]
        q,k = q/d**(1/4), k/d**(1/4)
        heads.append(torch.stack([torch.softmax(k[:i+1 if causal else sl]@q[i], 0) @ v[:i+1 if causal else sl] for i in range(sl)]))
    return torch.cat(heads, 1)@w['attention.unifyheads.weight'].T + w['attention.unifyheads.bias']

def classic_norm(w, name, x):
    mean = x.mean(1, keepdim=True)
    return (x-mean) / torch.sqrt(((x-mean)**2).mean(1, keepdim=True) + 1e-5) * w[f'{name}.weight'] + w[f'{name}.bias']

def classic(w, tokens, n_heads, n_layers, lm=False, pool='mean'):
    "Log-probabilities of the classic model, text by text"
    res = []
    for text in tokens:
        x = torch.stack([w['token_emb.weight'][t] + w['pos_emb.weight'][i] for i,t in enumerate(text.tolist())])
        for i in range(n_layers):
            b = {k[len(f'tblocks.{i}.'):]:v for k,v in w.items() if k.startswith(f'tblocks.{i}.')}
            x = classic_norm(b, 'norm1', classic_attention(b, x, n_heads, lm) + x)
            x = classic_norm(b, 'norm2', (x@b['ff.0.weight'].T + b['ff.0.bias']).clamp(min=0)@b['ff.2.weight'].T + b['ff.2.bias'] + x)
        if not lm: x = x.mean(0) if pool=='mean' else x.max(0).values
        logits = x@w['toprobs.weight'].T + w['toprobs.bias']
        res.append(logits - logits.exp().sum(-1, keepdim=True).log())
    return torch.stack(res)

@pytest.mark.parametrize('lm,pool', [(False,'mean'), (False,'max'), (True,'mean')])
def test_classic(lm, pool):
    "`from_former` and the preset `bloem` are the classic model, for every token id"
    w = classic_weights(n_out=20 if lm else 4)
    tokens = torch.randint(0, 20, (3,9)); tokens[0,:3] = torch.tensor([0,1,1])
    model = from_former(w, n_heads=3, pool=pool)
    assert type(model) is (TransformerLM if lm else TransformerClassifier)
    a,ga = run(lambda: model(tokens).log_softmax(-1), [*model.parameters()])
    b,gb = run(lambda: classic(w, tokens, 3, 2, lm, pool), [*w.values()])
    close(a, b)
    expected = from_former(dict(zip(w, gb)), n_heads=3, pool=pool)
    for x,y in zip(ga, expected.parameters()): close(x, y)
    sizes = dict(vocab_sz=20, d_model=8, n_heads=3, n_layers=2, d_ff=12, max_len=10, n_out=model.config.n_out)
    preset = type(model)('bloem', pad_idx=-1, pool=pool, **sizes)
    preset.load_state_dict(model.state_dict())
    close(preset(tokens).log_softmax(-1), b)

@pytest.mark.parametrize('positions', ['rotary','alibi','learned'])
@pytest.mark.parametrize('kind', ['lm','clf'])
def test_bf16_by_products(positions, kind, monkeypatch):
    "Training in bfloat16 on a CPU: attention by products is as near to fp32 as torch's fused attention is"
    torch.manual_seed(0)
    kw = dict(vocab_sz=50, d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, positions=positions, max_len=32, p=0., emb_p=0.)
    # by the maximum over tokens a gradient would go to another one where two are nearly equal
    model = TransformerLM(**kw) if kind == 'lm' else TransformerClassifier(**kw, n_out=3, head_p=0., pool='mean')
    x = torch.randint(2, 50, (3,20))
    x[1,12:] = 1
    def step(half=True):
        model.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=half): out = model(x)
        out.float().square().mean().backward()
        return out.detach().float(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    calls,real = [],attention.attend_in_half
    monkeypatch.setattr(attention, 'attend_in_half', lambda *args: calls.append(1) or real(*args))
    exact,ours = step(False),step()
    assert len(calls) == 2
    monkeypatch.setattr(attention, 'halves_attention', lambda q, k: False)
    theirs = step()
    assert len(calls) == 2
    for a,b,c in zip(ours, theirs, exact): assert (a-c).norm() < 1.5*(b-c).norm() + 0.01*c.norm()

@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason='a torch without oneDNN')
@pytest.mark.parametrize('half', [False,True], ids=['less','half'])
@pytest.mark.parametrize('kind', ['lm','clf'])
def test_products_by_onednn(kind, half, monkeypatch):
    "Products by oneDNN, wherever a model trains in fp32: the outputs and gradients of `nn.Linear`, up to rounding; it can be switched off, and what only reads takes it where MKL misses half, unless functions are watched"
    calls,real = [],products.onednn_linear
    monkeypatch.setattr(products, 'onednn_linear', lambda *args: calls.append(1) or real(*args))
    for limit in ('_least','_rows'): monkeypatch.setattr(products, limit, 1)
    torch.manual_seed(0)
    kw = dict(vocab_sz=50, d_model=32, n_heads=4, n_kv_heads=2, n_layers=2, p=0., emb_p=0.)
    model = TransformerLM(**kw) if kind == 'lm' else TransformerClassifier(**kw, n_out=3, head_p=0.)
    x = torch.randint(2, 50, (3,20))
    x[1,12:] = 1
    def step(faster):
        monkeypatch.setattr(products, 'mkl_misses_avx512', lambda: faster)
        monkeypatch.setattr(products, 'mkl_misses_half', lambda: faster and half)
        model.zero_grad()
        calls.clear()
        out = model(x)
        out.square().mean().backward()
        return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)], len(calls)
    (plain,no_calls),(ours,n_calls) = step(False), step(True)
    maps = 2*4 + (kind == 'lm')                                 # four in each of two blocks, and the head of tokens
    assert (no_calls,n_calls) == (0, maps*(3 if half else 2))   # there, back, and for the weights
    for a,b in zip(ours, plain): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    with torch.backends.mkldnn.flags(enabled=False): assert step(True)[1] == 0
    with torch.autocast('cpu', torch.bfloat16): assert step(True)[1] == 0
    step(True)
    calls.clear()
    with torch.no_grad(): read = model(x)
    assert len(calls) == maps*half
    torch.testing.assert_close(read, plain[0], rtol=1e-4, atol=1e-6)
    calls.clear()
    with torch.no_grad(), BaseTorchFunctionMode(): model(x)
    assert not calls

@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason='a torch without oneDNN')
@pytest.mark.parametrize('half', [False,True], ids=['less','half'])
def test_loss_by_onednn(half, monkeypatch):
    "The loss without logits takes two of its three products by oneDNN, all of them where MKL misses half, and they change nothing but the rounding"
    calls,real = [],products.onednn_linear
    monkeypatch.setattr(products, 'onednn_linear', lambda *args: calls.append(1) or real(*args))
    for limit in ('_least','_rows'): monkeypatch.setattr(products, limit, 1)
    torch.manual_seed(0)
    h,w,b,targ = leaf(50,16), leaf(300,16), leaf(300), torch.randint(300, (50,))
    def step(faster):
        monkeypatch.setattr(products, 'mkl_misses_avx512', lambda: faster)
        monkeypatch.setattr(products, 'mkl_misses_half', lambda: faster and half)
        return run(lambda: chunked_cross_entropy(h, w, targ, b, chunk=20), [h,w,b])
    (loss,grads),(theirs,expected) = step(True), step(False)
    assert len(calls) == (3 if half else 2)*3                   # 50 rows in chunks of 20
    close(loss, theirs)
    for x,y in zip(grads, expected): close(x, y)

def test_products_of_a_trace(monkeypatch):
    "`torch.jit.trace` sees torch's own product, which can be saved"
    for limit in ('_least','_rows'): monkeypatch.setattr(products, limit, 1)
    for name in ('mkl_misses_avx512','mkl_misses_half'): monkeypatch.setattr(products, name, lambda: True)
    f,x = products.Linear(8, 5), torch.randn(3, 8)
    traced = torch.jit.trace(f, x)
    assert 'aten::linear' in str(traced.graph)
    close(traced(x), F.linear(x, f.weight, f.bias))

@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason='a torch without oneDNN')
@pytest.mark.parametrize('shape', [(6,8), (2,3,8), (2,1,3,8)])
def test_products_of_any_strides(shape, monkeypatch):
    "Maps by oneDNN of transposed and repeated inputs and gradients, without a bias, and for `x` or the weights alone"
    for limit in ('_least','_rows'): monkeypatch.setattr(products, limit, 1)
    monkeypatch.setattr(products, 'mkl_misses_avx512', lambda: True)
    torch.manual_seed(0)
    turned = torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    factors = torch.randn(*shape[:-2], 5, shape[-2]).mT
    for bias,for_x,for_w in [(True,True,True), (False,True,True), (True,False,True), (True,True,False)]:
        ours,torchs = (f(8, 5, bias=bias).requires_grad_(for_w) for f in (products.Linear,nn.Linear))
        torchs.load_state_dict(ours.state_dict())
        for x,factor in product((turned, turned[:1].expand_as(turned)), (torch.ones(()), factors)):
            def step(f):
                t = x.detach().requires_grad_(for_x)
                f.zero_grad()
                out = f(t)
                (out*factor).sum().backward()
                return [out, *(p.grad for p in (t,*f.parameters()) if p.requires_grad)]
            for a,b in zip(step(ours), step(torchs)): close(a, b)
