"""What a training step costs: with and without logits, with blocks computed twice, and by optimizer.

Memory: a language model of 4 layers, d_model 256, 8 heads, 8 × 256 tokens, AdamW included; a fresh process for each candidate, the largest resident set above that after the imports.
Optimizers: small learners, the optimizers taking turns in one process. Times are of the processor, so that what else runs on the machine counts little."""
from common import *
from functools import partial
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.optimizer import Adam
from fastai_txf.learn.lm import TransformerLMLearner
from fastai_txf.model.models import TransformerLM
from fastai_txf.train.losses import ChunkedLoss
from fastai_txf.train.optim import adamw, SpareDecay

STEPS = {'full':'all logits', 'chunked':'`ChunkedLoss`', 'twice':'`checkpoint=True`', 'both':'both'}
OPTIMIZERS = {'loop':'plain loop, fused AdamW', 'ours':'`TransformerLMLearner`, `adamw`', 'adamw':'`Learner`, `adamw`', 'adam':"`Learner`, fastai's `Adam`"}

class Batches(list):
    "Batches, as a loader."
    n_inp = 1
    @property
    def dataset(self): return self

def learner(n, bs, sl, vocab, opt_func=adamw, cbs=None, cls=Learner, **kw):
    "A language model's learner on `n` batches of random tokens."
    x = [torch.randint(2, vocab, (bs,sl+1), device=DEVICE) for _ in range(n)]
    learn = cls(DataLoaders(Batches((o[:,:-1], o[:,1:]) for o in x), []), TransformerLM(vocab_sz=vocab, **kw).to(DEVICE), CrossEntropyLossFlat(), opt_func=opt_func, cbs=cbs)
    learn.logger = lambda *args: None
    if hasattr(learn, 'progress'): learn.remove_cb(learn.progress)
    return learn

class Clock(Callback):
    "Processor seconds of each step of training."
    order = 1000
    def before_fit(self): self.times = []
    def before_batch(self): self.start = time.process_time()
    def after_batch(self): self.times.append(time.process_time()-self.start)

# Memory

def step(name, args):
    "Memory and time of a candidate's steps."
    before,clock = peak(),Clock()
    cbs = [clock] + [ChunkedLoss()]*(name in ('chunked','both'))
    learn = learner(args.rounds, 8, args.sl, args.vocab, cbs=cbs, d_model=256, n_heads=8, n_layers=args.layers, max_len=args.sl, checkpoint=name in ('twice','both'))
    learn._do_epoch_validate = lambda *args, **kwargs: None # training alone
    learn.fit(1)
    return dict(candidate=name, vocab=args.vocab, layers=args.layers, sl=args.sl, mb=round(peak()-before), seconds=round(statistics.median(clock.times), 2), steps=args.rounds, **about(args.threads))

def fresh(name, args):
    "`step` in a process of its own."
    return json.loads(from_child('--child', name, *[f'--{o}={getattr(args, o)}' for o in ('rounds','vocab','layers','sl','threads')]))

# Optimizers

def plain_loop(learn):
    "The same model and batches without fastai."
    opt = torch.optim.AdamW(learn.model.parameters(), lr=1e-3, fused=True)
    def run():
        learn.model.train()
        for x,y in learn.dls.train:
            loss = nn.functional.cross_entropy(learn.model(x).flatten(0, 1), y.flatten())
            loss.backward(); opt.step(); opt.zero_grad()
    return run

SIZES = {'2 layers, d_model 64, 8 × 32 tokens, a vocabulary of 500':  dict(n=50, bs=8, sl=32, vocab=500, d_model=64, n_heads=2),
         "the library's defaults, 64 × 72 tokens, a vocabulary of 10,000": dict(n=10, bs=64, sl=72, vocab=10_000)} # fastai's batches

def optimizers(size, args):
    "Milliseconds of a step for each optimizer, in turns."
    def small(opt_func, cls=Learner):
        learn = learner(**SIZES[size], opt_func=opt_func, cbs=[SpareDecay()], cls=cls)
        learn._do_epoch_validate = lambda *args, **kwargs: None
        return learn
    runs = dict(loop=plain_loop(small(adamw)), ours=partial(small(adamw, TransformerLMLearner).fit, 1, 1e-3), adamw=partial(small(adamw).fit, 1, 1e-3), adam=partial(small(Adam).fit, 1, 1e-3))
    times = in_turns(runs, args.rounds, time.process_time)
    return [dict(candidate=k, size=size, ms=1000*statistics.median(ts)/SIZES[size]['n'], ratio=ratio(ts, times['loop']), rounds=args.rounds, **about(args.threads)) for k,ts in times.items()]

# Results

def render(steps, opts):
    "The results as markdown."
    first = steps[0]
    text = '# Training steps\n\nWritten by `python benchmarks/scale.py`.\n\n'
    text += f'A language model of {first["layers"]} layers, d_model 256, 8 heads, vocabulary {first["vocab"]:,}, batches of 8 × {first["sl"]} tokens, AdamW; a fresh process each; seconds of the processor, the median of {first["steps"]} steps.\n\n'
    text += table(steps, {'step':lambda r: STEPS[r['candidate']], 'peak memory, MB':'mb', 'of the first':lambda r: r['mb']/first['mb'], 'seconds':'seconds'}) + '\n'
    for size in SIZES:
        if mine := [r for r in opts if r['size'] == size]: text += f'A small model ({size}), {mine[0]["rounds"]} rounds in turns.\n\n' + table(mine, {'loop':lambda r: OPTIMIZERS[r['candidate']], 'ms a step':'ms', 'more than the plain loop':lambda r: f"{r['ms']-mine[0]['ms']:.2f}", 'times the plain loop':'ratio'}) + '\n'
    text += 'With many words the learner trains without logits (`LeanLoss`), the plain loop and `Learner` with all of them.\n\n'
    return text + ran_with(steps + opts, env=None)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', nargs='+', choices=[*STEPS,'optimizers'], default=[*STEPS,'optimizers'], help='candidates')
    p.add_argument('--rounds', type=int, default=5, help='steps of each memory candidate, rounds of the optimizers')
    for name,default in dict(vocab=60_000, layers=4, sl=256, threads=torch.get_num_threads()).items(): p.add_argument(f'--{name}', type=int, default=default)
    p.add_argument('--child', choices=STEPS, help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.child: return print(json.dumps(step(args.child, args)))
    steps = [fresh(k, args) for k in STEPS if k in args.only]
    for r in steps: print(r['candidate'], r['mb'], 'MB', r['seconds'], 's', flush=True)
    opts = [r for size in SIZES for r in optimizers(size, args)] if 'optimizers' in args.only else []
    if not opts or len(steps) < len(STEPS) or unusual(args, p, 'rounds', 'vocab', 'layers', 'sl'): return print(*steps, *opts, sep='\n')
    record('scale', steps + opts, text := render(steps, opts))
    print(text)

if __name__ == '__main__': main()
