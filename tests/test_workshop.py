"The workshop: checks know the mistakes, exercises come from the solutions, steps build on each other"
import ast, copy, json, re, shutil, pytest, torch, torch.nn as nn, torch.nn.functional as F
from collections import OrderedDict
from functools import partial, reduce
from pathlib import Path
from fastai.torch_core import Module
from fastai_txf import workshop
from fastai_txf.model.attention import concat_heads, split_heads
from fastai_txf.model.windows import compact
from fastai_txf.workshop import WrongAnswer, earlier, exercise_notebook, exercise_source, main, write_exercises

root = Path(__file__).parents[1]
solutions = root/'nbs/workshop'
exercises = solutions/'_exercises'
steps = sorted(o.stem for o in solutions.glob('[0-9]*.ipynb'))
each_step = pytest.mark.parametrize('step', steps)

solved = partial(earlier, folder=solutions)
weights,scaled,Projections,SelfAttention = solved('04_heads', 'weights', 'scaled_dots', 'Projections', 'SelfAttention')
BlockParts,Block = solved('05_block', 'BlockParts', 'TransformerBlock')
Embeddings,Stack,Classifier = solved('07_classifier', 'Embeddings', 'Stack', 'Classifier')
hide_future,StackLM,LanguageModel = solved('08_language_model', 'mask_future', 'Stack', 'LanguageModel')
solved_generate = solved('08_language_model', 'generate')
Cross,DecoderBlock = solved('09_encoder_decoder', 'CrossAttention', 'DecoderBlock')

# Wrong answers: for each check, what its message says and the code that earns it

wrong = {}

wrong['check_dot_products'] = [
    ('not transposed', lambda x: torch.bmm(x, x)),
    ('which compares features', lambda x: torch.bmm(x.transpose(1, 2), x)),
    ('which two dimensions', lambda x: torch.bmm(x, x.transpose(0, 1))),
    ('place by place', lambda x: x * x),
    ('comes in step 3', lambda x: torch.bmm(x, x.transpose(1, 2)) / x.shape[-1]**0.5),
    ('None: is the `return` missing', lambda x: None),
    ('a list: it should be a tensor', lambda x: [o @ o.T for o in x]),
    (r'the shape \(2, 4\), but should have \(2, 4, 4\)', lambda x: (x*x).sum(-1)),
    ('these are distances', lambda x: torch.cdist(x, x)),
    ('cosines', lambda x: F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).mT),
    ('not their mean', lambda x: x @ x.mT / x.shape[-1]),
    ('softmax is taken already', lambda x: weights(x @ x.mT)),
    ('wrong sign', lambda x: -(x @ x.mT)),
    ('3 times what it should be', lambda x: 3*(x @ x.mT)),
    ('larger by 1: what is added', lambda x: x @ x.mT + 1),
    ('below the diagonal are missing', lambda x: (x @ x.mT).triu()),
    ('right numbers, but of the type torch.float64', lambda x: (x @ x.mT).double())]

wrong['check_softmax'] = [
    ('columns sum to 1', lambda d: F.softmax(d, dim=1)),
    ('over the batch', lambda d: F.softmax(d, dim=0)),
    ('each whole matrix sums to 1', lambda d: F.softmax(d.flatten(1), dim=1).view_as(d)),
    ('all texts together', lambda d: d.exp()/d.exp().sum()),
    ('not divided by their sum', lambda d: d.exp()),
    ('without an exponential', lambda d: d/d.sum(2, keepdim=True)),
    ('logarithm', lambda d: F.log_softmax(d, dim=2)),
    ('NaN in 27 of 27', lambda d: d*float('nan')),
    ('this is a sigmoid', lambda d: d.sigmoid()),
    ('sign is turned round', lambda d: F.softmin(d, dim=2)),
    ('softmax, not argmax', lambda d: F.one_hot(d.argmax(2), d.shape[-1])),
    ('what is negative gets no weight', lambda d: F.relu(d)/F.relu(d).sum(2, keepdim=True)),
    ('weights are transposed', lambda d: F.softmax(d, dim=2).mT),
    ('a softmax too many', lambda d: F.softmax(F.softmax(d, dim=2), dim=2)),
    ('powers of 2', lambda d: 2**d/(2**d).sum(2, keepdim=True)),
    ('keepdim=True', lambda d: d.exp()/d.exp().sum(2)),
    (r'shape \(2, 2, 5\), but', lambda d: torch.stack([F.softmax(d[:,i], dim=-1) for i in range(len(d))], 1))]

wrong['check_self_attention'] = [
    ('still to be multiplied', lambda x: weights(x @ x.mT)),
    ('no softmax', lambda x: x @ x.mT @ x),
    ('or the weights are transposed', lambda x: weights(x @ x.mT).mT @ x),
    ('the weights come first', lambda x: x @ weights(x @ x.mT)),
    ('two softmaxes', lambda x: weights(weights(x @ x.mT)) @ x),
    ('x is added to the result', lambda x: weights(x @ x.mT) @ x + x),
    ('those of x itself', lambda x: weights(x) @ x if x.shape[1] == x.shape[2] else x),
    ('scaled too early', lambda x: weights(x @ x.mT / x.shape[-1]**0.5) @ x),
    ('mean is taken twice', lambda x: weights(x @ x.mT) @ weights(x @ x.mT) @ x),
    ('transposed in the second product', lambda x: weights(x @ x.mT) @ x.mT),
    ('a plain mean', lambda x: x.mean(1, keepdim=True).expand_as(x)),
    ('4 times what it should be', lambda x: weights(x @ x.mT) @ x * x.shape[1]),
    ('only the vector with the largest weight', lambda x: torch.stack([o[(o @ o.T).argmax(1)] for o in x]))]

def projections(k_out=lambda k, h: h*k, bias=False, make=lambda self: None):
    "A class of three maps."
    class Maps(Module):
        def __init__(self, k, heads=1):
            self.heads = heads
            for name in ('toqueries','tokeys','tovalues'): setattr(self, name, nn.Linear(k, k_out(k, heads), bias=bias))
            make(self)
    return Maps

class NoSuper(nn.Module):
    def __init__(self, k, heads): self.toqueries = nn.Linear(k, heads*k, bias=False)
class NoModule:
    def __init__(self, k, heads): self.toqueries = nn.Linear(k, heads*k, bias=False)

wrong['check_projections'] = [
    ('`toqueries` has a bias', projections(bias=True)),
    ('6 to 6: it should map 6 to 18, for every head has its own', projections(lambda k, h: k)),
    ('6 to 2: it should map 6 to 18, for a wide head keeps', projections(lambda k, h: k//h)),
    ('one and the same', projections(make=lambda m: setattr(m, 'tokeys', m.toqueries))),
    ('`self.tovalues` is missing', projections(make=lambda m: delattr(m, 'tovalues'))),
    ('`self.tokeys` is a Identity', projections(make=lambda m: setattr(m, 'tokeys', nn.Identity()))),
    ('the class a Module', NoSuper), ('it should be a Module', NoModule)]

wrong['check_attention'] = [
    ('queries and keys are swapped', lambda q, k, v: weights(k @ q.mT) @ v),
    ('fetch the keys', lambda q, k, v: weights(q @ k.mT) @ k),
    ('fetch the queries', lambda q, k, v: weights(q @ k.mT) @ q),
    ('queries meet values', lambda q, k, v: weights(q @ v.mT) @ v),
    ('over the queries', lambda q, k, v: F.softmax(q @ k.mT, dim=1) @ v),
    ('no softmax', lambda q, k, v: q @ k.mT @ v),
    ('keys are not transposed', lambda q, k, v: weights(q @ k) @ v),
    ('keys and values are swapped', lambda q, k, v: weights(q @ v.mT) @ k),
    ('queries and values are swapped', lambda q, k, v: weights(v @ k.mT) @ q),
    ('queries meet queries, and the weights fetch values', lambda q, k, v: weights(q @ q.mT) @ v),
    ('keys meet values, and the weights fetch queries', lambda q, k, v: weights(k @ v.mT) @ q),
    ('scaled too early', lambda q, k, v: weights(q @ k.mT / k.shape[-1]**0.5) @ v),
    ('weights are transposed', lambda q, k, v: weights(q @ k.mT).mT @ v),
    ('values stand before', lambda q, k, v: v @ weights(q @ k.mT)),
    ('two softmaxes', lambda q, k, v: weights(weights(q @ k.mT)) @ v),
    ('still to be multiplied', lambda q, k, v: weights(q @ k.mT)),
    ('queries are added', lambda q, k, v: weights(q @ k.mT) @ v + q),
    ('that comes in step 8', lambda q, k, v: weights(hide_future(q @ k.mT)) @ v)]

wrong['check_dot_std'] = [
    ('this is the variance', lambda k: k),
    ('fourth root', lambda k: k**(1/4)),
    ('the inverse', lambda k: 1/k**0.5),
    ('does not stay 1', lambda k: 1.),
    (r'`k\*\*1/2` is', lambda k: k**1/2),
    (r'`k\*\*1/4` is', lambda k: k**1/4),
    ('not 2k', lambda k: (2*k)**0.5),
    ('logarithm', lambda k: torch.tensor(float(k)).log()),
    (r'(?s)TypeError: pow.*take tensors: of a number, write k\*\*0.5.$', lambda k: torch.pow(k, 0.5)),
    ('2 times what it should be', lambda k: 2*k**0.5),
    ('None: is the `return` missing', lambda k: None)]

def scaled_by(f, g=None):
    "Dot products of queries divided by `f` and keys divided by `g`."
    return lambda q, k: (q/f(q)) @ (k/(g or f)(k)).mT

wrong['check_scaled_dots'] = [
    ('are not scaled', scaled_by(lambda x: 1)),
    ('each divided by √k', scaled_by(lambda x: x.shape[-1]**0.5)),
    ('only one of the two', scaled_by(lambda x: x.shape[-1]**0.25, lambda x: 1)),
    ('multiplied by the fourth root', scaled_by(lambda x: x.shape[-1]**-0.25)),
    (r'powers come first: write k\*\*\(1/4\)', scaled_by(lambda x: x.shape[-1]**1/4)),
    ('the number of tokens', scaled_by(lambda x: x.shape[1]**0.25)),
    (r'`k\*\*1/2` is', scaled_by(lambda x: x.shape[-1]**1/2)),
    (r'`q/k\*\*1/4` is \(q/k\)/4', lambda q, k: (q/q.shape[-1]**1/4) @ (k/k.shape[-1]**1/4).mT),
    (r'`q/k\*\*1/2` is \(q/k\)/2', lambda q, k: (q/q.shape[-1]**1/2) @ (k/k.shape[-1]**1/2).mT),
    ('softmax is taken already', lambda q, k: weights(scaled(q, k))),
    ('∞ before it is divided', lambda q, k: q @ k.mT / k.shape[-1]**0.5),
    ('queries and keys are swapped', lambda q, k: scaled(k, q)),
    ('whatever the width', scaled_by(lambda x: 3**0.5)),
    ('cosines', lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT)]

def cut(x, h): return x.view(*x.shape[:2], h, -1)                             # (b, t, h, k)

wrong['check_split_heads'] = [
    ('a view alone', lambda x, h: x.view(len(x)*h, x.shape[1], -1)),
    ('heads are not slices', lambda x, h: x.view(*x.shape[:2], -1, h).permute(0, 3, 1, 2).reshape(len(x)*h, x.shape[1], -1)),
    ('come before the texts', lambda x, h: cut(x, h).permute(2, 0, 1, 3).reshape(len(x)*h, x.shape[1], -1)),
    ('not folded', lambda x, h: cut(x, h).transpose(1, 2)),
    ('use `reshape`', lambda x, h: cut(x, h).transpose(1, 2).view(len(x)*h, x.shape[1], -1)),
    ('`hk/heads` is a float: write `hk//heads`', lambda x, h: x.view(*x.shape[:2], h, x.shape[2]/h)),
    ('not swapped with the tokens', cut),
    ('each gets the whole vector', lambda x, h: x.repeat_interleave(h, 0)),
    ('averaged', lambda x, h: cut(x, h).mean(2)),
    ('so one is k = hk//heads wide', lambda x, h: x.view(*x.shape[:2], h, x.shape[2]).transpose(1, 2)),
    (r'shape \(6, 4, 5\), but should', lambda x, h: cut(x, 3).transpose(1, 2).flatten(0, 1)),
    ('swapped before the vector is cut', lambda x, h: x.mT.reshape(len(x)*h, x.shape[1], -1))]

def apart(x, h): return x.view(len(x)//h, h, *x.shape[1:])                    # (b, h, t, k)

wrong['check_merge_heads'] = [
    ('a reshape alone', lambda x, h: x.reshape(len(x)//h, x.shape[1], -1)),
    ('interleaved', lambda x, h: apart(x, h).permute(0, 2, 3, 1).flatten(2)),
    (r'unfolded as \(heads, b\)', lambda x, h: x.view(h, len(x)//h, *x.shape[1:]).permute(1, 2, 0, 3).flatten(2)),
    ('averaged', lambda x, h: apart(x, h).mean(1)),
    ('added up', lambda x, h: apart(x, h).sum(1)),
    ('not joined', lambda x, h: apart(x, h).transpose(1, 2)),
    ('use `reshape`', lambda x, h: apart(x, h).transpose(1, 2).view(len(x)//h, x.shape[1], -1)),
    ('so b = bh//heads', lambda x, h: x.view(len(x), h, *x.shape[1:])),
    ('invalid combination.*`hk//heads`', lambda x, h: x.view(len(x)/h, h, *x.shape[1:])),
    (r'reshape\(\) takes.*`hk//heads`', lambda x, h: x.reshape(len(x)/h, h, *x.shape[1:]))]

class Bypassed(SelfAttention):
    "Self-attention that asks torch for the weights."
    def forward(self, x):
        q,k,v = [split_heads(f(x), self.heads) for f in (self.toqueries, self.tokeys, self.tovalues)]
        return self.unifyheads(concat_heads(F.scaled_dot_product_attention(q, k, v)))

class Softened(SelfAttention):
    "Self-attention with another softmax and values of its own."
    def __init__(self, k, heads, soften, change=lambda v: v):
        super().__init__(k, heads)
        self.soften,self.change = soften, change
    def forward(self, x):
        q,k,v = [split_heads(f(x), self.heads).flatten(0, 1) for f in (self.toqueries, self.tokeys, self.tovalues)]
        return self.unifyheads(concat_heads(apart(self.soften(q, k) @ self.change(v), self.heads)))
def softened(*fs): return type('Wrong', (Softened,), dict(__init__=lambda self, k, heads: Softened.__init__(self, k, heads, *fs)))

def attention(scale=lambda k, h: k**0.5, dim=-1, split=lambda x, h: split_heads(x, h).flatten(0, 1), merge=lambda x, h: concat_heads(apart(x, h)),
              unite=True, swap=False, out=lambda k, h: nn.Linear(h*k, k)):
    "A class of self-attention."
    class Attention(Projections):
        def __init__(self, k, heads):
            super().__init__(k, heads)
            self.unifyheads = out(k, heads)
        def forward(self, x):
            q,k,v = [split(f(x), self.heads) for f in (self.toqueries, self.tokeys, self.tovalues)]
            if swap: q,k = k,q
            y = merge((q @ k.mT / scale(x.shape[-1], self.heads)).softmax(dim) @ v, self.heads)
            return self.unifyheads(y) if unite else y
    return Attention

wrong['check_multi_head'] = [
    ('are not scaled', attention(scale=lambda k, h: 1)),
    ('divided by k: by √k in all', attention(scale=lambda k, h: k)),
    ('width of all heads', attention(scale=lambda k, h: (h*k)**0.5)),
    ('over the queries', attention(dim=1)),
    ('cut with a view alone', attention(split=lambda x, h: x.view(len(x)*h, x.shape[1], -1))),
    ('joined with a reshape alone', attention(merge=lambda x, h: x.reshape(len(x)//h, x.shape[1], -1))),
    ('queries and keys are swapped', attention(swap=True)),
    ('all of them together make one', attention(split=lambda x, h: x, merge=lambda x, h: x)),
    ('scale uses their width together', attention(split=lambda x, h: x, merge=lambda x, h: x, scale=lambda k, h: (k*h)**0.5)),
    (r'`k\*\*1/4` is', attention(scale=lambda k, h: (k**1/4)**2)),
    ('number of heads', attention(scale=lambda k, h: h**0.5)),
    ('scale is used twice', attention(scale=lambda k, h: k*k**0.5)),
    ('values are divided too', softened(lambda q, k: weights(scaled(q, k)), lambda v: v/v.shape[-1]**0.25)),
    ('divide before the softmax', softened(lambda q, k: weights(q @ k.mT)/k.shape[-1]**0.5)),
    ('no softmax', softened(scaled)),
    ('two softmaxes', softened(lambda q, k: weights(weights(scaled(q, k))))),
    ('x is added', type('Wrong', (SelfAttention,), dict(forward=lambda self, x: SelfAttention.forward(self, x) + x))),
    ('not united', attention(unite=False)),
    ('another one each time.*training=self.training', softened(lambda q, k: F.dropout(weights(scaled(q, k)), 0.1))),
    ('`unifyheads` has no bias', attention(out=lambda k, h: nn.Linear(h*k, k, bias=False))),
    ('6 to 6: it should map 18 to 6', attention(out=lambda k, h: nn.Linear(k, k))),
    ('`self.unifyheads` is missing', Projections),
    ('does not use `self.attention_weights`: step 8 replaces it', Bypassed)]

wrong['check_narrow'] = [
    ('first matrix', lambda x, w: split_heads(x, len(w)) @ w[0].T),
    ('not transposed', lambda x, w: split_heads(x, len(w)) @ w),
    ('interleaved', lambda x, w: x.view(*x.shape[:2], -1, len(w)).permute(0, 3, 1, 2) @ w.mT),
    ('tokens come before heads', lambda x, w: torch.einsum('bthi,hoi->btho', cut(x, len(w)), w)),
    ('matrices and tokens', lambda x, w: cut(x, len(w)) @ w.mT),
    ('these are the slices', lambda x, w: split_heads(x, len(w))),
    ('matrices are averaged', lambda x, w: split_heads(x, len(w)) @ w.mean(0).T),
    ('joined again', lambda x, w: concat_heads(split_heads(x, len(w)) @ w.mT))]

def parts(change):
    "The parts of a block, one of them changed."
    class Parts(BlockParts):
        def __init__(self, k, heads):
            super().__init__(k, heads)
            change(self, k)
    return Parts

def named(seq, prefix='b'):
    "The same parts with names in place of numbers."
    return nn.Sequential(OrderedDict((f'{prefix}{i}', o) for i,o in enumerate(seq)))
def linears(*widths, act=nn.ReLU): return nn.Sequential(nn.Linear(*widths[:2]), *([act()] if act else []), nn.Linear(*widths[2:]))

wrong['check_block_parts'] = [
    ('one norm is used in several', parts(lambda m, k: setattr(m, 'norm2', m.norm1))),
    ('nothing between its two maps', parts(lambda m, k: setattr(m, 'ff', linears(k, 4*k, 4*k, k, act=None)))),
    (r"\['Linear', 'GELU', 'Linear'\]", parts(lambda m, k: setattr(m, 'ff', linears(k, 4*k, 4*k, k, act=nn.GELU)))),
    (r'`ff\[0\]` maps width 6 to 6', parts(lambda m, k: setattr(m, 'ff', linears(k, k, k, k)))),
    (r'`norm1` normalises the shape \(24,\)', parts(lambda m, k: setattr(m, 'norm1', nn.LayerNorm(4*k)))),
    ('`self.norm2` is missing', parts(lambda m, k: delattr(m, 'norm2'))),
    (r'`norm1` is LayerNorm\(\(6,\), eps=0.001.*: take nn.LayerNorm\(6\) without', parts(lambda m, k: setattr(m, 'norm1', nn.LayerNorm(k, eps=1e-3)))),
    ('`norm1` is .*elementwise_affine=False', parts(lambda m, k: setattr(m, 'norm1', nn.LayerNorm(k, elementwise_affine=False)))),
    ('`norm2` is .*: take nn.LayerNorm', parts(lambda m, k: setattr(m, 'norm2', nn.LayerNorm(k, bias=False)))),
    (r"`ff` calls its parts \['b0', 'b1', 'b2'\]: nn.Sequential\(…\) numbers them", parts(lambda m, k: setattr(m, 'ff', named(m.ff)))),
    ('has 1 heads, but', parts(lambda m, k: setattr(m, 'attention', SelfAttention(k, 1)))),
    ('it should keep it', parts(lambda m, k: setattr(m, 'attention', nn.Linear(k, 2*k))))]

def block(forward): return type('Wrong', (BlockParts,), dict(forward=forward))

def second(self, z): return self.norm2(self.ff(z) + z)
def first(self, x): return self.norm1(self.attention(x) + x)

class Scaled(Block):
    def __init__(self, k, heads):
        super().__init__(k, heads)
        self.scale = nn.Linear(1, 1)

wrong['check_block'] = [
    ('first residual sum is missing', block(lambda self, x: second(self, self.norm1(self.attention(x))))),
    ('second residual sum is missing', block(lambda self, x: self.norm2(self.ff(first(self, x))))),
    ('both residual sums', block(lambda self, x: self.norm2(self.ff(self.norm1(self.attention(x)))))),
    ('adds the input of the block', block(lambda self, x: self.norm2(self.ff(first(self, x)) + x))),
    ('norm1 is used twice', block(lambda self, x: self.norm1(self.ff(z := first(self, x)) + z))),
    ('pre-norm', block(lambda self, x: (z := x + self.attention(self.norm1(x))) + self.ff(self.norm2(z)))),
    ('inside the sums', block(lambda self, x: (z := x + self.norm1(self.attention(x))) + self.norm2(self.ff(z)))),
    ('two norms are swapped', block(lambda self, x: self.norm1(self.ff(z := self.norm2(self.attention(x) + x)) + z))),
    ('norm1 is missing', block(lambda self, x: second(self, self.attention(x) + x))),
    ('norm2 is missing', block(lambda self, x: self.ff(z := first(self, x)) + z)),
    ('attention is missing', block(second)),
    ('feed-forward is missing', block(first)),
    ('reads the input of the block: it', block(lambda self, x: self.norm2(self.ff(x) + first(self, x)))),
    ('comes before attention', block(lambda self, x: self.norm2(self.attention(z := self.norm1(self.ff(x) + x)) + z))),
    ('norm1 is applied inside its sum', block(lambda self, x: second(self, self.norm1(self.attention(x)) + x))),
    ('norm2 is applied inside its sum', block(lambda self, x: self.norm2(self.ff(z := first(self, x))) + z)),
    ('three parts', block(lambda self, x: self.norm2(self.ff(z := first(self, x)) + z + x))),
    ('in place of the feed-forward', block(lambda self, x: self.norm2(self.attention(z := first(self, x)) + z))),
    ('both parts read', block(lambda self, x: self.norm2(self.attention(x) + self.ff(x) + x))),
    ('norms are not used', block(lambda self, x: (z := x + self.attention(x)) + self.ff(z))),
    ('nothing between its two maps', parts(lambda m, k: setattr(m, 'ff', linears(k, 4*k, 4*k, k, act=None)))),
    (r"do not have the names or sizes of this step: .*'tblocks.0.scale.weight'", Scaled)]

def embeddings(forward, sizes=lambda n, t: (n, t)):
    "A class of embeddings."
    class Wrong(Embeddings):
        def __init__(self, k, num_tokens, seq_length): super().__init__(k, *sizes(num_tokens, seq_length))
    Wrong.forward = forward
    return Wrong

def pos(self, x, *args): return self.pos_emb(torch.arange(*args))

wrong['check_embeddings'] = [
    ('the text in the batch', embeddings(lambda self, x: self.token_emb(x) + pos(self, x, len(x))[:,None])),
    (r'not the texts of the batch', embeddings(lambda self, x: self.token_emb(x) + pos(self, x, len(x)))),
    (r'(?s)tensor a \(5\).*not all positions that there are', embeddings(lambda self, x: self.token_emb(x) + self.pos_emb.weight)),
    ('looked up by token', embeddings(lambda self, x: self.token_emb(x) + self.pos_emb(x))),
    ('positions are missing', embeddings(lambda self, x: self.token_emb(x))),
    ('tokens are missing', embeddings(lambda self, x: pos(self, x, x.shape[1]).expand(*x.shape, -1))),
    ('count from 1', embeddings(lambda self, x: self.token_emb(x) + pos(self, x, 1, x.shape[1]+1))),
    ('the last position', embeddings(lambda self, x: self.token_emb(x) + pos(self, x, x.shape[1])[-1])),
    ('side by side', embeddings(lambda self, x: torch.cat([self.token_emb(x), pos(self, x, x.shape[1]).expand(*x.shape, -1)], -1))),
    ('first position', embeddings(lambda self, x: self.token_emb(x) + pos(self, x, x.shape[1])[0])),
    ('count backwards', embeddings(lambda self, x: self.token_emb(x) + pos(self, x, x.shape[1]).flip(0))),
    ('are multiplied: add', embeddings(lambda self, x: self.token_emb(x) * pos(self, x, x.shape[1]))),
    ('mean of the two', embeddings(lambda self, x: (self.token_emb(x) + pos(self, x, x.shape[1]))/2)),
    ('multiplied by √k', embeddings(lambda self, x: self.token_emb(x)*6**0.5 + pos(self, x, x.shape[1]))),
    ('`token_emb` holds 7 vectors of width 6: it should hold 11', embeddings(Embeddings.forward, lambda n, t: (t, n)))]

def waves(t, k, i=lambda k: torch.arange(0, k, 2)/k, times=False, by=lambda t, powers: t/powers):
    powers = 10_000**i(k)
    a = torch.arange(t)[:,None]*powers if times else by(torch.arange(t)[:,None], powers)
    return a.sin(), a.cos()
def weave(a, b): return torch.stack([a, b], -1).flatten(1)

wrong['check_sinusoids'] = [
    ('all sines come first', lambda t, k: torch.cat(waves(t, k), 1)),
    ('changed places', lambda t, k: weave(*waves(t, k)[::-1])),
    ('exponent is i/k', lambda t, k: weave(*waves(t, k, lambda k: torch.arange(k//2)/k))),
    ('multiplied by the power', lambda t, k: weave(*waves(t, k, times=True))),
    ('width are swapped', lambda t, k: weave(*waves(t, k)).T),
    ('all cosines come first', lambda t, k: torch.cat(waves(t, k)[::-1], 1)),
    ('only sines', lambda t, k: weave(waves(t, k)[0], waves(t, k)[0])),
    ('exponent is 4i/k', lambda t, k: weave(*waves(t, k, lambda k: 2*torch.arange(0, k, 2)/k))),
    ('not divided by k', lambda t, k: weave(*waves(t, k, lambda k: torch.arange(0., k, 2)))),
    ('count from 1', lambda t, k: weave(*[w[1:] for w in waves(t+1, k)])),
    ('divided by the number of positions', lambda t, k: weave(*waves(t, k, lambda k: torch.arange(0, k, 2)/t))),
    (r'`10_000\*\*a/k` is', lambda t, k: weave(*waves(t, k, lambda k: torch.arange(0, k, 2), by=lambda t, powers: t/(powers/k)))),
    (r'`t / 10_000\*\*a/k` is', lambda t, k: weave(*waves(t, k, lambda k: torch.arange(0, k, 2), by=lambda t, powers: t/powers/k))),
    ('different wavelengths', lambda t, k: torch.stack([w[:,j] for j in range(k) for w in [waves(t, k, lambda k: torch.arange(k)/k)[j%2]]], 1))]

def stack(blocks=lambda make, depth: nn.Sequential(*[make() for _ in range(depth)]), forward=Stack.forward,
          sizes=lambda k, heads, depth: (k, heads, depth)):
    "A class of stacks."
    class Wrong(Stack):
        def __init__(self, k, heads, depth, seq_length, num_tokens, block=Block):
            Embeddings.__init__(self, k, num_tokens, seq_length)
            k,heads,depth = sizes(k, heads, depth)
            self.tblocks = blocks(lambda: Block(k, heads), depth)
    Wrong.forward = forward
    return Wrong

def emb(self, x): return Embeddings.forward(self, x)
def runs(self, y, order):
    for i in order: y = self.tblocks[i](y)
    return y

wrong['check_stack'] = [
    ('repeats one object', stack(lambda make, depth: nn.Sequential(*[make()]*depth))),
    ('plain list', stack(lambda make, depth: [make() for _ in range(depth)])),
    ('holds 1 blocks, but `depth` is 4', stack(lambda make, depth: nn.Sequential(make()))),
    ('holds 3 blocks, but `depth` is 4', stack(sizes=lambda k, heads, depth: (k, heads, heads))),
    ('`toqueries` maps width 6 to 24: it should map 6 to 18', stack(sizes=lambda k, heads, depth: (k, depth, depth))),
    ('`toqueries` maps width 3 to 18: it should map 6 to 18', stack(sizes=lambda k, heads, depth: (heads, k, depth))),
    (r"`tblocks` calls its parts \['b0', 'b1', 'b2', 'b3'\]", stack(lambda make, depth: named(make() for _ in range(depth)))),
    ('`self.tblocks` is a ModuleList', stack(lambda make, depth: nn.ModuleList([make() for _ in range(depth)]))),
    ('these are the embeddings', stack(forward=emb)),
    ('only the first block', stack(forward=lambda self, x: runs(self, emb(self, x), [0]))),
    ('only the last block', stack(forward=lambda self, x: [b(emb(self, x)) for b in self.tblocks][-1])),
    ('reverse order', stack(forward=lambda self, x: runs(self, emb(self, x), [3,2,1,0]))),
    ('outputs are added', stack(forward=lambda self, x: sum(b(emb(self, x)) for b in self.tblocks))),
    ('runs twice', stack(forward=lambda self, x: self.tblocks(Stack.forward(self, x)))),
    ('last block is not run', stack(forward=lambda self, x: runs(self, emb(self, x), [0,1,2]))),
    ('first block is not run', stack(forward=lambda self, x: runs(self, emb(self, x), [1,2,3]))),
    ('what each block reads is added', stack(forward=lambda self, x: reduce(lambda y, b: y + b(y), self.tblocks, emb(self, x)))),
    ('added once more', stack(forward=lambda self, x: Stack.forward(self, x) + emb(self, x))),
    ('positions are missing', stack(forward=lambda self, x: self.tblocks(self.token_emb(x)))),
    ('are not made with `block=`', stack())]

ends = [
    ('mean runs over the texts', lambda h, head: F.log_softmax(head(h.mean(0)), dim=1)),
    ('these are logits', lambda h, head: head(h.mean(1))),
    ('these are probabilities', lambda h, head: F.softmax(head(h.mean(1)), dim=1)),
    ('log-softmax runs over the texts', lambda h, head: F.log_softmax(head(h.mean(1)), dim=0)),
    ('the maximum over the tokens', lambda h, head: F.log_softmax(head(h.amax(1)), dim=1)),
    ('the sum over the tokens', lambda h, head: F.log_softmax(head(h.sum(1)), dim=1)),
    ('only the first token', lambda h, head: F.log_softmax(head(h[:,0]), dim=1)),
    ('only the last token', lambda h, head: F.log_softmax(head(h[:,-1]), dim=1)),
    ('softmax before the log-softmax', lambda h, head: F.log_softmax(F.softmax(head(h.mean(1)), dim=1), dim=1)),
    ('log-softmax is taken of each token', lambda h, head: F.log_softmax(head(h), dim=-1).mean(1)),
    ('probabilities of the tokens are averaged', lambda h, head: F.softmax(head(h), dim=-1).mean(1).log()),
    ('this is a sigmoid', lambda h, head: F.logsigmoid(head(h.mean(1)))),
    ('a minus too many', lambda h, head: -F.log_softmax(head(h.mean(1)), dim=1)),
    ('divided by the number of texts', lambda h, head: F.log_softmax(head(h.sum(1)/len(h)), dim=1)),
    ('each token is classified', lambda h, head: F.log_softmax(head(h), dim=-1))]

wrong['check_log_probs'] = [*ends, ('takes vectors of width k', lambda h, head: F.log_softmax(head(h.mean(2)), dim=1))]

def classifier(end): return type('Wrong', (Classifier,), dict(forward=lambda self, x: end(Stack.forward(self, x), self.toprobs)))

class ScoresTokens(Stack):
    def __init__(self, k, heads, depth, seq_length, num_tokens, num_classes):
        super().__init__(k, heads, depth, seq_length, num_tokens)
        self.toprobs = nn.Linear(k, num_tokens)

class AsManyAsHeads(Classifier):
    def __init__(self, k, heads, depth, *sizes): super().__init__(k, heads, heads, *sizes)

wrong['check_classifier'] = [*[(s, classifier(f)) for s,f in ends], ('scores classes and not tokens', ScoresTokens), ('holds 3 blocks, but `depth` is 2', AsManyAsHeads)]

def hidden(diagonal=1, value=float('-inf'), flip=False):
    "Hides a triangle."
    def f(dots):
        m = torch.ones(dots.shape[-1], dots.shape[-1], dtype=torch.bool).triu(diagonal)
        return dots.masked_fill(m.T if flip else m, value)
    return f

def only_four(dots):
    "Hides the future of the first four tokens."
    dots[:, *torch.triu_indices(4, 4, 1)] = float('-inf')
    return dots

wrong['check_mask'] = [
    ('nothing is hidden', lambda dots: dots),
    ('diagonal is hidden too', hidden(0)),
    ('the past is hidden, and the future can be seen', hidden(flip=True)),
    ('past and diagonal are hidden', hidden(0, flip=True)),
    ('the future is 0', hidden(value=0.)),
    ('the future is -1', hidden(value=-1.)),
    ('it should be −∞', hidden(value=float('inf'))),
    ('next token can still be seen', hidden(2)),
    ('begins below the diagonal', hidden(-1)),
    ('softmax is taken already: hide', lambda dots: hidden()(weights(dots))),
    ('softmax of the result is taken already', lambda dots: weights(hidden()(dots))),
    ('what is 0 is hidden', lambda dots: dots.tril().masked_fill(dots.tril() == 0, float('-inf'))),
    ('0·∞', lambda dots: dots * torch.ones(4, 4).triu(1) * float('-inf')),
    ('all but the diagonal', lambda dots: hidden()(hidden(flip=True)(dots))),
    (r'(?s)RuntimeError.*size of its own', lambda dots: dots.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), float('-inf'))),
    ('^the mask has a size of its own', only_four),
    ('None: is the `return` missing', lambda dots: None)]

wrong['check_may_see'] = [
    ('turned round', lambda i, j: i <= j),
    ('j = i is allowed', lambda i, j: j < i),
    ('whole past', lambda i, j: i-1 <= j <= i),
    ('everything is allowed', lambda i, j: True),
    ('nothing is allowed', lambda i, j: False),
    ('every answer is None: is the `return` missing', lambda i, j: None),
    ('next token may not be seen', lambda i, j: j <= i+1),
    ('only the token itself', lambda i, j: i == j),
    ('all but the token itself', lambda i, j: i != j),
    ('what is forbidden', lambda i, j: j > i),
    ('RuntimeError: Boolean value', lambda i, j: torch.ones(4, 4).tril())]

def causal(f): return type('Wrong', (SelfAttention,), dict(attention_weights=lambda self, q, k: f(q, k)))

wrong['check_causal'] = [
    ('future is not hidden', causal(lambda q, k: weights(scaled(q, k)))),
    ('comes after the softmax', causal(lambda q, k: hidden(value=0.)(weights(scaled(q, k))))),
    ('the past is hidden', causal(lambda q, k: weights(hidden(flip=True)(scaled(q, k))))),
    ('diagonal is hidden', causal(lambda q, k: weights(hidden(0)(scaled(q, k))))),
    ('`self.unifyheads` is missing', Projections),
    ('queries and keys are swapped', causal(lambda q, k: weights(hide_future(scaled(k, q))))),
    ('two softmaxes', causal(lambda q, k: weights(weights(hide_future(scaled(q, k)))))),
    ('the −∞ comes after the softmax', causal(lambda q, k: hide_future(weights(scaled(q, k))))),
    ('before the mask and one after it', causal(lambda q, k: weights(hide_future(weights(scaled(q, k)))))),
    ('no softmax', causal(lambda q, k: hide_future(scaled(q, k)))),
    ('no longer scaled', causal(lambda q, k: weights(hide_future(q @ k.mT))))]

def language_model(end): return type('Wrong', (LanguageModel,), dict(forward=lambda self, x: end(StackLM.forward(self, x), self.toprobs)))

class Seer(LanguageModel):
    def __init__(self, k, heads, depth, seq_length, num_tokens):
        StackLM.__init__(self, k, heads, depth, seq_length, num_tokens)
        self.toprobs = nn.Linear(k, num_tokens)
class NoScores(Stack):
    def __init__(self, k, *args):
        super().__init__(k, *args)
        self.toprobs = nn.Linear(k, k)

wrong['check_language_model'] = [
    ('future can be seen', Seer),
    ('are averaged', language_model(lambda h, head: F.log_softmax(head(h.mean(1)), dim=-1))),
    ('softmax before the log-softmax', language_model(lambda h, head: F.log_softmax(F.softmax(head(h), dim=-1), dim=-1))),
    ('these are logits', language_model(lambda h, head: head(h))),
    ('over the tokens of the text', language_model(lambda h, head: F.log_softmax(head(h), dim=1))),
    ('over the texts', language_model(lambda h, head: F.log_softmax(head(h), dim=0))),
    ('these are probabilities', language_model(lambda h, head: F.softmax(head(h), dim=-1))),
    ('scores every token of the vocabulary', NoScores),
    ('holds 3 blocks, but `depth` is 2', type('Wrong', (LanguageModel,), dict(__init__=lambda self, k, heads, depth, *sizes: LanguageModel.__init__(self, k, heads, heads, *sizes))))]

def bigram(forward, n_out=lambda n: n):
    "A class of bigram models."
    class Wrong(Module):
        def __init__(self, n): self.table = nn.Embedding(n, n_out(n))
    Wrong.forward = forward
    return Wrong

wrong['check_bigram'] = [
    ('these are scores', bigram(lambda self, x: self.table(x))),
    ('these are probabilities', bigram(lambda self, x: F.softmax(self.table(x), dim=-1))),
    ('over the tokens of the text', bigram(lambda self, x: F.log_softmax(self.table(x), dim=1))),
    ('over the texts', bigram(lambda self, x: F.log_softmax(self.table(x), dim=0))),
    ('softmax before the log-softmax', bigram(lambda self, x: F.log_softmax(F.softmax(self.table(x), dim=-1), dim=-1))),
    ('every weight is frozen', bigram(lambda self, x: F.log_softmax(self.table.requires_grad_(False)(x), dim=-1))),
    ('looks up columns', bigram(lambda self, x: F.log_softmax(self.table.weight.T[x], dim=-1))),
    ('a minus too many', bigram(lambda self, x: -F.log_softmax(self.table(x), dim=-1))),
    ('of width 64: it should hold 11 of width 11', bigram(lambda self, x: self.table(x), lambda n: 64)),
    ('`self.table` is missing', type('Wrong', (Module,), dict(__init__=lambda self, n: None)))]

wrong['check_shift'] = [
    ('not shifted: the model would only', lambda x: (x, x)),
    ('both have lost', lambda x: (x[:,:-1], x[:,:-1])),
    ('rolled round', lambda x: (x, x.roll(-1, 1))),
    ('input and target are swapped', lambda x: (x[:,1:], x[:,:-1])),
    ('two tokens later', lambda x: (x[:,:-2], x[:,2:])),
    ('over the texts of the batch', lambda x: (x[:-1], x[1:])),
    ('one token earlier', lambda x: (x, x.roll(1, 1))),
    ('in reverse', lambda x: (x, x.flip(1))),
    (r'the input has the shape \(4, 4\) and the target \(4, 3\)', lambda x: (x, x[:,1:])),
    ('the target is a NoneType: it should be a tensor', lambda x: (x[:,:-1], None)),
    ('the input is a list', lambda x: (x[:,:-1].tolist(), x[:,1:])),
    ('counts the texts', lambda x: (x[:,:len(x)-1], x[:,1:len(x)])),
    (r'shape \(3, 6\), but should have \(3, 10\)', lambda x: (x[:,:3], x[:,1:4])),
    ('return two tensors', lambda x: x[:,1:])]

def draw(p): return torch.multinomial(p, 1)[0]
def cold(f): return lambda z, T: z.argmax() if T == 0 else f(z, T)

wrong['check_sample'] = [
    ('multiplied by the temperature', cold(lambda z, T: draw(F.softmax(z*T, dim=0)))),
    ('changes nothing', cold(lambda z, T: draw(F.softmax(z, dim=0)))),
    ('probabilities are divided', cold(lambda z, T: draw(F.softmax(F.softmax(z, dim=0)/T, dim=0)))),
    ('equally likely', cold(lambda z, T: torch.randint(len(z), (1,))[0])),
    ('same token comes always', lambda z, T: F.softmax(z/T, dim=0).argmax()),
    ('the softmax comes before it', cold(lambda z, T: draw(z/T))),
    ('cannot be divided by a temperature', lambda z, T: draw(F.softmax(z/T, dim=0))),
    ('stops with AttributeError', lambda z, T: draw(F.softmax(z/T, dim=0)) if T else z.argmx()),
    ('another token than the likeliest', lambda z, T: draw(F.softmax(z/max(T, 1), dim=0))),
    (r'the frequencies are \[0.\d+, .*they should be near \[0.13, 0.58, 0.21, 0.08\]', cold(lambda z, T: draw(F.softmax(z/2.7, dim=0)))),
    ('the frequencies are', cold(lambda z, T: draw(F.softmax(z/T**2, dim=0)))),
    ('the frequencies are', cold(lambda z, T: draw(z.sigmoid()))),
    ('the frequencies are', cold(lambda z, T: draw(F.softmax(z/T**0.5, dim=0)))),
    (r'the shape \(1,\): it is one number', lambda z, T: torch.multinomial(F.softmax(z/max(T, 1e-3), dim=0), 1).expand(1 if T else 2)),
    (r'the token has the shape \(4,\)', cold(lambda z, T: F.softmax(z/T, dim=0))),
    (r'the token has the shape \(\): |a probability or a score', cold(lambda z, T: F.softmax(z/T, dim=0).max())),
    ('the token is a int: it should be a tensor', cold(lambda z, T: draw(F.softmax(z/T, dim=0)).item())),
    (r'the shape \(1, 1\): it is one number', lambda z, T: draw(F.softmax(z/T, dim=0)) if T else z.argmax().view(1, 1)),
    ('the token 4 was drawn of a vocabulary of 4', lambda z, T: torch.tensor(len(z)))]

def writer(show=lambda tokens, length: tokens[-length:], at=-1, n_more=0, keep=True, batch=True, whole=True, pick=torch.argmax):
    "A function that writes."
    def f(model, tokens, n, seq_length, temperature):
        start = tokens
        for _ in range(n+n_more):
            seen = show(tokens if keep else start, seq_length)
            new = model(seen[None])[0,at] if batch else model(seen)[at]
            tokens = torch.cat([tokens, pick(new)[None]])
        return tokens if whole else tokens[len(start):]
    return f

wrong['check_generate'] = [
    ('only the new tokens', writer(whole=False)),
    ('prediction of the first token', writer(at=0)),
    ('always sees the same text', writer(keep=False)),
    ('sees the beginning', writer(lambda tokens, length: tokens[:length])),
    ('only 1 of the last seq_length tokens', writer(lambda tokens, length: tokens[-1:])),
    ('only 2 of the last seq_length tokens', writer(lambda tokens, length: tokens[-length+1:])),
    ('one token too many', writer(n_more=1)),
    ('one token too few', writer(n_more=-1)),
    ('only the end of the text', lambda model, tokens, n, length, T: [tokens := torch.cat([tokens[-length:], model(tokens[None,-length:])[0,-1].argmax()[None]]) for _ in range(n)][-1]),
    ('stand before the text', lambda model, tokens, n, length, T: [tokens := torch.cat([model(tokens[None,-length:])[0,-1].argmax()[None], tokens]) for _ in range(n)][-1]),
    ('returns too early', lambda model, tokens, n, length, T: torch.cat([tokens, model(tokens[None,-length:])[0,-1].argmax()[None]])),
    ('nothing was appended', lambda model, tokens, *args: tokens),
    ('show the model the last 3', writer(lambda tokens, length: tokens)),
    (r'a batch of one text is tokens\[None\]', writer(batch=False)),
    ('give `sample` what the model says', writer(pick=lambda z: draw(F.softmax(z.exp(), dim=0)))),
    ('draw with `sample`', writer()),
    ('pass the temperature on', writer(pick=lambda z: draw(F.softmax(z, dim=0)))),
    ('divided by the temperature twice', lambda model, tokens, n, length, T: writer(pick=lambda z: z.argmax() if T == 0 else draw(F.softmax(z/T**2, dim=0)))(model, tokens, n, length, T))]

def cross(f): return type('Wrong', (Cross,), dict(forward=f))

def sourced(sources):
    "Cross-attention with queries, keys and values from elsewhere."
    def forward(self, x, context):
        q,k,v = [split_heads(f(dict(x=x, c=context)[s]), self.heads) for f,s in zip((self.toqueries, self.tokeys, self.tovalues), sources)]
        return self.unifyheads(concat_heads((q @ k.mT / x.shape[-1]**0.5).softmax(-1) @ v))
    return cross(forward)

def without(module, name):
    "A copy that leaves out the map `name`."
    res = copy.deepcopy(module)
    setattr(res, name, nn.Identity())
    return res
def weighed(f): return type('Wrong', (Cross,), dict(attention_weights=lambda self, q, k: f(q, k)))

wrong['check_cross_attention'] = [
    ('context is not used', sourced('xxx')),
    ('two texts are swapped', sourced('cxx')),
    ('x is not used', sourced('ccc')),
    ('values come from x', sourced('xcx')),
    ('keys come from x', sourced('xxc')),
    ('future of the context is hidden', weighed(lambda q, k: weights(hide_future(scaled(q, k))))),
    ('over the queries', weighed(lambda q, k: F.softmax(scaled(q, k), dim=1))),
    ('queries and keys come from the context', sourced('ccx')),
    ('queries and values come from the context', sourced('cxc')),
    ('not scaled', weighed(lambda q, k: weights(q @ k.mT))),
    ('no softmax', weighed(scaled)),
    ('x is added', cross(lambda self, x, context: Cross.forward(self, x, context) + x)),
    ('not united', type('Wrong', (Cross,), dict(forward=lambda self, x, context: Cross.forward(without(self, 'unifyheads'), x, context)))),
    ('only as many tokens', cross(lambda self, x, context: Cross.forward(self, x, context[:,:x.shape[1]]))),
    ('another length than x', cross(lambda self, x, context: Cross.forward(self, x, context + 0*x)))]

def decoder(forward=DecoderBlock.forward, change=lambda m, k, heads: None):
    "A class of decoder blocks."
    class Wrong(DecoderBlock):
        def __init__(self, k, heads):
            super().__init__(k, heads)
            change(self, k, heads)
    Wrong.forward = forward
    return Wrong

def own(self, x): return self.norm1(self.attention(x) + x)
def other(self, x, c): return self.norm2(self.cross(x, c) + x)
def think(self, x): return self.norm3(self.ff(x) + x)

wrong['check_decoder_block'] = [
    ('sees its own future', decoder(change=lambda m, k, heads: setattr(m, 'attention', SelfAttention(k, heads)))),
    ('cross-attention comes before', decoder(lambda self, x, c: think(self, own(self, other(self, x, c))))),
    ('cross-attention is missing', decoder(lambda self, x, c: think(self, own(self, x)))),
    ('looks at x', decoder(lambda self, x, c: think(self, other(self, own(self, x), own(self, x))))),
    ('feed-forward comes before cross-attention', decoder(lambda self, x, c: self.norm2(self.cross(z := think(self, own(self, x)), c) + z))),
    ('norm2 and norm3 are swapped', decoder(lambda self, x, c: self.norm2(self.ff(z := self.norm3(self.cross(y := own(self, x), c) + y)) + z))),
    ('it should add z₁', decoder(lambda self, x, c: think(self, self.norm2(self.cross(own(self, x), c) + x)))),
    ('adds z₁: it should add z₂', decoder(lambda self, x, c: self.norm3(self.ff(other(self, y := own(self, x), c)) + y))),
    ('it should read z₁', decoder(lambda self, x, c: think(self, self.norm2(self.cross(x, c) + own(self, x))))),
    ('norm3 is missing', decoder(lambda self, x, c: self.ff(z := other(self, own(self, x), c)) + z)),
    ('self-attention is missing', decoder(lambda self, x, c: think(self, other(self, x, c)))),
    ('feed-forward is missing', decoder(lambda self, x, c: other(self, own(self, x), c))),
    ('sum around self-attention', decoder(lambda self, x, c: think(self, other(self, self.norm1(self.attention(x)), c)))),
    ('sum around cross-attention', decoder(lambda self, x, c: think(self, self.norm2(self.cross(own(self, x), c))))),
    ('sum around the feed-forward', decoder(lambda self, x, c: self.norm3(self.ff(other(self, own(self, x), c))))),
    ('adds the context', decoder(lambda self, x, c: think(self, self.norm2(self.cross(own(self, x), c) + c)))),
    ('arguments of cross-attention are swapped', decoder(lambda self, x, c: think(self, self.norm2(self.cross(c, z := own(self, x)) + z)))),
    ('reads z₁: it should read z₂', decoder(lambda self, x, c: self.norm3(self.ff(z := own(self, x)) + other(self, z, c)))),
    ('norm2 is used twice', decoder(lambda self, x, c: self.norm2(self.ff(z := other(self, own(self, x), c)) + z))),
    ('norm1 is used twice: after the second sum comes norm2$', decoder(lambda self, x, c: think(self, self.norm1(self.cross(z := own(self, x), c) + z)))),
    ('norm3 is used twice', decoder(lambda self, x, c: think(self, self.norm3(self.cross(z := own(self, x), c) + z)))),
    ('norm1 is used three times', decoder(lambda self, x, c: self.norm1(self.ff(y := self.norm1(self.cross(z := own(self, x), c) + z)) + y))),
    ('norms are not used', decoder(lambda self, x, c: self.ff(y := self.cross(z := self.attention(x) + x, c) + z) + y)),
    ('norm1 is missing', decoder(lambda self, x, c: think(self, other(self, self.attention(x) + x, c)))),
    ('all residual sums', decoder(lambda self, x, c: self.norm3(self.ff(self.norm2(self.cross(self.norm1(self.attention(x)), c)))))),
    ('comes norm2, after the last norm3', decoder(lambda self, x, c: self.norm2(self.ff(y := self.norm1(self.cross(z := own(self, x), c) + z)) + y))),
    ('pre-norm', decoder(lambda self, x, c: (y := (z := x + self.attention(self.norm1(x))) + self.cross(self.norm2(z), c)) + self.ff(self.norm3(y)))),
    ('the context as it is', decoder(lambda self, x, c: think(self, other(self, x, own(self, c))))),
    ('self-attention reads the context: it', decoder(lambda self, x, c: think(self, other(self, self.norm1(self.attention(c) + x), c)))),
    ('x is not used', decoder(lambda self, x, c: think(self, other(self, own(self, c), c)))),
    ('cross-attention comes first', decoder(lambda self, x, c: think(self, self.norm2(self.attention(z := self.norm1(self.cross(x, c) + x)) + z)))),
    ('feed-forward comes second', decoder(lambda self, x, c: self.norm3(self.cross(z := self.norm2(self.ff(y := own(self, x)) + y), c) + z))),
    ('one norm is used in several', decoder(change=lambda m, k, heads: setattr(m, 'norm3', m.norm1))),
    ('`self.cross` is missing', decoder(change=lambda m, k, heads: delattr(m, 'cross')))]

def adapter(read=lambda x, n: compact(x, 2)[0][:,:n], sizes=lambda c: (c.d_model, c.n_heads, c.n_layers, c.max_len, c.vocab_sz, c.n_out)):
    "A class for fastai."
    class Wrong(Classifier):
        def __init__(self, config):
            self.config = config
            super().__init__(*sizes(config))
        def forward(self, x): return super().forward(read(x, self.config.max_len))
    return Wrong

wrong['check_fastai_classifier'] = [
    ('cut before padding is moved', adapter(lambda x, n: x[:,:n])),
    ('is cut first and compacted then', adapter(lambda x, n: compact(x[:,:n], 2)[0])),
    ('^`compact` takes token 1 for padding', adapter(lambda x, n: compact(x)[0][:,:n])),
    ('cut first, and then `compact` takes', adapter(lambda x, n: compact(x[:,:n])[0])),
    ('cut at its front', adapter(lambda x, n: x[:,-n:])),
    ('the last tokens are kept', adapter(lambda x, n: compact(x, 2)[0][:,-n:])),
    ('one token less', adapter(lambda x, n: compact(x, 2)[0][:,:n-1])),
    ('longer than config.max_len', adapter(lambda x, n: compact(x, 2)[0])),
    (r'(?s)tuple indices.*such as \[0\].$', adapter(lambda x, n: compact(x, 2)[:,:n])),
    ('another one each time', adapter(lambda x, n: compact(x, 2)[0][:,torch.randperm(n)[:2]])),
    ('holds 3 blocks, but `depth` is 2', adapter(sizes=lambda c: (c.d_model, c.n_layers, c.n_heads, c.max_len, c.vocab_sz, c.n_out))),
    ('`token_emb` holds 4 vectors', adapter(sizes=lambda c: (c.d_model, c.n_heads, c.n_layers, c.vocab_sz, c.max_len, c.n_out))),
    ('`toprobs` maps width 6 to 30', adapter(sizes=lambda c: (c.d_model, c.n_heads, c.n_layers, c.max_len, c.vocab_sz, c.vocab_sz)))]

each_check = pytest.mark.parametrize('check', wrong)

@each_check
def test_wrong(check):
    "Each wrong answer gets a message of its own, which names the mistake"
    said = []
    for pattern,answer in wrong[check]:
        with pytest.raises(WrongAnswer) as e: getattr(workshop, check)(answer)
        assert re.search(pattern, str(e.value), re.S), f'{pattern!r} is not in {str(e.value)!r}'
        assert 'other numbers' not in str(e.value)
        said.append(str(e.value))
    assert len(said) >= 3 and len(set(said)) == len(said)

def test_many_wrong_answers():
    "At least 62 mistakes have a name"
    assert sum(map(len, wrong.values())) >= 62

def test_differences_have_words():
    "A mistake that no check foresees is described by what it did to the numbers"
    torch.manual_seed(0)
    x = torch.rand(2, 3, 3) + 0.5
    say = {'wrong sign': -x, '2.5 times': 2.5*x, 'larger by -1': x-1, r'order \[0, 2, 1\]': x.mT, 'of dimension 1 only the mean': x.mean(1),
           'of dimension 2 only the last': x[...,-1], 'dimension 1 is in reverse': x.flip(1), 'dimension 2 is moved by one': x.roll(1, 2),
           'only the shape should be': x[None], 'a softmax too many': x.softmax(-1), 'an exponential too many': x.exp(), 'a square too many': x**2,
           r'dimension 0 only the places \[1\]': torch.stack([x[0], x[1]**3]), 'NaN in 18 of 18': x*float('nan'),
           'right numbers stand in other places': x.flatten()[torch.randperm(18)].view_as(x), 'other numbers than expected': torch.rand(2, 3, 3)}
    for pattern,got in say.items():
        with pytest.raises(WrongAnswer, match=pattern): workshop.answers.compare(got, x)
    a,b = torch.tensor([[1000.001,0.59355], [1000.,0.59364]])        # the first is right, the second would be 0.5936 twice
    with pytest.raises(WrongAnswer, match=r'\[1\] it is 0.59355 instead of 0.59364'): workshop.answers.compare(a, b)

def test_not_written():
    "Code that is not written yet keeps its own error, in every place"
    def todo(*args): raise NotImplementedError('later')
    class Empty(Module):
        def __init__(self, *args): todo()
    for check in wrong:
        for answer in (todo, Empty):
            with pytest.raises(NotImplementedError, match='later'): getattr(workshop, check)(answer)

def test_check_leaves_no_trace(capsys):
    "The same numbers every time, torch's own random state as before, a word when all is right"
    seen = []
    def fn(x):
        seen.append(x)
        return x @ x.mT
    before = torch.get_rng_state()
    workshop.check_dot_products(fn); workshop.check_dot_products(fn)
    again = len(seen)//2
    assert before.equal(torch.get_rng_state()) and seen[0].equal(seen[again]) and seen[1].equal(seen[again+1]) and torch.is_grad_enabled()
    assert capsys.readouterr().out == 'dot products: right\n'*2

def test_code_that_changes_its_input():
    "It is told so, and not what its numbers would mean: right ones would spoil the next cell"
    def no_max(d): d -= d.amax(2, keepdim=True); return weights(d)
    def exp(d): d.exp_(); return d/d.sum(2, keepdim=True)
    def divided(q, k): q /= q.shape[-1]**0.25; k /= k.shape[-1]**0.25; return q @ k.mT
    def warm(z, T): z /= T or 1; return draw(F.softmax(z, dim=0)) if T else z.argmax()
    def frozen(z, T):
        if T == 0: z[z < z.max()] = float('-inf')
        return draw(F.softmax(z/(T or 1), dim=0))
    def sums(self, x):
        x += self.attention(x)
        return second(self, self.norm1(x))
    answers = [('softmax', no_max), ('softmax', exp), ('scaled_dots', divided), ('sample', warm), ('sample', frozen), ('block', block(sums))]
    for name,answer in answers:
        with pytest.raises(WrongAnswer, match='the code changes its input'): getattr(workshop, f'check_{name}')(answer)

def exps(d): e = d.exp(); e /= e.sum(2, keepdim=True); return e
def by_loops(x): return torch.tensor([[[float(a @ b) for b in o] for a in o] for o in x])
def by_numpy(h, head): return F.log_softmax(head(torch.from_numpy(h.detach().numpy().mean(1))), dim=1)
def sums(self, x):
    z = first(self, x)
    z += self.ff(z)
    return self.norm2(z)
def detached(self, x):
    q,k,v = [split_heads(f(x).detach(), self.heads).flatten(0, 1) for f in (self.toqueries, self.tokeys, self.tovalues)]
    return self.unifyheads(concat_heads(apart(self.attention_weights(q, k) @ v, self.heads)))

untrained = [
    ('softmax', exps, 'writes over'), ('block', block(sums), r'`z = z \+ …`'), ('dot_products', by_loops, 'comes back to the input'),
    ('dot_products', lambda x: torch.from_numpy(x.numpy() @ x.numpy().swapaxes(1, 2)), r'(?s)RuntimeError: .*numpy.*cut it off'),
    ('log_probs', by_numpy, 'comes back to the input'), ('attention', lambda q, k, v: weights(q.detach() @ k.mT) @ v, 'comes back to the input'),
    ('multi_head', type('Wrong', (SelfAttention,), dict(forward=detached)), 'comes back to the input, toqueries, tokeys, tovalues:'),
    ('classifier', type('Wrong', (Classifier,), dict(forward=torch.no_grad()(Classifier.forward))), 'comes back to token_emb, pos_emb, tblocks, toprobs:')]

@pytest.mark.parametrize('name,answer,told', untrained, ids=[f'{i}-{o[0]}' for i,o in enumerate(untrained)])
def test_right_numbers_that_cannot_be_trained(name, answer, told):
    "The numbers are right, but a training would stop, or leave weights as they are"
    with pytest.raises(WrongAnswer, match=told): getattr(workshop, f'check_{name}')(answer)

def test_right_in_other_ways():
    "What trains is right: loops, places that are filled, buffers, dropouts, and weights that nothing uses"
    def filled(x):
        y = torch.empty(*x.shape[:2], x.shape[1])
        for i,o in enumerate(x): y[i] = o @ o.T
        return y
    def shifted(d): d = d - d.amax(2, keepdim=True); e = d.exp_(); return e/e.sum(2, keepdim=True)
    class Positions(Embeddings):
        def __init__(self, k, num_tokens, seq_length):
            super().__init__(k, num_tokens, seq_length)
            self.register_buffer('at', torch.arange(seq_length), persistent=False)
        def forward(self, x): return self.token_emb(x) + self.pos_emb(self.at[:x.shape[1]])
    class Frozen(Embeddings):
        def __init__(self, k, num_tokens, seq_length):
            super().__init__(k, num_tokens, seq_length)
            self.pos_emb.weight.requires_grad_(False)
    class More(SelfAttention):
        def __init__(self, k, heads):
            super().__init__(k, heads)
            self.drop,self.unused = nn.Dropout(0.5), nn.Linear(k, k)
        def forward(self, x): return self.drop(super().forward(x))
    def evaluated(model, tokens, *args): return solved_generate(model.eval(), tokens.to(next(model.parameters()).device), *args)
    class Inplace(Block):
        def __init__(self, k, heads):
            super().__init__(k, heads)
            self.ff[1].inplace = True
    answers = [('dot_products', filled), ('softmax', shifted), ('attention', lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.)),
               ('embeddings', Positions), ('embeddings', Frozen), ('multi_head', More), ('block', Inplace),
               ('generate', evaluated), ('shift', lambda x: [x[:,:-1], x[:,1:]]), ('log_probs', lambda h, head: head(h.sum(1)/h.shape[1]).log_softmax(1))]
    for name,answer in answers: getattr(workshop, f'check_{name}')(answer)

@pytest.mark.parametrize('name', ['narrow','log_probs','classifier'])
def test_wrong_count(name):
    "A mean or a slice by another size that was the same by chance"
    answers = dict(narrow=lambda x, w: split_heads(x, w.shape[1]) @ w.mT, log_probs=ends[-2][1], classifier=classifier(ends[-2][1]))
    with pytest.raises(WrongAnswer): getattr(workshop, f'check_{name}')(answers[name])

def test_advice_fits_the_error():
    "An error gets no advice about something else, and one that torch calls not implemented is wrong, not unwritten"
    def arange(self, x): return self.token_emb(x) + self.pos_emb(torch.arange(float(x.shape[1])))
    def power(t, k): return torch.stack([torch.arange(t)/torch.pow(10_000, i/k) for i in range(k)], 1)
    for name,answer in (('embeddings',embeddings(arange)), ('sinusoids',power), ('softmax',lambda d: F.sotfmax(d)), ('dot_products',lambda x: undefined)):
        with pytest.raises(WrongAnswer, match='the code stops') as e: getattr(workshop, f'check_{name}')(answer)
        assert not re.search('hk//heads|positions count|two dimensions', str(e.value))
    for name,answer in (('softmax',lambda d: F.softmax(d.long(), dim=2)), ('block',BlockParts), ('fastai_classifier',adapter(lambda x, n: x))):
        if name == 'fastai_classifier': answer.forward = lambda self, x: x
        with pytest.raises(WrongAnswer, match='the code stops with NotImplementedError'): getattr(workshop, f'check_{name}')(answer)

def test_buffer_among_the_weights():
    "It is told where it is made, not at the step where the library finds it"
    def positions(self, k, num_tokens, seq_length, persistent=True):
        Embeddings.__init__(self, k, num_tokens, seq_length)
        self.register_buffer('at', torch.arange(seq_length), persistent=persistent)
    made = type('Mine', (Embeddings,), dict(__init__=positions))
    with pytest.raises(WrongAnswer, match=r'`at` is saved with the weights.*persistent=False'): workshop.check_embeddings(made)
    workshop.check_embeddings(partial(made, persistent=False))

def test_minus_a_billion():
    "What leads to the same weights is as good as −∞, and changing the given tensor is allowed"
    workshop.check_mask(hidden(value=-1e9))
    def in_place(dots):
        dots[:, *torch.triu_indices(*dots.shape[1:], 1)] = float('-inf')
        return dots
    workshop.check_mask(in_place)

# Solutions and exercises

def sources(path): return [''.join(c['source']) for c in json.loads(path.read_text(encoding='utf-8'))['cells'] if c['cell_type'] == 'code']

mark = workshop.pages._solution

def unsolve(src, i):
    "`src` with only its `i`-th solution left out, and what is then to do"
    m = list(mark.finditer(src))[i]
    return src[:m.start()] + exercise_source(m[0]) + src[m.end():], m[2].strip()

@each_step
def test_exercises_fail_then_pass(step, monkeypatch, capsys):
    "Each part that is to be written stops its cell with its task, and the solution passes"
    monkeypatch.chdir(solutions)
    ns,n = dict(__name__=step), 0
    for src in sources(solutions/f'{step}.ipynb'):
        found = len(mark.findall(src))
        for i in range(found):
            cell,task = unsolve(src, i)
            with pytest.raises(NotImplementedError, match=re.escape(task)): exec(cell, ns)
        nodes = [o for o in ast.parse(src).body if found or workshop.steps._is_definition(o)]
        exec(compile(ast.Module(nodes, []), step, 'exec'), ns)
        if found: assert capsys.readouterr().out.endswith(': right\n'), f'no check in:\n{src}'
        n += found
    assert n

def test_every_check_is_used():
    "Each check has its wrong answers here and one exercise in the workshop"
    checks = {n for n in workshop.__all__ if n.startswith('check_')}
    used = [n for s in steps for src in sources(solutions/f'{s}.ipynb') for n in re.findall(r'^(check_\w+)\(', src, re.M)]
    assert checks == set(wrong) == set(used) and len(used) == len(checks)

def test_public_names():
    "A learner's notebook gets checks and what they need, and no helper's name such as `K`"
    others = {n for n in workshop.__all__ if not n.startswith('check_')}
    assert others == {'WrongAnswer', 'earlier', 'exercise_source', 'exercise_notebook', 'write_exercises', 'main'}

def test_committed_exercises(tmp_path):
    "The committed exercises are what the solutions give"
    shutil.copytree(solutions, tmp_path/'workshop', ignore=shutil.ignore_patterns('_exercises', '.ipynb_checkpoints'))
    made = write_exercises(tmp_path/'workshop/_exercises', tmp_path/'workshop')
    assert [o.name for o in made] == sorted(o.name for o in exercises.glob('*.ipynb'))
    for o in made: assert o.read_bytes() == (exercises/o.name).read_bytes(), f'{o.name} is out of step: python -m fastai_txf.workshop nbs/workshop/_exercises --overwrite'

@each_step
def test_no_solution_in_exercise(step):
    "No line of a solution, no answer, no output; a link to both"
    nb = json.loads((exercises/f'{step}.ipynb').read_text(encoding='utf-8'))
    given = {line.strip() for src in sources(exercises/f'{step}.ipynb') for line in src.splitlines()}
    for src in sources(solutions/f'{step}.ipynb'):
        for m in mark.finditer(src):
            lines = {line.strip() for line in m[0].splitlines()[1:-1]}
            assert lines and not lines & given
    text = '\n'.join(''.join(c['source']) for c in nb['cells'])
    assert '## Answers' not in text and '### ' not in text and f'[Solution](../{step}.ipynb)' in text
    assert not any(c.get('outputs') or c.get('execution_count') for c in nb['cells'])

def test_nbdev_tests_solutions_only():
    "`nbdev-test`, export and clean see the solutions and leave the exercises alone"
    from nbdev.doclinks import nbglob
    found = {Path(o).resolve() for o in nbglob(root/'nbs')}
    assert {solutions/f'{s}.ipynb' for s in steps} <= found
    assert not any('_exercises' in o.parts for o in found)

# Exercises from solutions

def test_exercise_source():
    "Only what is marked goes, with its indentation; a mark alone is refused"
    assert exercise_source('x = 1\n## not a mark\n#### nor this') == 'x = 1\n## not a mark\n#### nor this'
    got = exercise_source("def f(x):\n    ### TELL: x's name\n    y = x\n\n    return y\n    ### end\n    # rest\n\nf(1)")
    assert got == 'def f(x):\n    raise NotImplementedError("TELL: x\'s name")\n    # rest\n\nf(1)'
    for bad in ('### do\nx', 'x\n### end', '### do\nx\n    ### end', 'if x:\n    ### do\n    x\n### end', '### a\n### b\nx\n### end'):
        with pytest.raises(ValueError, match='stands alone'): exercise_source(bad)

def test_exercise_notebook_leaves_the_solution():
    "The notebook that is given stays as it was"
    nb = json.loads((solutions/'01_self_attention.ipynb').read_text(encoding='utf-8'))
    before = json.dumps(nb)
    exercise_notebook(nb, 'x.ipynb')
    assert json.dumps(nb) == before

def test_never_overwrites(tmp_path, monkeypatch, capsys):
    "Changed exercises are kept unless it is asked for, by the function and on the command line"
    monkeypatch.chdir(root)
    assert main([str(tmp_path/'mine')]) == 0 and f'{len(steps)} exercises' in capsys.readouterr().out
    file = tmp_path/'mine/04_heads.ipynb'
    written = file.read_text(encoding='utf-8')
    file.write_text(written + ' ', encoding='utf-8')
    assert main([str(tmp_path/'mine')]) == 1 and '04_heads.ipynb in' in capsys.readouterr().err
    assert file.read_text(encoding='utf-8') == written + ' '
    assert main([str(tmp_path/'mine'), '--overwrite']) == 0 and file.read_text(encoding='utf-8') == written
    assert main([str(tmp_path/'other'), '--source', str(tmp_path)]) == 1 and 'no solutions in' in capsys.readouterr().err
    assert main([str(file)]) == 1 and f'{file} is a file: give the name of a folder' in capsys.readouterr().err
    assert main([f'{file}/mine']) == 1 and f'cannot write {file}/mine/' in capsys.readouterr().err
    monkeypatch.chdir(tmp_path/'mine')
    assert main(['', '--source', str(solutions)]) == 0 and 'exercises in .: begin' in capsys.readouterr().out
    with pytest.raises(FileExistsError, match='holds the solutions'): write_exercises(solutions, solutions, overwrite=True)

def test_broken_solution(tmp_path, capsys):
    "What a teacher has broken is one line, which names the notebook"
    for broken in ('{', json.dumps(dict(cells=[dict(cell_type='code', source=['### do this\n', 'x = 1\n'])]))):
        (tmp_path/'01_mine.ipynb').write_text(broken)
        assert main([str(tmp_path/'out'), '--source', str(tmp_path)]) == 1 and not (tmp_path/'out').exists()
        err = capsys.readouterr().err
        assert f'{tmp_path/"01_mine.ipynb"}: ' in err and err.count('\n') == 1 and ('do this' in err or 'line 1' in err)

# Earlier steps

def notebook(path, *cells):
    path.write_text(json.dumps(dict(cells=[dict(cell_type='code', source=src.splitlines(keepends=True)) for src in cells])), encoding='utf-8')

def test_earlier(tmp_path):
    "Definitions, imports and what comes from earlier steps; no other line runs, magics do not disturb"
    notebook(tmp_path/'01_a.ipynb', '%matplotlib inline\n!ls\nimport math', 'def half(x): return x/2', 'raise RuntimeError("not to be run")')
    notebook(tmp_path/'02_b.ipynb', 'from fastai_txf.workshop import *', "half = earlier('01_a', 'half')", 'class Quarter:\n    def __call__(self, x): return half(half(x))', 'half = print("not to be run")')
    Quarter,half = earlier('02_b', 'Quarter', 'half', folder=tmp_path)
    assert Quarter()(8) == 2 and half(8) == 4
    with pytest.raises(ValueError, match=r"defines no quarter, only \['Quarter'\]"): earlier('02_b', 'quarter', folder=tmp_path)
    with pytest.raises(ValueError, match=r"say what to fetch from .*02_b.ipynb, of \['Quarter'\]"): earlier('02_b', folder=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the notebooks there are \['01_a', '02_b'\]"): earlier('03_c', 'x', folder=tmp_path)

def test_earlier_runs_plain_values(tmp_path):
    "A name that an answer uses: a number or a lambda is fetched with it, another value is named with the remedy"
    start,define = 'import torch, torch.nn as nn\nfrom fastai_txf.workshop import *', 'def weights(dots): return soft(dots)\ncheck_softmax(weights)'
    notebook(tmp_path/'01_a.ipynb', start, 'LAST = -1\nsoft = lambda d: torch.softmax(d, LAST)', define)
    assert earlier('01_a', 'weights', folder=tmp_path)(torch.zeros(1, 2, 2)).equal(torch.full((1, 2, 2), 0.5))
    notebook(tmp_path/'01_a.ipynb', start, 'Base = type("Base", (), {})', 'class Mine(Base): pass')
    with pytest.raises(NameError, match='put `Base` into'): earlier('01_a', 'Mine', folder=tmp_path)
    notebook(tmp_path/'01_a.ipynb', start, 'soft = nn.Softmax(2)', define)
    with pytest.raises(WrongAnswer, match='(?s)NameError.*`earlier` fetches imports, functions, classes and plain values: put `soft` into the function'):
        earlier('01_a', 'weights', folder=tmp_path)

def test_earlier_beside_what_needs_more(tmp_path):
    "A definition that needs a value which is not fetched stops only those who ask for it, and none before it stands in for it"
    scratch = 'words = list("ab")\ndef show(x, rows=words): return x\ndef half(x): return x'
    notebook(tmp_path/'01_a.ipynb', scratch, 'def half(x): return x/2', 'def third(x): return x', 'def third(x, by=words): return x/3')
    notebook(tmp_path/'02_b.ipynb', 'from fastai_txf.workshop import *', "third = earlier('01_a', 'third')", 'def ninth(x, f=third): return f(f(x))')
    assert earlier('01_a', 'half', folder=tmp_path)(8) == 4
    for step,name in (('01_a','show'), ('01_a','third'), ('02_b','ninth')):
        with pytest.raises(NameError, match=r"^name 'words' is not defined: `earlier` fetches[^`]*: put `words` into[^`]*$"): earlier(step, name, folder=tmp_path)

magics = ['?torch.bmm', 'torch.bmm?', 'torch.bmm??', 'files = !ls', 'for i in range(2):\n    %timeit i', '%%time', 'if True:\n    !ls', 'def scratch(x']

@pytest.mark.parametrize('line', magics, ids=['ask-before','ask','ask-twice','shell-value','indented-magic','cell-magic','indented-shell','half-written'])
def test_earlier_beside_what_is_no_python(tmp_path, line):
    "Lines for IPython and a cell that is half written do not disturb; lines that only look like it are kept"
    notebook(tmp_path/'01_a.ipynb', line, 'def half(x):\n    return ("%d"\n    % (x/2))', f'{line}\ndef third(x): return x/3')
    assert earlier('01_a', 'half', folder=tmp_path)(8) == '4'
    if 'scratch' not in line: assert earlier('01_a', 'third', folder=tmp_path)(9) == 3
    else:
        with pytest.raises(SyntaxError, match='01_a.ipynb, code cell 3, line'): earlier('01_a', 'third', folder=tmp_path)
        notebook(tmp_path/'01_a.ipynb', f'import math\n{line}', 'def half(x): return x/2')
        with pytest.raises(SyntaxError, match='01_a.ipynb, code cell 1, line 2'): earlier('01_a', 'half', folder=tmp_path)

def copied(tmp_path, solved=()):
    "A learner's folder, with some steps solved."
    write_exercises(tmp_path, solutions)
    for o in solved: shutil.copy(solutions/f'{o}.ipynb', tmp_path)
    return tmp_path

def test_learners_own_code(tmp_path):
    "A later step uses what the learner has written, and says so if it is not written yet"
    copied(tmp_path, steps[:4])
    with pytest.raises(NotImplementedError, match=r'(?s)`TransformerBlock` of .*05_block.ipynb is not written yet: .*nn.LayerNorm.*solutions'):
        earlier('05_block', 'TransformerBlock', folder=tmp_path)
    shutil.copy(solutions/'05_block.ipynb', tmp_path)
    heads = tmp_path/'04_heads.ipynb'
    heads.write_text(heads.read_text(encoding='utf-8').replace('Self-attention with several heads', 'My own attention'), encoding='utf-8')
    assert earlier('05_block', 'TransformerBlock', folder=tmp_path)(8, 2).attention.__doc__.startswith('My own')

def test_earlier_checks_again(tmp_path):
    "What was changed after its check is refused, with the check's sentence and the notebook's name"
    notebook(copied(tmp_path)/'01_self_attention.ipynb', 'import torch\nfrom fastai_txf.workshop import *', 'def weights(dots): return torch.softmax(dots, 1)', 'check_softmax(weights)')
    with pytest.raises(WrongAnswer, match='(?s)`weights` of .*01_self_attention.ipynb is not right: the columns sum to 1'):
        earlier('01_self_attention', 'weights', folder=tmp_path)
    assert earlier('01_self_attention', 'weights', folder=tmp_path/'solutions')(torch.zeros(1, 2, 2)).equal(torch.full((1, 2, 2), 0.5))

def shell():
    from IPython.core.interactiveshell import InteractiveShell
    InteractiveShell.clear_instance()
    return InteractiveShell.instance()

def run_cells(path, ip):
    "What IPython prints for each code cell of a notebook, errors included."
    from IPython.utils.capture import capture_output
    for src in sources(path):
        with capture_output() as out: ip.run_cell(src)
        yield src, re.sub(r'\x1b\[[0-9;]*m', '', out.stdout + out.stderr)

def checks_source():
    "The source of all that stands behind the exercises"
    return '\n'.join(o.read_text(encoding='utf-8') for o in sorted(Path(workshop.__file__).parent.glob('*.py')))

def code_lines(src):
    "Its lines of code, long enough to be told from others; no strings and no definitions."
    lines = {line.strip() for line in src.splitlines()}
    return {o for o in lines if len(o) > 14 and not o.startswith(('"', "'", 'def ', 'class ', '#', 'import ', 'from '))}

@pytest.mark.slow
@each_step
def test_unsolved_shows_nothing(step, tmp_path, monkeypatch):
    "No line of a check or of a solution is printed by any cell of an unsolved exercise"
    pytest.importorskip('IPython')
    before = [o for o in steps if o < step]
    monkeypatch.chdir(copied(tmp_path, before))
    given = '\n'.join(sources(tmp_path/f'{step}.ipynb'))
    module = checks_source()
    solved = [m[0].partition('\n')[2].rpartition('\n')[0] for src in sources(solutions/f'{step}.ipynb') for m in mark.finditer(src)]
    secret = {o for src in (module, *solved) for o in code_lines(src)} - {line.strip() for line in given.splitlines()}
    told = 0
    for src,out in run_cells(tmp_path/f'{step}.ipynb', shell()):
        assert not [o for o in secret if o in out], f'{src}\n---\n{out}'
        if 'raise NotImplementedError' in src:
            task = re.search(r'NotImplementedError\((.)(.*)\1\)', src)[2]
            assert f'NotImplementedError: {task}' in out.replace('\n', ' ') or 'NotImplementedError' in out, out
            told += 'NotImplementedError' in out
    assert told

def test_errors_of_a_check_are_short(tmp_path, monkeypatch):
    "An error names the learner's own line, and shows none of the check, neither for an open task nor for a wrong answer"
    pytest.importorskip('IPython')
    monkeypatch.chdir(copied(tmp_path))
    lines = code_lines(checks_source())
    wrong = 'def dot_products(x):\n    return torch.bmm(x, 3)\ncheck_dot_products(dot_products)'
    notebook(tmp_path/'11_more.ipynb', 'import torch\nfrom fastai_txf.workshop import *', wrong, wrong.replace('3', 'x'))
    (_,first),(_,stops),(_,named) = run_cells(tmp_path/'11_more.ipynb', shell())
    assert not first and 'WrongAnswer: the code stops with TypeError' in stops and 'this cell, line 2, in dot_products: return torch.bmm(x, 3)' in stops
    for out in (stops,named): assert 'line' not in out.replace('this cell, line 2, in dot_products', '').replace('this cell, line 3, in <module>', '')
    assert 'WrongAnswer: this is x times x' in named and not [o for o in lines for out in (stops,named) if o in out]

def test_errors_show_the_learners_lines_alone(tmp_path, monkeypatch):
    "No line of fastai, of fastcore or of the library behind the workshop is called one of this cell"
    pytest.importorskip('IPython')
    monkeypatch.chdir(copied(tmp_path))
    start = 'from fastai.torch_core import Module\nimport torch.nn as nn\nfrom fastai_txf.workshop import *'
    wrong = 'class Maps(Module):\n    def __init__(self, k, heads=1): self.toqueries = nn.Linear(k, 1/0)\ncheck_projections(Maps)'
    extra = "Block = earlier('05_block', 'TransformerBlock', folder='solutions')\nclass More(Block):\n    def __init__(self, *a):\n        super().__init__(*a)\n        self.more = nn.Linear(1, 1)\ncheck_block(More)"
    notebook(tmp_path/'11_more.ipynb', start, wrong, extra)
    (_,first),(_,maps),(_,more) = run_cells(tmp_path/'11_more.ipynb', shell())
    assert not first and re.findall(r'this cell, line (\d+), in (\S+):', maps) == [('3','<module>'), ('2','__init__')]
    assert 'names or sizes' in more and re.findall(r'this cell, line (\d+), in (\S+):', more) == [('6','<module>')]

def test_errors_of_own_code_beside_solutions(tmp_path, monkeypatch):
    "A solution that is fetched, too, does not lend its lines to the errors of the learner's own notebook"
    pytest.importorskip('IPython')
    monkeypatch.chdir(tmp_path)
    for folder,f in (('.','return x/0'), ('solutions','return x/2')):
        Path(folder).mkdir(exist_ok=True)
        notebook(Path(folder)/'01_a.ipynb', f'def half(x):\n    {f}')
        notebook(Path(folder)/'02_b.ipynb', 'from fastai_txf.workshop import *', "half = earlier('01_a', 'half')", 'def quarter(x): return half(half(x))')
    cells = "from fastai_txf.workshop import *", "half = earlier('01_a', 'half')", "quarter = earlier('02_b', 'quarter', folder='solutions')", 'half(quarter(8))', 'quarter("8")'
    notebook(tmp_path/'03_c.ipynb', *cells)
    *_,mine,theirs = [out for _,out in run_cells(tmp_path/'03_c.ipynb', shell())]
    assert 'return x/0' in mine and 'x/2' not in mine and 'solutions/01_a.ipynb, code cell 1' in theirs and 'return x/2' in theirs

def test_errors_point_at_their_cell(tmp_path, monkeypatch):
    "Code that was fetched has the name, the line and the source of its own cell"
    pytest.importorskip('IPython')
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path/'01_a.ipynb', 'import math', '# a remark\ndef half(x):\n    return x/0')
    notebook(tmp_path/'02_b.ipynb', 'from fastai_txf.workshop import *', "half = earlier('01_a', 'half')", 'half(1)')
    out = list(run_cells(tmp_path/'02_b.ipynb', shell()))[-1][1]
    assert '01_a.ipynb, code cell 2' in out and 'return x/0' in out and 'ZeroDivisionError' in out
    notebook(tmp_path/'01_a.ipynb', 'import math', 'def half(x):\n    return x/')
    with pytest.raises(SyntaxError) as e: earlier('01_a', 'half')
    assert e.value.filename == '01_a.ipynb, code cell 2' and e.value.lineno == 2

# What a learner gets

def test_copied_notebooks(tmp_path):
    "Every copy is a notebook whose steps can be fetched, without links to what is not there"
    write_exercises(tmp_path)
    for o in tmp_path.rglob('*.ipynb'):
        nb = json.loads(o.read_text(encoding='utf-8'))
        links = re.findall(r'\]\((\.[^)\s]+)\)', '\n'.join(''.join(c['source']) for c in nb['cells']))
        assert not [l for l in links if not (o.parent/l.split('#')[0]).exists()]

@each_step
def test_earlier_of_copied_solutions(step, tmp_path):
    write_exercises(tmp_path)
    names = [n for src in sources(solutions/f'{step}.ipynb') for n in re.findall(r'^check_\w+\((\w+)\)', src, re.M)]
    assert names and earlier(step, *names, folder=tmp_path/'solutions')

def test_copies(tmp_path):
    "Exercises, solutions, pages and drawings, with links that lead somewhere; nothing is replaced"
    write_exercises(tmp_path/'w')
    assert sorted(o.name for o in (tmp_path/'w').glob('*.ipynb')) == sorted(o.name for o in (tmp_path/'w/solutions').glob('*.ipynb')) == [f'{s}.ipynb' for s in steps]
    for o in (tmp_path/'w').rglob('*.*'):
        if o.suffix not in ('.md','.ipynb'): continue
        text = o.read_text(encoding='utf-8')
        links = [l for l in re.findall(r'\]\(([^)\s]+)\)', text) if not re.match('https?:|#', l)]
        gone = [l for l in links if not (o.parent/l.split('#')[0]).exists()]
        assert not gone, f'{o.name}: {gone}'
    mine = tmp_path/'w/solutions/01_self_attention.ipynb'
    mine.write_text('mine', encoding='utf-8')
    with pytest.raises(FileExistsError, match='01_self_attention.ipynb in .*solutions'): write_exercises(tmp_path/'w')
    assert mine.read_text(encoding='utf-8') == 'mine'
