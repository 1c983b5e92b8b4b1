"""Which parts of recent language models pay at this size, one at a time: characters of tinyshakespeare at nanoGPT's CPU setting, and 2,000 byte pairs of the same text.

The model is written out here without the library, so that parts which did not pay are kept nowhere else: rotary positions, norms before, GELU, tied embeddings, no biases, no dropout. `+part` adds one
part to that, `all-part` leaves one out of all. Matrices of the blocks are trained with Muon and the rest with Adam, or all of it with Adam; the schedule is 5 % of warm-up and a cosine."""
import itertools
import numpy as np
from common import *

WIDTH,HEADS,LAYERS,BS,SEQ_LEN = 128,4,4,12,64
PARTS = dict(
    qk='queries and keys of root mean square 1, a learned factor for each width of a head',
    qk0='queries and keys of root mean square 1',
    relu2='squared ReLU',
    zero='outputs of attention and feed-forward begin at zero',
    scale='learned factors of what a part adds and of what it adds to',
    value="a learned mix with the first block's values",
    cap='logits within ±15, by a hyperbolic tangent',
    cap30='logits within ±30',
    untied='output layer with weights of its own',
    short='the embeddings added to every block, with learned factors',
    bigram='embeddings of hashed pairs of tokens, added to those of the tokens',
    bigshort='these, added to every block, with learned factors',
    warm="Muon's momentum grows from 0.85 to 0.95 in the first 30 % of the steps")
ALL = 'qk','zero','scale','value','cap','untied','short','bigram'

# The model

def rotate(x, cos, sin):
    a,b = x.chunk(2, -1)
    return torch.cat([a*cos - b*sin, a*sin + b*cos], -1)

class Factors(nn.Module):
    "Two learned numbers."
    def __init__(self, a, b):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([float(a),float(b)]))
    def forward(self, x, y): return self.w[0]*x + self.w[1]*y

class Block(nn.Module):
    "Attention and feed-forward, with what `parts` ask for."
    def __init__(self, parts, first):
        super().__init__()
        self.parts = parts
        self.norm1,self.norm2 = (nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv,self.out = nn.Linear(WIDTH, 3*WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up,self.down = nn.Linear(WIDTH, 4*WIDTH, bias=False), nn.Linear(4*WIDTH, WIDTH, bias=False)
        if 'qk' in parts: self.q_gain,self.k_gain = (nn.Parameter(torch.ones(WIDTH//HEADS)) for _ in range(2))
        if 'scale' in parts: self.add1,self.add2 = Factors(1, 1), Factors(1, 1)
        if 'value' in parts and not first: self.values = Factors(0.5, 0.5)
        if 'short' in parts: self.shortcut = Factors(1, 0)
        if 'bigshort' in parts: self.pairs = Factors(1, 0.1)

    def forward(self, x, cos, sin, emb, pair, v1):
        if 'short' in self.parts: x = self.shortcut(x, emb)
        if pair is not None: x = self.pairs(x, pair)
        b,t,_ = x.shape
        q,k,v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if 'qk' in self.parts: q,k = F.rms_norm(q, q.shape[-1:], self.q_gain), F.rms_norm(k, k.shape[-1:], self.k_gain)
        if 'qk0' in self.parts: q,k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        q,k = rotate(q, cos, sin), rotate(k, cos, sin)
        if 'value' in self.parts and v1 is not None: v = self.values(v, v1)
        a = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH))
        x = self.add1(x, a) if 'scale' in self.parts else x+a
        h = self.up(self.norm2(x))
        h = self.down(F.relu(h).square() if 'relu2' in self.parts else F.gelu(h))
        return (self.add2(x, h) if 'scale' in self.parts else x+h), v

class Model(nn.Module):
    "Token ids to logits."
    def __init__(self, vocab_sz, parts=(), buckets=None):
        super().__init__()
        self.parts,self.buckets = parts,buckets or min(vocab_sz**2, 8192)
        self.emb,self.head = nn.Embedding(vocab_sz, WIDTH), nn.Linear(WIDTH, vocab_sz, bias=False)
        self.blocks,self.norm = nn.ModuleList([Block(parts, not i) for i in range(LAYERS)]), nn.LayerNorm(WIDTH)
        if {'bigram','bigshort'} & {*parts}: self.pairs = nn.Embedding(self.buckets, WIDTH)
        freq = 10_000.**(-torch.arange(0, WIDTH//HEADS, 2)/(WIDTH//HEADS))
        angle = torch.arange(SEQ_LEN)[:,None]*freq
        self.register_buffer('cos', angle.cos())
        self.register_buffer('sin', angle.sin())
        self.init()

    def init(self):
        for m in self.modules():
            if isinstance(m, nn.Linear): nn.init.xavier_uniform_(m.weight)
            if isinstance(m, nn.Embedding): nn.init.normal_(m.weight, std=0.02)
        for b in self.blocks:
            for m in (b.out, b.down): m.weight.data.mul_(0. if 'zero' in self.parts else (2*LAYERS)**-0.5)
        if hasattr(self, 'pairs'): nn.init.zeros_(self.pairs.weight)
        if 'untied' not in self.parts: self.head.weight = self.emb.weight
        elif 'zero' in self.parts: nn.init.zeros_(self.head.weight)

    def hashed(self, x):
        "A row for each token and the one before it; the first has none."
        before = F.pad(x[:,:-1]+1, (1, 0))
        return (before*len(self.emb.weight) + x) % self.buckets if self.buckets >= len(self.emb.weight)**2 else (before*36313 ^ x*27191) % self.buckets

    def forward(self, x):
        h,pair,v1 = self.emb(x), None, None
        if 'bigram' in self.parts: h = h + self.pairs(self.hashed(x))
        if 'bigshort' in self.parts: pair = self.pairs(self.hashed(x))
        emb = h
        for b in self.blocks:
            h,v = b(h, self.cos[:x.shape[1]], self.sin[:x.shape[1]], emb, pair, v1)
            if v1 is None: v1 = v
        z = self.head(self.norm(h))
        for name,c in (('cap',15.), ('cap30',30.)):
            if name in self.parts: z = c*torch.tanh(z/c)
        return z

# Muon, matrices of one shape together

class Muon(torch.optim.Optimizer):
    "Momentum, orthogonalised (Jordan et al. 2024), with steps as long as Adam's."
    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1): super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for shape in {p.shape for p in g['params']}: self.step_shape(g, [p for p in g['params'] if p.shape == shape])

    def step_shape(self, g, ps):
        grads = torch.stack([p.grad for p in ps])
        state = self.state[ps[0]]
        m = state.setdefault('m', torch.zeros_like(grads)).lerp_(grads, 1-g['momentum'])
        x = grads.lerp(m, g['momentum'])
        if tall := x.shape[1] > x.shape[2]: x = x.mT
        x = x/x.flatten(1).norm(dim=1).clamp(min=1e-7)[:,None,None]
        for _ in range(5):
            a = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
        if tall: x = x.mT
        for p,u in zip(ps, x): p.mul_(1-g['lr']*g['weight_decay']).add_(u, alpha=-g['lr']*0.2*max(p.shape)**0.5)

def optimizers(model, opt):
    "What trains the model, with the largest rate of each."
    mats = [p for n,p in model.named_parameters() if 'blocks' in n and p.ndim == 2] if opt == 'muon' else []
    taken = {id(p) for p in mats}
    rest = [p for p in model.parameters() if id(p) not in taken]
    groups = [dict(params=[p for p in rest if (p.ndim > 1) == wd], weight_decay=0.1*wd) for wd in (True,False)]
    adam = torch.optim.AdamW([g for g in groups if g['params']], lr=4e-3, betas=(0.9,0.99), fused=True)
    return [(adam,4e-3)] + ([(Muon(mats, lr=1e-2),1e-2)] if mats else [])

def train(ids, vocab_sz, parts, opt, steps, seed):
    "A trained model and its processor time."
    torch.manual_seed(seed)
    model = Model(vocab_sz, parts)
    rand = torch.Generator().manual_seed(seed)
    opts = optimizers(model, opt)
    start = time.process_time()
    for i in range(steps):
        at = i/steps
        share = at/0.05 if at < 0.05 else 0.01 + 0.495*(1+math.cos(math.pi*(at-0.05)/0.95))
        for o,lr in opts:
            for g in o.param_groups:
                g['lr'] = lr*share
                if 'warm' in parts and 'momentum' in g: g['momentum'] = 0.85 + 0.1*min(1, at/0.3)
        rows = torch.randint(len(ids)-SEQ_LEN, (BS,1), generator=rand) + torch.arange(SEQ_LEN+1)
        batch = ids[rows]
        F.cross_entropy(model(batch[:,:-1]).flatten(0, 1), batch[:,1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.)
        for o,_ in opts:
            o.step()
            o.zero_grad()
    return model.eval(), time.process_time()-start

# Data

def char_ids():
    texts = read_shakespeare()
    vocab = {c:i for i,c in enumerate(sorted({*texts[0], *texts[1]}))}
    return [torch.tensor([vocab[c] for c in t]) for t in texts], len(vocab)

def bpe_ids():
    from fastai_txf.all import BPETokenizer, LMDataLoaders
    dls = LMDataLoaders.from_texts(*[[t] for t in read_shakespeare()], tok_tfm=BPETokenizer(2000), starts=False, bs=BS, seq_len=SEQ_LEN)
    return [torch.from_numpy(dl.flat.ids.astype(np.int64)) for dl in (dls.train, dls.valid)], len(dls.vocab)

DATA = dict(chars=char_ids, bpe=bpe_ids)

def parse(name):
    "The parts of a candidate: 'base', '+a+b', 'all', 'all-a'."
    if name.startswith('all'): return tuple(p for p in ALL if p not in name.split('-')[1:])
    return tuple(name.split('+')[1:])

# Results

TITLES = dict(chars='characters', bpe='2,000 byte pairs')
KEY = 'data','steps','opt','seed','name'

def kept_rows():
    "The rows of earlier runs."
    file = HERE/'results'/'modern.jsonl'
    return [json.loads(l) for l in file.read_text().splitlines()] if file.exists() else []

def against(rows, r):
    "How far the loss of `r` is from that of its base: the same without the last of its parts, or all of them."
    own = parse(r['name'])
    name = 'all' if '-' in r['name'] else 'base' if len(own) < 2 or r['name'] == 'all' else ''.join(f'+{p}' for p in own[:-1])
    base = [b['loss'] for b in rows if [b[k] for k in KEY] == [*[r[k] for k in KEY[:-1]], name]]
    return '' if r['name'] == 'base' or not base else f"{r['loss']-base[0]:+.3f} to {name}"

def render(rows):
    "The results as markdown."
    text = f"# Parts of recent language models\n\nWritten by `python benchmarks/modern.py`, which holds the model and its parts. {LAYERS} layers, {HEADS} heads, width {WIDTH}, windows of {SEQ_LEN} tokens, batches of {BS}; " \
           "the loss is over the whole last tenth of the text. A millisecond is one of processor time, on a machine with other work: times of one table differ by chance by a tenth.\n\n"
    groups = groupby(rows, lambda r: (r['steps'],r['data'],r['opt']))
    for (steps,data,opt),part in sorted(groups.items(), key=lambda o: (o[0][1] != 'chars', o[0][2] != 'muon', -o[0][0])):
        cols = {'parts':'name', 'what it is':lambda r: PARTS.get(r['name'].split('+')[-1], ''), 'seed':'seed', 'valid loss':lambda r: f"{r['loss']:.3f}", 'difference':lambda r: against(part, r), 'ms a step':lambda r: f"{r['ms']:.0f}", 'parameters':'params'}
        text += f"## {TITLES[data].capitalize()}, {opt.capitalize()}, {steps:,} steps\n\n{table(sorted(part, key=lambda r: (r['seed'],r['name'].count('+'),r['name'])), cols)}\n"
    return text + ran_with(rows, env=None)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--only', nargs='+', default=['base', *(f'+{k}' for k in PARTS)], help="candidates: 'base', '+qk', '+qk+value', 'all', 'all-cap'")
    p.add_argument('--data', nargs='+', default=['chars'], choices=DATA)
    p.add_argument('--opts', nargs='+', default=['muon','adam'], choices=['muon','adam'])
    p.add_argument('--seeds', nargs='+', type=int, default=[0])
    p.add_argument('--steps', type=int, default=500, help='of training; fewer are only tried')
    args = p.parse_args()
    torch.set_num_threads(1)
    tried = []
    for data in args.data:
        (ids,valid),vocab_sz = DATA[data]()
        for seed,opt,name in itertools.product(args.seeds, args.opts, args.only):
            model,secs = train(ids, vocab_sz, parse(name), opt, args.steps, seed)
            row = dict(data=data, steps=args.steps, opt=opt, seed=seed, name=name, loss=round(token_losses(model, valid, SEQ_LEN).mean().item(), 4), ms=round(1000*secs/args.steps, 1), params=n_params(model), **about(1))
            print(json.dumps(row), flush=True)
            if args.steps < p.get_default('steps'): tried.append(row)
            else:
                rows = [r for r in kept_rows() if any(r[k] != row[k] for k in KEY)] + [row]
                record('modern', rows, render(rows))
    if tried: print(render(tried))

if __name__ == '__main__': main()
