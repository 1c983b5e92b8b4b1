"""The time and memory of a training step: this library beside Hugging Face GPT-2, x-transformers, `nn.TransformerEncoder`, nanoGPT's arrangement and the workshop's model, each as it is and compiled.

One shape for all (see `peers.py`), no dropout, batches of 8 × 256 tokens, fused AdamW, fp32 or bfloat16 by autocast. Times: the candidates take turns, each in a process of its own as a user's would be (in one process they share a heap, and what one leaves there decides how fast another gets its memory), medians over the rounds, ratios of the rounds.
`learner` is what `transformer_lm_learner` takes for a step with the preset `default`, without dropout and with `adamw`, as the peers; `learner_plain` has its own dropout and optimizer, `learner_modern` the preset of a call without fields; each in a `fit` of sixteen steps with all that fastai does around them; the peers' steps stand in plain loops.
Compiled are our blocks, by `compile_for_training` for all lengths, and the peers' whole models, by `torch.compile` for the one length that they see.
Memory: a fresh process for each candidate and length, the largest resident set of four steps (sixteen of a learner) above that after the imports (Linux only); at 2,048 tokens the median of three.
The results of other processors are kept."""
import tempfile
from contextlib import nullcontext, redirect_stdout
from functools import partial
from fastai.text.core import BaseTokenizer
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.text.stream import LMDataLoaders
from fastai_txf.train.optim import adamw
from peers import *

NAMES = {'ours':'`TransformerLM`, learned positions', 'rotary':'`TransformerLM`, rotary positions', 'chunked':'`TransformerLM`, learned positions, `chunked_cross_entropy`', 'nano':"nanoGPT's arrangement", 'hf':'Hugging Face GPT-2', 'torch':'`nn.TransformerEncoder`', 'x':'x-transformers', 'workshop':"the workshop's model"}
MAKE = dict(ours=lambda n: ours(n, None, positions='learned', bias=False, p=0., emb_p=0.), rotary=lambda n: ours(n, None, positions='rotary', bias=False, p=0., emb_p=0.), nano=nano, chunked=lambda n: MAKE['ours'](n),
            hf=lambda n: hugging_face(n, embd_pdrop=0., attn_pdrop=0., resid_pdrop=0.), torch=TorchLM, x=x_transformers, workshop=workshop)
LENGTHS = {512:1, 1024:1, 2048:3, 4096:1} # tokens in one text, for memory: how often it is measured

COMPILED = {f'{k}_compiled':k for k in ('ours','rotary','nano','hf','torch','x')}
NAMES |= {k:f'{NAMES[o]}, compiled' for k,o in COMPILED.items()}
BF16 = {f'{k}_bf16{c}':(k, bool(c)) for k in ('nano','hf','x') for c in ('','_compiled')} # peers in bfloat16
NAMES |= {k:f"{NAMES[o]}, bf16{', compiled' if c else ''}" for k,(o,c) in BF16.items()}
SAME = dict(positions='learned', bias=False)                                # the shape of the peers to the last weight
AS_PEERS = dict(config='default', p=0., emb_p=0., opt_func=adamw)            # no dropout, and the optimizer of the peers
LEARNERS = dict(learner=AS_PEERS, learner_same=AS_PEERS|SAME, learner_bf16=dict(half=True, **AS_PEERS, **SAME), learner_bf16_compiled=dict(half=True, compile=True, **AS_PEERS, **SAME),
                learner_plain=dict(), learner_modern=dict(config='modern'))       # what it takes for these sizes, and what it takes where no size is asked for
NAMES |= dict(learner_plain='`transformer_lm_learner` with sizes alone: dropout, Muon', learner_modern='`transformer_lm_learner`, preset `modern` with its Muon',
              learner='`transformer_lm_learner`, rotary positions', learner_same='`transformer_lm_learner`, learned positions', learner_bf16='`transformer_lm_learner`, learned positions, `to_bf16`',
              learner_bf16_compiled='`transformer_lm_learner`, learned positions, `to_bf16`, `compile=True`')
FIT = 16 # steps of a fit

def make(name, sl):
    "A candidate's model."
    torch.manual_seed(0)
    if name in MAKE: return MAKE[name](sl)
    model = MAKE[COMPILED[name]](sl)
    return compile_for_training(model) if isinstance(model, TransformerLM) else torch.compile(model)

def fitter(name, bs, sl):
    "A fit of a few steps, as a learner does it."
    words = [f'w{i}' for i in range(VOCAB)]
    text = ' '.join(words + [words[i] for i in torch.randint(VOCAB, (2*FIT*bs*sl,)).tolist()])
    dls = LMDataLoaders.from_texts([text], [text[:1000*sl]], tok_tfm=BaseTokenizer(), rules=[], starts=False, min_freq=1, max_vocab=VOCAB-8, bs=bs, seq_len=sl)
    options = dict(LEARNERS[name])
    half = options.pop('half', False)
    torch.manual_seed(0)
    learn = transformer_lm_learner(dls, d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, max_len=sl, **options)
    if half: learn.to_bf16()
    def fit():
        with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-4, cbs=StopAfter(FIT))
        assert math.isfinite(learn.recorder.losses[-1]), name
    fit.params,fit.steps = n_params(learn.model),FIT
    return fit

def stepper(name, bs, sl):
    "A training step of a candidate, or a few of them: as many as its `steps` say."
    if name in LEARNERS: return fitter(name, bs, sl)
    of,compiled = BF16.get(name, (name,False))
    half = (lambda: torch.autocast(DEVICE, torch.bfloat16)) if name in BF16 else nullcontext
    model = make(of, sl).to(DEVICE)
    if compiled: model = torch.compile(model)
    ids = torch.randint(2, VOCAB, (bs,sl+1), device=DEVICE)
    x,y = ids[:,:-1], ids[:,1:]
    def full_loss():
        with half(): out = model(x)
        return F.cross_entropy(getattr(out, 'logits', out).flatten(0, 1).float(), y.flatten())
    def no_logits(): return chunked_cross_entropy(model.hidden(x), model.head.weight, y)
    step = train_step(name, model, no_logits if name == 'chunked' else full_loss)
    step.steps = 1
    return step

def runner(name, clock):
    "What a `Runner` starts: the first step at once, others when a line comes in."
    say = partial(print, file=sys.stdout, flush=True)
    with redirect_stdout(sys.stderr):                                         # what else is printed is no answer
        step = stepper(name, 8, 256)
        say(json.dumps(dict(first=seconds(step), params=step.params)))
        for _ in sys.stdin: say(seconds(step, clock=CLOCKS[clock])/step.steps)

class Runner:
    "A candidate in a process of its own, which waits between its steps."
    def __init__(self, name, args):
        cmd = [sys.executable, sys.argv[0], '--runner', name, '--threads', str(args.threads), '--clock', args.clock]
        self.process = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = name
        self.about = self.read()
        print(name, self.about, flush=True)

    def read(self):
        line = self.process.stdout.readline()
        if not line: raise RuntimeError(f'{self.name}: its process ended with {self.process.wait()}')
        return json.loads(line)

    def step(self):
        "Seconds of a step."
        print(file=self.process.stdin, flush=True)
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()

def race(args):
    "A row for each candidate."
    runs = {k:Runner(k, args) for k in args.only}
    secs = {k:[] for k in runs}
    for i in range(args.rounds+1):                                            # the first round warms up
        for k,r in runs.items(): secs[k] += [r.step()][:i]
    for r in runs.values(): r.end()
    rivals = [k for k in secs if k in ('nano','hf','torch','x')]
    best = min(rivals, key=lambda k: statistics.median(secs[k]), default=None)
    times = lambda ts, base: ratio(ts, secs[base]) if base in secs else None
    for k,ts in secs.items():
        yield dict(candidate=k, seconds=statistics.median(ts), ratio=times(ts, 'ours'), ratio_compiled=times(ts, 'ours_compiled'), speed=best and ratio(secs[best], ts), first=round(runs[k].about['first'], 1),
                   tokens_per_s=round(8*256/statistics.median(ts)), params=runs[k].about['params'], rounds=args.rounds, clock=args.clock, **about(args.threads, 'transformers', 'x-transformers'))

def memory(name, sl, args):
    "Peak MB of a candidate's steps on one text of `sl` tokens, in fresh processes."
    return round(statistics.median(int(from_child('--child', name, sl, '--threads', args.threads)) for _ in range(LENGTHS[sl])))

def child(name, sl):
    "What `memory` runs."
    before,step = peak(),stepper(name, 1, int(sl))
    for _ in range(max(1, 4//step.steps)): step()
    print(round(peak()-before))

def tables(rows):
    "The results of one processor as markdown."
    cols = {'model':lambda r: NAMES[r['candidate']], 'seconds a step':lambda r: f"{r['seconds']:.3f}", 'tokens/s':'tokens_per_s', 'times `TransformerLM`':'ratio'}
    memory = {'parameters':'params', **{f'MB at {n:,}':lambda r, n=n: r.get('mb', {}).get(str(n)) for n in LENGTHS}}
    first = {'times `TransformerLM`, compiled':'ratio_compiled', 'seconds of the first step':'first'}
    plain,compiled,half = ([r for r in rows if r['candidate'] in o] for o in ({*MAKE, *(k for k in LEARNERS if 'bf16' not in k)}, COMPILED, [k for k in NAMES if 'bf16' in k]))
    speed = {"times the speed of the fastest peer in fp32, not compiled":'speed'}
    return f'## {rows[0]["machine"]}\n\nSeconds ({rows[0]["clock"]}): medians of {rows[0]["rounds"]} rounds in turns, plain and compiled.\n\n{table(plain, cols | speed | memory)}\n' \
           f'Compiled: our blocks, for all lengths (`compile_for_training`); the peers whole, for this length (`torch.compile`).\n\n{table(compiled, cols | first)}\n' \
           f'In bfloat16: autocast with weights in fp32; compiled as above.\n\n{table(half, cols | speed | memory | first)}\n{ran_with(rows, env=None)}'

def render(rows):
    "The results as markdown, a part for each processor."
    return f'# A training step\n\nWritten by `python benchmarks/train.py`. 4 layers, d_model {WIDTH}, {HEADS} heads, vocabulary {VOCAB:,}, fp32, fused AdamW where no other is named, 8 × 256 tokens. ' \
           'MB: the peak above the imports, optimizer included, on one text of so many tokens.\n\n' + '\n'.join(map(tables, by_machine(rows)))

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', nargs='+', choices=NAMES, default=list(NAMES), help='candidates; nothing is recorded for a part of them')
    p.add_argument('--rounds', type=int, default=9, help='rounds of the race; nothing is recorded for fewer than five')
    p.add_argument('--clock', choices=CLOCKS, default='wall', help='processor: seconds of the processor, for a CPU that others use, too, with --threads 1')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    p.add_argument('--child', nargs=2, help=argparse.SUPPRESS)
    p.add_argument('--runner', help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    if args.child: return child(*args.child)
    if args.runner: return runner(args.runner, args.clock)
    with tempfile.TemporaryDirectory() as cache:                              # nothing has been compiled before
        os.environ['TORCHINDUCTOR_CACHE_DIR'] = cache
        rows = list(race(args))
    for r in rows: print(r['candidate'], f"{r['seconds']:.3f} s", r['ratio'], r['ratio_compiled'], flush=True)
    for r in rows:
        if 'compiled' in r['candidate']: continue                             # the compiler itself would count
        r['mb'] = {str(n):memory(r['candidate'], n, args) for n in LENGTHS}
        print(r['candidate'], r['mb'], flush=True)
    if len(rows) == len(NAMES) and args.rounds >= 5: record_machine('train', rows, render)
    print(tables(rows))

if __name__ == '__main__': main()
