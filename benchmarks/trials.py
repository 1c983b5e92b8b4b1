"""What small labelled data may need in training: each way in the same processor time, on a thousand texts of a set, scored on two thousand others.

The sets are those of sets.py; test parts are not read. The plain way is the transformer of `best_classifier`; what it took of one core is the time of
every other way. Each row says how well the transformer does alone, and joined with the counted words (their shares are chosen on the scored texts, for
all ways alike). Rows of results/trials.jsonl are not run again."""
import contextlib, dataclasses
from fastai.text.all import *
from fastai_txf.all import *
from fastai_txf.model.wide import hash_ids, hash_words
from fastai_txf.recipes.best import _Towers
from fastai_txf.recipes.heldout import choose_shares
from fastai_txf.recipes.reading import LabelledText
from fastai_txf.text.special import leading_space
from fastai_txf.train.counting import loss_of
from common import *
from sets import SETS, load

# Ways that run the model more than once

@contextlib.contextmanager
def same_draws(state):
    "Draw what was drawn from `state` on, and go on afterwards as if nothing had been drawn."
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try: yield
    finally: torch.set_rng_state(now)

def kl(p, q):
    "The mean divergence of logits `q` from logits `p`."
    return F.kl_div(q.log_softmax(-1), p.log_softmax(-1), reduction='batchmean', log_target=True)

class Perturb(Callback):
    "A second loss under a small change of the embeddings: the worst for the label, or (`virtual`) the worst for the prediction."
    def __init__(self, eps=0.1, virtual=False): store_attr(); self.delta,self.out = None,None
    def before_fit(self): self.hook = self.model.encoder.emb.register_forward_hook(self.add)
    def after_fit(self): self.hook.remove()
    def add(self, module, args, out):
        if not self.model.training: return
        self.out = out if self.delta is None else out + self.delta
        return self.out
    def before_batch(self): self.state = torch.get_rng_state()
    def scaled(self, g, size):
        "`g` with the length `size` for each text."
        return g*size/g.norm(dim=(1,2), keepdim=True).clamp(min=1e-12)
    def again(self, delta):
        self.delta = delta
        with same_draws(self.state): out = self.model(*self.xb)
        self.delta = None
        return out
    def after_loss(self):
        if not self.training: return
        e,size = self.out, self.out.detach().norm(dim=(1,2), keepdim=True)
        if self.virtual:
            d = self.scaled(torch.randn_like(e), 1e-2*size).detach().requires_grad_()
            g, = torch.autograd.grad(kl(self.pred.detach(), self.again(d)), d)
            more = kl(self.pred.detach(), self.again(self.scaled(g, self.eps*size)))
        else:
            g, = torch.autograd.grad(self.loss_grad, e, retain_graph=True)
            more = self.loss_func(self.again(self.scaled(g, self.eps*size)), *self.yb)
        self.learn.loss_grad = self.loss_grad + more

class RDrop(Callback):
    "Two passes with other dropout shall agree (Liang et al. 2021)."
    def __init__(self, alpha=1.): store_attr()
    def after_loss(self):
        if not self.training: return
        other = self.model(*self.xb)
        both = (self.loss_grad + self.loss_func(other, *self.yb))/2
        self.learn.loss_grad = both + self.alpha*(kl(self.pred, other) + kl(other, self.pred))/4

class MixHidden(Callback):
    "Mix the pooled vectors of two texts, and their losses (Guo et al. 2019)."
    def __init__(self, alpha=0.4): store_attr()
    def before_fit(self): self.hook = self.model.pooler.register_forward_pre_hook(self.mix)
    def after_fit(self): self.hook.remove()
    def before_batch(self):
        self.share = np.random.beta(self.alpha, self.alpha)
        self.order_ = torch.randperm(len(self.xb[0]))
    def mix(self, module, args):
        if self.model.training: return (self.share*args[0] + (1-self.share)*args[0][self.order_],)
    def after_loss(self):
        if not self.training: return
        other = self.loss_func(self.pred, self.yb[0][self.order_])
        self.learn.loss_grad = self.share*self.loss_grad + (1-self.share)*other

class Average(Callback):
    "The model ends with an average of the weights on the way."
    def __init__(self, decay=0.995): store_attr()
    def before_fit(self): self.mean = [p.detach().clone() for p in self.model.parameters()]; self.n = 0
    def after_step(self):
        self.n += 1
        decay = min(self.decay, self.n/(self.n+10))
        for m,p in zip(self.mean, self.model.parameters()): m.lerp_(p.detach(), 1-decay)
    def after_fit(self):
        with torch.no_grad():
            for m,p in zip(self.mean, self.model.parameters()): p.copy_(m)

class Replace(Callback):
    "Other tokens of the batch in the place of some."
    def __init__(self, p=0.1): store_attr()
    def before_batch(self):
        if not self.training: return
        x = self.xb[0].clone()
        real = x > 8
        gone = real & (torch.rand(x.shape) < self.p)
        x[gone] = x[real][torch.randint(int(real.sum()), (int(gone.sum()),))]
        self.learn.xb = (x,)

# Ways that change the model

class Grams(nn.Module):
    "Vectors for hashed pairs of tokens, or for whole words, to be added to those of tokens."
    def __init__(self, model, starts, words=False, n=2**13, p=0.2):
        super().__init__()
        self.table = nn.Embedding(n, model.config.d_model)
        nn.init.zeros_(self.table.weight)
        self.starts,self.words,self.n,self.p = starts,words,n,p
    def forward(self, module, args, out):
        x = args[0]
        if self.words:
            real = x != 1
            h,_ = hash_words(x, real, self.starts)
            begins = real & self.starts[x]
            begins[:,0] = True
            h = h.gather(1, (begins.cumsum(1)-1).clamp(min=0))
        else: h = F.pad(hash_ids(hash_ids(x[:,:-1]), hash_ids(x[:,1:])), (1, 0))
        rows = (h >> 20).remainder(self.n)
        e = self.table(rows)
        if self.training: e = e*(torch.rand(rows.shape) > self.p)[...,None]
        return out + e

def add_grams(**kw):
    def change(learn):
        enc = learn.model.encoder
        enc.grams = Grams(learn.model, learn.model.wide_starts, **kw)
        enc.emb.register_forward_hook(enc.grams)
        learn.splitter = trainable_params
    return change

WAYS = dict(
    plain={}, twice=dict(times=2), adversarial=dict(cbs=lambda: Perturb(0.1)), virtual=dict(cbs=lambda: Perturb(0.1, True)),
    adversarial3=dict(cbs=lambda: Perturb(0.3)), rdrop=dict(cbs=lambda: RDrop(1.)), rdrop_long=dict(cbs=lambda: RDrop(1.), times=1.35), rdrop4=dict(cbs=lambda: RDrop(4.)),
    mixup=dict(cbs=lambda: MixHidden(0.4)), ema=dict(cbs=lambda: Average(0.995)), ema_flat=dict(cbs=lambda: Average(0.995), flat=True),
    smooth=dict(loss_func=LabelSmoothingCrossEntropyFlat(eps=0.1)), no_noise=dict(config=dict(token_p=0., word_p=0.)),
    more_noise=dict(config=dict(token_p=0.4, word_p=0.3)), replace=dict(cbs=lambda: Replace(0.1)),
    pairs=dict(change=add_grams()), words=dict(change=add_grams(words=True)))
NAMES = dict(
    plain='as in `best_classifier`', twice='the same, twice the time', adversarial='adversarial change of embeddings, a tenth of their length',
    adversarial3='the same, three tenths', virtual='virtual adversarial, a tenth', rdrop='R-Drop, 1', rdrop_long='the same, a third more time (as many passes)', rdrop4='R-Drop, 4', mixup='mixup of pooled vectors, 0.4',
    ema='average of weights, decay 0.995', ema_flat='the same under a constant rate', smooth='label smoothing 0.1',
    no_noise='no token or word left out', more_noise='0.4 of tokens and 0.3 of words left out (0.3, 0.2)',
    replace='and a tenth of the tokens replaced by others', pairs='vectors of hashed pairs added', words='vectors of hashed words added')

PASSES,N_TRAIN,N_HELD = 20, 1000, 2000

class Unscored(Callback):
    "Nothing is validated on the way."
    def before_validate(self): raise CancelValidException()

def prepare(args, name):
    "Texts of a set's training part, cut into pieces; those to score are fold 0; what the counted words say of them."
    df,_ = load(args.data, name, 0)
    n_train,n_held = (args.n, args.n) if args.n else (N_TRAIN, N_HELD)
    df = df.drop_duplicates('text').sample(frac=1, random_state=args.seed)[:n_train+n_held].reset_index(drop=True)
    text = LabelledText('pieces', df, dict(text_col='text', label_col='label', tok_tfm=BPETokenizer(2000), rules=[leading_space]))
    with no_random(0): text.count()
    text.fold = (np.arange(len(df)) < n_train).astype(int)
    held = (text.fold == 0).nonzero()[0]
    return text, held, text.linear((text.fold == 1).nonzero()[0], held)

def train(text, way, seed, seconds):
    "A transformer trained without fold 0."
    way = WAYS[way]
    with no_random(seed):
        towers = _Towers(text, None, seed, None, print)
        towers.config = dataclasses.replace(towers.config, **way.get('config', {}))
        towers.bs = 16
        learn = towers.learner(0)
        if 'loss_func' in way: learn.loss_func = way['loss_func']
        learn.model.wide_starts = text.wide().starts
        if 'change' in way: way['change'](learn)
        cbs = [Unscored(), *([way['cbs']()] if 'cbs' in way else [])]
        with learn.no_bar(), learn.no_logging():
            if seconds is None: learn.fit_one_cycle(PASSES, cbs=cbs)
            elif way.get('flat'): learn.fit_minutes_flat(seconds/60, cbs)
            else: learn.fit_one_cycle(10_000, cbs=[core_minutes(way.get('times', 1)*seconds/60), *cbs])
    return learn

@patch
def fit_minutes_flat(self:Learner, minutes, cbs):
    "A rise over the first twentieth, then one rate."
    sched = combine_scheds([0.05,0.95], [SchedLin(self.lr/25, self.lr), SchedLin(self.lr, self.lr)])
    self.fit(10_000, cbs=[core_minutes(minutes), ParamScheduler(dict(lr=sched)), *cbs])

def measured(text, learn, held, counted):
    "Accuracy and loss alone and joined."
    deep,y = learn.outputs([text.ids[i] for i in held]), text.y[held]
    right = lambda o: 100*float((o.argmax(1) == y).float().mean())
    a,b = choose_shares(deep, counted, y)
    both = a*deep + b*counted
    alone = min(loss_of(s*deep, y, 'category') for s in (0.2,0.3,0.4,0.5,0.7,1))
    row = {'accuracy':right(deep), 'loss':alone, 'joined':right(both), 'joined loss':loss_of(both, y, 'category'), 'shares':[a,b], 'counted':right(counted)}
    return row, deep

def main():
    p = options(__doc__, WAYS, recipes=False)
    p.add_argument('--data', type=Path, required=True, help='folder of the sets')
    p.add_argument('--sets', nargs='+', choices=SETS, default=list(SETS))
    p.add_argument('--seed', type=int, default=0)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    file = out_file(args, 'trials')
    for name in args.sets:
        key = lambda w: dict(way=w, set=name, seed=args.seed)
        rows = lambda: [r for r in read_rows(file) if (r['set'],r['seed']) == (name,args.seed)]
        left = [w for w in args.only if not any(all(r[k] == v for k,v in key(w).items()) for r in rows())]
        if not left: continue
        text,held,counted = prepare(args, name)
        for way in left:
            plain = [r['core-seconds'] for r in rows() if r['way'] == 'plain']
            if file and way != 'plain' and not plain: raise SystemExit(f'{way} gets the time of the plain way: run plain on {name}, seed {args.seed}, first')
            start = time.process_time()
            learn = train(text, way, args.seed, plain[0] if plain else None)
            spent = time.process_time()-start
            row,_ = measured(text, learn, held, counted)
            row = {**key(way), **row, 'core-seconds':spent, 'passes':learn.epoch+1, **about(args.threads)}
            print({k:round(v, 3) if isinstance(v, float) else v for k,v in row.items() if k not in ('machine','versions','commit','date')}, flush=True)
            if file: add_row(file, row)
    if file: file.with_suffix('.md').write_text(render(read_rows(file)))

def render(rows):
    "The results as markdown: each way beside the plain one on the same fold."
    def lead(way, s, key):
        base = {r['seed']:r for r in rows if r['way'] == 'plain' and r['set'] == s}
        mine = [(r[key], base[r['seed']][key]) for r in rows if r['way'] == way and r['set'] == s]
        return [statistics.fmean(o) for o in zip(*mine)] if mine else None
    def show(way, s, key, n):
        got = lead(way, s, key)
        if not got: return None
        return f'{got[0]:.{n}f}' if way == 'plain' else f'{got[0]-got[1]:+.{n}f}'
    text = ('# Ways to train on small labelled sets\n\nWritten by `python benchmarks/trials.py --data FOLDER --threads 1`. A thousand texts of each training part are trained on and two thousand others scored; '
            'test parts are not read. Every way has the processor time of the first one (a time budget, so costlier ways make fewer passes). The first line has the figures, the others the differences from it on the same texts; '
            'the standard error of a difference in accuracy is about 0.7 for a run.\n')
    for key,head,n in (('accuracy','The transformer alone, accuracy', 1), ('joined','Joined with the counted words, accuracy', 1), ('joined loss','Joined, loss (lower is better)', 4)):
        lines = []
        for w in WAYS:
            mine = [r for r in rows if r['way'] == w]
            if not mine: continue
            diffs = [lead(w, s, key) for s in SETS]
            mean = None if None in diffs else statistics.fmean(a-b*(w != 'plain') for a,b in diffs)
            lines.append({'way':NAMES[w], **{s:show(w, s, key, n) for s in SETS}, 'mean':None if mean is None else f'{mean:.{n}f}' if w == 'plain' else f'{mean:+.{n}f}',
                          'runs':len(mine), 'passes':f"{statistics.fmean(r['passes'] for r in mine):.0f}"})
        text += f'\n## {head}\n\n' + table(lines, {'way':'way', **{t:s for s,t in SETS.items()}, 'mean':'mean', 'runs':'runs', 'passes':'passes'})
    return text + '\n' + ran_with(rows, env=None)

if __name__ == '__main__': main()
