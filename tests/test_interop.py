"Conversions: what carries over, what is refused and how (that the answers are equal is in `test_references.py`)"
import pickle, re
from functools import partial
from itertools import product
import pytest, torch, torch.nn as nn, torch.nn.functional as F
from fastai_txf.model.attention import MultiHeadAttention
from fastai_txf.share.torch import EncoderDecoder, from_former, from_torch, Stack
from fastai_txf.model.layers import PostNorm, PreNorm, TransformerBlock
from fastai_txf.model.models import classifier_splitter, TransformerClassifier, TransformerLM

close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)

def layer(cls=nn.TransformerEncoderLayer, **kwargs): return cls(16, 4, 24, **{**dict(batch_first=True), **kwargs})
def encoder(**kwargs): return nn.TransformerEncoder(layer(**kwargs), 2, enable_nested_tensor=False)
makers = dict(
    attention    =(MultiHeadAttention, lambda: nn.MultiheadAttention(16, 4, dropout=0.1)),
    encoder_layer=(TransformerBlock,   layer),
    decoder_layer=(TransformerBlock,   lambda: layer(nn.TransformerDecoderLayer)),
    encoder      =(Stack,              encoder),
    decoder      =(Stack,              lambda: nn.TransformerDecoder(layer(nn.TransformerDecoderLayer), 2)),
    transformer  =(EncoderDecoder,     lambda: nn.Transformer(16, 4, 2, 2, 24)))
each_maker = pytest.mark.parametrize('expected,make', makers.values(), ids=makers)

def n_params(m): return sum(p.numel() for p in m.parameters())

# from_torch

@each_maker
def test_types(expected, make):
    "Each of torch's has its own here, with as many parameters, all real and trainable"
    theirs = make()
    ours = from_torch(theirs)
    assert type(ours) is expected and n_params(ours)==n_params(theirs)
    assert all(p.requires_grad and not p.is_meta for p in ours.parameters())

@each_maker
def test_copies(expected, make):
    "Changing one changes not the other, and converting draws no random numbers"
    theirs = make()
    with torch.no_grad(): state,ours = torch.get_rng_state(), from_torch(theirs)
    assert torch.equal(state, torch.get_rng_state())
    before = [p.clone() for p in theirs.parameters()]
    for p in ours.parameters(): p.data.zero_()
    assert all(torch.equal(p, q) for p,q in zip(theirs.parameters(), before))

@each_maker
@pytest.mark.parametrize('training', [True,False])
def test_mode(expected, make, training):
    "`train` or `eval` carries over to every part"
    assert {m.training for m in from_torch(make().train(training)).modules()}=={training}

@each_maker
@pytest.mark.parametrize('dtype', [torch.float64,torch.bfloat16])
def test_dtype(expected, make, dtype):
    "So does the precision"
    assert {p.dtype for p in from_torch(make().to(dtype)).parameters()}=={dtype}

def test_double():
    "Nothing is rounded on the way"
    theirs,x = layer(nn.TransformerDecoderLayer).double().eval(), torch.randn(2,5,16, dtype=torch.double)
    torch.testing.assert_close(from_torch(theirs)(x, context=x[:,:3]), theirs(x, x[:,:3]), atol=1e-12, rtol=1e-12)

@each_maker
def test_pickle(expected, make):
    "The result can be pickled"
    ours = from_torch(make())
    assert all(torch.equal(p, q) for p,q in zip(ours.parameters(), pickle.loads(pickle.dumps(ours)).parameters()))

@pytest.mark.parametrize('norm_first', [True,False])
def test_options(norm_first):
    "Dropouts, even such as were changed one by one, `eps`, biases, width and wiring carry over"
    theirs = layer(nn.TransformerDecoderLayer, dropout=0.2, norm_first=norm_first, bias=False, layer_norm_eps=1e-3)
    theirs.dropout2.p, theirs.multihead_attn.dropout, theirs.norm3.eps = 0.3, 0.4, 1e-2
    ours = from_torch(theirs)
    parts = ours.attn,ours.cross,ours.ff
    assert all(type(o) is (PreNorm if norm_first else PostNorm) for o in parts)
    assert [o.drop.p for o in parts]==[0.2,0.3,0.2] and [o.norm.eps for o in parts]==[1e-3,1e-3,1e-2]
    assert (ours.attn.fn.attn_drop.p,ours.cross.fn.attn_drop.p,ours.ff.fn.drop.p)==(0.2,0.4,0.2) and ours.ff.fn.up.out_features==24
    assert not [n for n,_ in ours.named_parameters() if n.endswith('bias')]

activations = ['relu','gelu',F.relu,F.gelu,F.silu,torch.tanh,nn.GELU('tanh'),nn.PReLU(init=0.3),partial(F.leaky_relu, negative_slope=0.3)]

@pytest.mark.parametrize('activation', activations, ids=lambda o: getattr(o, '__name__', type(o).__name__))
def test_activations(activation):
    "A name, a function or a module, also with weights of its own"
    theirs,x = layer(activation=activation).eval(), torch.randn(2,5,16)
    close(from_torch(theirs)(x), theirs(x))

def test_sequence_first():
    "What torch reads as `(sl, bs, d)` is `(bs, sl, d)` here, whatever `batch_first` was"
    theirs,x,y = nn.Transformer(16, 4, 1, 1, 24).eval(), torch.randn(2,7,16), torch.randn(2,5,16)
    close(from_torch(theirs)(x, y), theirs(x.transpose(0,1), y.transpose(0,1)).transpose(0,1))

def test_nothing_to_attend():
    "Where torch's answer is NaN, a text of nothing but padding, ours is finite"
    theirs,x = nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2,5,16)
    is_pad = torch.tensor([[True]*5, [False]*5])
    out = theirs(x, x, x, key_padding_mask=is_pad)[0]
    ours = from_torch(theirs)(x, mask=~is_pad[:,None,None])
    assert out[0].isnan().all() and ours.isfinite().all()
    close(ours[1], out[1])

def test_heterogeneous():
    "The layers of a stack need not be alike"
    theirs,x = encoder(), torch.randn(2,5,16)
    theirs.layers[1] = layer(norm_first=True, activation='gelu')
    close(from_torch(theirs.eval())(x), theirs(x))

class Mine(nn.TransformerEncoderLayer): pass

unsupported = dict(
    Linear=lambda: nn.Linear(2, 3), LSTM=lambda: nn.LSTM(2, 3), str=lambda: 'gpt2', NoneType=lambda: None,
    Mine=lambda: nn.TransformerEncoder(Mine(16, 4), 2, enable_nested_tensor=False),
    GRU=lambda: nn.Transformer(16, 4, 1, 1, custom_encoder=nn.GRU(2, 3)))

@pytest.mark.parametrize('name', unsupported)
def test_unsupported(name):
    "Other types, and subclasses, which may compute something else, are named, also inside a stack"
    with pytest.raises(TypeError, match=rf'\b{name}\b.*MultiheadAttention.*TransformerEncoder'): from_torch(unsupported[name]())

class Cosine(nn.MultiheadAttention):
    def forward(self, q, k, v, **kw): return super().forward(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, **kw)

class Doubled(nn.Linear):
    def forward(self, x): return 2*super().forward(x)

def put(k, v): return lambda l: setattr(l, k, v)
own_parts = dict(
    attention=(put('self_attn', Cosine(16, 4)), 'Cosine'), linear=(put('linear2', Doubled(24, 16)), 'linear2 is a Doubled'), out=(lambda l: setattr(l.self_attn, 'out_proj', Doubled(16, 16)), 'out_proj is a Doubled'),
    hook=(lambda l: l.linear1.register_forward_hook(lambda m, i, o: 2*o), 'linear1 is hooked'), hooked_attention=(lambda l: l.self_attn.register_forward_pre_hook(lambda m, i: None), 'MultiheadAttention is hooked'),
    hooked_layer=(lambda l: l.register_forward_hook(lambda m, i, o: 2*o), 'TransformerEncoderLayer is hooked'), weight_norm=(lambda l: nn.utils.parametrizations.weight_norm(l.linear1), 'linear1 is a ParametrizedLinear'),
    attention_weight=(lambda l: nn.utils.parametrizations.orthogonal(l.self_attn, 'in_proj_weight'), 'ParametrizedMultiheadAttention'), forward=(lambda l: setattr(l.linear1, 'forward', lambda x: x), 'linear1 has a forward of its own'),
    dropout=(put('dropout1', nn.AlphaDropout(0.1)), 'dropout1 is a AlphaDropout'))

@pytest.mark.parametrize('change,match', own_parts.values(), ids=own_parts)
def test_own_parts(change, match):
    "A part of a layer that may compute something else is named, in a stack, too"
    theirs = layer()
    change(theirs)
    with pytest.raises(TypeError, match=match): from_torch(theirs)
    stack = nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False)
    stack.layers[1] = theirs
    with pytest.raises(TypeError, match=match): from_torch(stack)

def test_no_dropout():
    "Where a dropout was taken out, ours drops nothing"
    theirs,x = layer(dropout=0.2), torch.randn(2,5,16)
    theirs.dropout1 = theirs.dropout = nn.Identity()
    ours = from_torch(theirs)
    assert (ours.attn.drop.p, ours.ff.fn.drop.p, ours.ff.drop.p)==(0.,0.,0.2)
    close(ours.eval()(x), theirs.eval()(x))

@pytest.mark.parametrize('frozen', ['','self_attn','linear1.weight','norm1','layers.0','none'])
def test_frozen(frozen):
    "What does not learn there does not learn here, and the rest does"
    theirs = nn.Transformer(16, 4, 1, 1, 24)
    for k,p in theirs.named_parameters(): p.requires_grad_(frozen not in k)
    before = {k:p.clone() for k,p in theirs.named_parameters()}
    ours = from_torch(theirs)
    counts = [[sum(p.numel() for p in m.parameters() if p.requires_grad is flag) for flag in (True,False)] for m in (ours, theirs)]
    assert counts[0]==counts[1] and all(torch.equal(p, before[k]) for k,p in theirs.named_parameters())
    if frozen=='self_attn': assert not any(p.requires_grad for p in ours.decoder.blocks[0].attn.fn.parameters()) and all(p.requires_grad for p in ours.decoder.blocks[0].cross.fn.parameters())

@pytest.mark.parametrize('option', ['add_bias_kv','add_zero_attn'])
def test_extra_keys(option):
    "Options without an equivalent are named, inside a layer too"
    attn,theirs = nn.MultiheadAttention(16, 4, **{option:True}), layer()
    theirs.self_attn = attn
    for o in (attn,theirs):
        with pytest.raises(ValueError, match=f'{option}=True'): from_torch(o)

# from_former

qkv = 'tokeys','toqueries','tovalues'

def classic(n_heads=3, d=8, n_layers=2, vocab_sz=20, max_len=10, n_out=4):
    "Random weights in the classic layout, taken from modules"
    def block():
        maps = {o:nn.Linear(d, n_heads*d, bias=False) for o in qkv}
        ff = nn.Sequential(nn.Linear(d, 4*d), nn.ReLU(), nn.Linear(4*d, d))
        return nn.ModuleDict(dict(attention=nn.ModuleDict(dict(**maps, unifyheads=nn.Linear(n_heads*d, d))), norm1=nn.LayerNorm(d), norm2=nn.LayerNorm(d), ff=ff))
    blocks = nn.Sequential(*[block() for _ in range(n_layers)])
    return nn.ModuleDict(dict(token_emb=nn.Embedding(vocab_sz, d), pos_emb=nn.Embedding(max_len, d), tblocks=blocks, toprobs=nn.Linear(d, n_out))).state_dict()

x = torch.randint(0, 20, (3,9), generator=torch.Generator().manual_seed(0))

aliases = [dict(token_emb='token_embedding', pos_emb='pos_embedding'), dict(tblocks='t_blocks', toprobs='to_probs'), dict(toqueries='Wq', tokeys='Wk', tovalues='Wv')]

@pytest.mark.parametrize('i', range(4))
def test_names(i):
    "The other names that are in use, some or all of them"
    state,names = classic(), {k:v for d in (aliases[i:i+1] or aliases) for k,v in d.items()}
    renamed = {re.sub('|'.join(names), lambda m: names[m[0]], k):v for k,v in state.items()}
    assert renamed.keys() != state.keys()
    assert torch.equal(from_former(renamed, 3)(x), from_former(state, 3)(x))

def test_sizes():
    "The configuration is read from the weights' shapes, and is that of the preset otherwise; the weights are copies"
    state = classic(n_layers=11)
    keys,first = list(state), state['token_emb.weight'].clone()
    model = from_former(state, 3)
    c = model.config
    assert (c.vocab_sz,c.d_model,c.n_heads,c.n_layers,c.d_ff,c.max_len,c.n_out)==(20,8,3,11,32,10,4)
    assert (c.mode,c.wiring,c.ff,c.positions,c.pool,c.causal)==('wide','post','relu','learned','mean',None)
    for i,b in enumerate(model.encoder.blocks): assert torch.equal(b.ff.norm.weight, state[f'tblocks.{i}.norm2.weight'])
    for p in model.parameters(): p.data.zero_()
    assert list(state)==keys and torch.equal(state['token_emb.weight'], first)

@pytest.mark.parametrize('n_out,lm,is_lm', [(20,None,True), (20,False,False), (20,True,True), (4,None,False), (4,False,False)])
def test_kind(n_out, lm, is_lm):
    "A language model has as many outputs as tokens; where a classifier has too, `lm` tells"
    assert type(from_former(classic(n_out=n_out), 3, lm=lm)) is (TransformerLM if is_lm else TransformerClassifier)

def test_padding():
    "By default no token is padding, as in the classic model; a padding token that is named is left out"
    state = classic()
    clf,padded = from_former(state, 3), from_former(state, 3, pad_idx=1)
    t,with_1 = torch.tensor([[5,6,7]]), torch.tensor([[5,6,7,1,1]])
    assert clf.config.pad_idx==-1 and (clf(t)-clf(with_1)).abs().max() > 1e-3
    close(padded(with_1), clf(t))
    close(padded(t), clf(t))

def test_long():
    "Beyond its positions the classifier reads the beginning"
    clf,t = from_former(classic(), 3), torch.randint(0, 20, (2,25))
    close(clf(t), clf(t[:,:10]))

def test_trains():
    "The result trains, its parameter groups cover it, and it can be saved and pickled"
    clf,y = from_former(classic(), 3, pad_idx=1), torch.tensor([0,1,2])
    assert len(classifier_splitter(clf))==4
    F.cross_entropy(clf(x), y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in clf.parameters())
    other = TransformerClassifier(clf.config)
    other.load_state_dict(clf.state_dict())
    for o in (other, pickle.loads(pickle.dumps(clf))): assert torch.equal(o(x), clf(x))

def without(state, *keys): return {k:v for k,v in state.items() if k not in keys}

@pytest.mark.parametrize('keys', [('token_emb.weight',), ('tblocks.0.attention.tokeys.weight','toprobs.bias'), ('tblocks.1.ff.2.bias',), ('pos_emb.weight',)], ids=str)
def test_missing(keys):
    "Missing weights are named"
    with pytest.raises(ValueError) as e: from_former(without(classic(), *keys), 3)
    assert all(repr(k) in str(e.value) for k in keys) and 'unexpected=[]' in str(e.value)

@pytest.mark.parametrize('key', ['rel_pos.weight','tblocks.1.attention.tokeys.bias','tblocks.1.ff.3.weight','tblocks.x.norm1.weight'])
def test_unexpected(key):
    "So are weights that do not belong to it"
    with pytest.raises(ValueError) as e: from_former({**classic(), key:torch.zeros(2)}, 3)
    assert repr(key) in str(e.value) and 'missing=[]' in str(e.value)

@pytest.mark.parametrize('state', [dict(), nn.Linear(2,3).state_dict(), nn.TransformerEncoderLayer(8, 2).state_dict()], ids=['empty','linear','torch'])
def test_something_else(state):
    "Weights of another kind of model"
    with pytest.raises(ValueError, match='classic from-scratch transformer.*token_emb'): from_former(state, 3)

@pytest.mark.parametrize('n_heads', [1,2,8])
def test_heads(n_heads):
    "A wrong number of heads is refused, with the right one"
    with pytest.raises(ValueError, match=f'n_heads={n_heads}.*give n_heads=3'): from_former(classic(), n_heads)

def test_narrow():
    "Heads that are not wide are refused"
    state = classic()
    for i,o in product((0,1), qkv): state[f'tblocks.{i}.attention.{o}.weight'] = torch.randn(8,8)
    with pytest.raises(ValueError, match='need 16 rows in toqueries, which has 8'): from_former(state, 2)
