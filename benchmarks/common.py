"What the benchmarks share: the tutorial model they compare with, characters to learn, counting, one process for each run, tables."
import argparse, ast, json, math, os, platform, re, statistics, subprocess, sys, time
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
import torch, torch.nn as nn, torch.nn.functional as F
from fastai.callback.core import Callback, CancelFitException, CancelValidException
from fastai.callback.schedule import ParamScheduler, SchedCos, SchedLin, combine_scheds
from fastai.data.external import fastai_path
from fastcore.basics import groupby

HERE = Path(__file__).parent
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu' # CUDA_VISIBLE_DEVICES= measures the CPU beside a GPU
MALLOC = dict(MALLOC_MMAP_THRESHOLD_='4294967296', MALLOC_TRIM_THRESHOLD_='8589934592', MALLOC_TOP_PAD_='268435456')

# The tutorial's model, written out without this library

class WideAttention(nn.Module):
    "Self-attention in which each head sees and keeps the whole vector."
    def __init__(self, k, heads, causal):
        super().__init__()
        self.heads,self.causal = heads,causal
        self.tokeys,self.toqueries,self.tovalues = (nn.Linear(k, k*heads, bias=False) for _ in range(3))
        self.unifyheads = nn.Linear(k*heads, k)

    def forward(self, x):
        b,t,k = x.shape
        q,key,v = (f(x).view(b, t, self.heads, k).transpose(1, 2) for f in (self.toqueries, self.tokeys, self.tovalues))
        w = (q/k**0.25) @ (key/k**0.25).transpose(-2, -1)                   # (b, heads, t, t)
        if self.causal: w = w.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -math.inf)
        return self.unifyheads((w.softmax(-1) @ v).transpose(1, 2).reshape(b, t, k*self.heads))

class WideBlock(nn.Module):
    "Attention and a ReLU feed-forward, each with a residual and a norm after it."
    def __init__(self, k, heads, causal):
        super().__init__()
        self.attention = WideAttention(k, heads, causal)
        self.norm1,self.norm2 = nn.LayerNorm(k),nn.LayerNorm(k)
        self.ff = nn.Sequential(nn.Linear(k, 4*k), nn.ReLU(), nn.Linear(4*k, k))

    def forward(self, x):
        x = self.norm1(self.attention(x) + x)
        return self.norm2(self.ff(x) + x)

class WorkshopModel(nn.Module):
    "Token and position embeddings, wide blocks; the mean over the batch's first `max_len` columns, or (causal) every token, to logits."
    def __init__(self, vocab_sz, n_out, k=256, heads=8, depth=4, max_len=256, causal=False):
        super().__init__()
        self.max_len,self.causal = max_len,causal
        self.token_emb,self.pos_emb = nn.Embedding(vocab_sz, k),nn.Embedding(max_len, k)
        self.tblocks = nn.Sequential(*[WideBlock(k, heads, causal) for _ in range(depth)])
        self.toprobs = nn.Linear(k, n_out)

    def forward(self, x):
        x = x[:,:self.max_len]
        x = self.tblocks(self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1], device=x.device)))
        return self.toprobs(x if self.causal else x.mean(1))

# nanoGPT's arrangement, written out without this library

class PlainBlock(nn.Module):
    "Causal attention and a GELU feed-forward, each behind a norm and beside a residual."
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1,self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv,self.out = nn.Linear(width, 3*width, bias=False),nn.Linear(width, width, bias=False)
        self.ff = nn.Sequential(nn.Linear(width, 4*width, bias=False), nn.GELU(), nn.Linear(4*width, width, bias=False))

    def forward(self, x):
        b,t,k = x.shape
        q,key,v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, key, v, is_causal=True).transpose(1, 2).reshape(b, t, k))
        return x + self.ff(self.norm2(x))

class PlainModel(nn.Module):
    "Learned positions, no biases, tied output."
    def __init__(self, vocab_sz, width, heads, layers, max_len):
        super().__init__()
        self.emb,self.pos = nn.Embedding(vocab_sz, width),nn.Embedding(max_len, width)
        self.blocks,self.norm = nn.Sequential(*[PlainBlock(width, heads) for _ in range(layers)]),nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab_sz, bias=False)
        for p in self.parameters(): nn.init.normal_(p, std=0.02) if p.ndim > 1 else None
        for b in self.blocks:
            for m in (b.out, b.ff[2]): nn.init.normal_(m.weight, std=0.02/(2*layers)**0.5)
        self.head.weight = self.emb.weight

    def forward(self, x): return self.head(self.norm(self.blocks(self.emb(x) + self.pos.weight[:x.shape[1]])))

# Characters of tinyshakespeare, and so many steps of training

def read_shakespeare():
    "The texts for training and validation: nine tenths and the last one."
    file = fastai_path('data')/'tinyshakespeare'/'input.txt'
    if not file.exists(): raise FileNotFoundError(f'{file} is missing: put tinyshakespeare (github.com/karpathy/char-rnn, data/tinyshakespeare/input.txt) there')
    text = file.read_text(encoding='utf8')
    n = int(0.9*len(text))
    return text[:n], text[n:]

@torch.no_grad()
def token_losses(model, ids, seq_len):
    "Losses of the tokens after those of all disjoint windows, `(n_windows, seq_len)`."
    n = (len(ids)-1)//seq_len
    x,y = (ids[i:i+n*seq_len].view(n, seq_len).split(16384//seq_len) for i in (0,1))
    return torch.cat([F.cross_entropy(model(b).transpose(1, 2), t, reduction='none') for b,t in zip(x, y)])

class StopAfter(Callback):
    "End the training after so many steps."
    order,needs_logits = 70,False
    def __init__(self, steps): self.steps = steps
    def after_batch(self):
        if self.training and self.train_iter >= self.steps: raise CancelFitException()
    def before_validate(self): raise CancelValidException()

def core_minutes(minutes):
    "A `TimeBudget` by this process's own time: other jobs on the machine do not count."
    from fastai_txf.train.schedule import TimeBudget
    class Budget(TimeBudget):
        @property
        def pct(self): return (self.used + time.process_time() - self.start)/(60*self.minutes)
        def before_train(self): self.start = time.process_time()
        def after_train(self):
            self.used += time.process_time() - self.start
            self.recorder.cancel_train = False
    return Budget(minutes)

def fit_steps(learn, steps, lr, **kwargs):
    "Fit for so many steps: the rate rises over the first twentieth and falls along a cosine to its hundredth."
    n_epoch = -(-steps//len(learn.dls.train))
    scheds = combine_scheds([0.05,0.95], [SchedLin(0., lr), SchedCos(lr, lr/100)])
    share = n_epoch*len(learn.dls.train)/steps                              # a schedule runs over whole epochs
    with learn.no_bar(), learn.no_logging():
        learn.fit(n_epoch, cbs=[ParamScheduler(dict(lr=lambda pos: scheds(min(1., pos*share)))), StopAfter(steps)], **kwargs)

# Counting

class Count(Callback):
    "Count the texts, the real tokens and the seconds of training."
    def __init__(self, pad_idx=1): self.pad_idx = pad_idx
    def before_fit(self): self.texts,self.tokens,self.seconds,self.core_seconds = 0,0,0.,0.
    def before_train(self): self.start,self.core_start = time.perf_counter(),time.process_time()
    def after_train(self):
        self.seconds += time.perf_counter() - self.start
        self.core_seconds += time.process_time() - self.core_start
    def before_batch(self):
        if not self.training: return
        self.texts += len(self.xb[0])
        self.tokens += int((self.xb[0] != self.pad_idx).sum())

    @property
    def row(self): return dict(tokens=self.tokens, tokens_per_s=round(self.tokens/self.seconds), minutes=round(self.seconds/60, 2), core_minutes=round(self.core_seconds/60, 2))

def n_params(model): return sum(p.numel() for p in model.parameters() if p.requires_grad)

def peak():
    "The most MB of GPU memory in tensors; without a GPU the largest resident set of this process, on Linux. (`ru_maxrss` would begin with that of the process that started this one.)"
    if DEVICE == 'cuda': return torch.cuda.max_memory_allocated()/2**20
    return int(re.search(r'VmHWM:\s*(\d+)', Path('/proc/self/status').read_text())[1])/1024

# Where and with what

def cpu():
    "The processor's name; that of a virtual machine often says no more than the maker, so family and model stand behind it."
    info = Path('/proc/cpuinfo')
    said = dict(re.findall(r'^([^:\t\n]+?)\s*:\s*(.*)$', info.read_text(), re.M)) if info.exists() else {}
    name = said.get('model name')
    if not name: return platform.processor() or platform.machine()
    return name if re.search(r'\d', name) else ' '.join([name, *(f'{k.split()[-1]} {said[k]}' for k in ('cpu family', 'model') if k in said)])

def features():
    "What the processor has for products of 16 and 8 bits, by the names of `lscpu`: an empty string where none is known."
    info = Path('/proc/cpuinfo')
    flags = re.search(r'^flags\s*:(.*)$', info.read_text(), re.M) if info.exists() else None
    known = 'avx2 avx512f avx512_bf16 avx512_vnni amx_bf16 amx_int8'.split()
    return ' '.join(f for f in known if flags and f in flags[1].split())

def commit():
    "The commit, with a + if tracked files differ from it."
    def git(*args): return subprocess.run(['git', '-C', str(HERE), *args], capture_output=True, text=True).stdout.strip()
    return git('rev-parse', '--short', 'HEAD') + ('+' if git('status', '--porcelain', '-uno') else '')

def about(threads, *more):
    "Machine, versions (of the packages `more`, too) and commit, for a row."
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    packages = ', '.join(f'{p} {version(p)}' for p in ('torch', 'fastai', 'scikit-learn', 'spacy', *more))
    gpu = f'{torch.cuda.get_device_name()}, ' if DEVICE == 'cuda' else ''
    has = f' ({features()})' if features() else ''
    return dict(machine=f'{gpu}{cpu()}{has}, {cores} cores, {threads} threads', versions=f'Python {platform.python_version()}, {packages}',
                commit=commit(), date=time.strftime('%Y-%m-%d'))

# One process for each run

def options(doc, names, minutes=None, recipes=True):
    "The options that the benchmarks share; `--set` where candidates have recipes."
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--only', nargs='+', choices=names, default=list(names), help='candidates')
    if minutes is not None: p.add_argument('--minutes', type=float, default=minutes, help='minutes of training for each candidate and seed')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    if recipes: p.add_argument('--set', nargs='+', default=[], metavar='NAME=VALUE', help='change the recipe of the candidates run: lr=1e-3 p=0.2')
    p.add_argument('--n', type=int, default=None, help='try the script on so many texts; nothing is recorded unless --out is given')
    p.add_argument('--out', type=Path, default=None, help='folder of the results (default: benchmarks/results)')
    p.add_argument('--child', action='store_true', help=argparse.SUPPRESS)
    return p

def out_file(args, name):
    "Where the results go; None when only trying."
    out = args.out or (None if args.n else HERE/'results')
    return out and out/f'{name}.jsonl'

def change(recipe, settings):
    "`recipe` with `NAME=VALUE` settings in place: known top-level names there, others among the model's."
    recipe = {**recipe, 'model':dict(recipe['model'])}
    for s in settings:
        name,value = s.split('=', 1)
        try: value = ast.literal_eval(value)
        except (ValueError, SyntaxError): pass
        (recipe if name in recipe else recipe['model'])[name] = value
    return recipe

def run_alone(name, seed):
    "Run this script again for one candidate and seed in a fresh process, with the same allocator settings for all."
    cmd = [sys.executable, *sys.argv, '--only', name, '--seeds', str(seed), '--child']
    print(f'== {name}, seed {seed}', flush=True)
    subprocess.run(cmd, env={**os.environ, **MALLOC}, check=True)

def run_all(runs, args, file, ask, run, render):
    "`do` each candidate and seed of `runs`, then write the table."
    for name,seed in runs: do(name, seed, args, file, ask, run)
    if file and not args.child: file.with_suffix('.md').write_text(render(read_rows(file)))

def record(name, rows, text, folder=HERE/'results'):
    "Put `rows` and their table where the results of all scripts are."
    folder.mkdir(parents=True, exist_ok=True)
    (folder/f'{name}.jsonl').write_text(''.join(json.dumps(r)+'\n' for r in rows))
    (folder/f'{name}.md').write_text(text)

def by_machine(rows):
    "The rows of each machine, in the order in which they came first."
    return list(groupby(rows, itemgetter('machine')).values())

def record_machine(name, rows, render):
    "As `record`, in place of former rows of this machine; those of others are kept."
    others = [r for r in read_rows(HERE/'results'/f'{name}.jsonl') if r['machine'] != rows[0]['machine']]
    record(name, others+rows, render(others+rows))

# Candidates in one process

CLOCKS = dict(wall=time.perf_counter, processor=time.process_time)

def seconds(f, *args, clock=time.perf_counter):
    "How long a call takes, the GPU's part included."
    start = clock()
    f(*args)
    if DEVICE == 'cuda': torch.cuda.synchronize()
    return clock() - start

def in_turns(runs, rounds, clock=time.perf_counter):
    "Seconds of each function in each round, after a round that warms up."
    times = {k:[] for k in runs}
    for r in range(rounds+1):
        for k,f in runs.items():
            spent = seconds(f, clock=clock)
            if r: times[k].append(spent)
    return times

def ratio(times, base):
    "The median of the rounds' ratios."
    return statistics.median(a/b for a,b in zip(times, base))

def from_child(*args):
    "The last line that this script prints with `args`, in a process of its own."
    return subprocess.run([sys.executable, sys.argv[0], *map(str, args)], check=True, capture_output=True, text=True).stdout.splitlines()[-1]

# Results

def unusual(args, parser, *names):
    "Whether an option of these has another value than the usual one: such a run is only tried."
    return any(getattr(args, k) != parser.get_default(k) for k in names)

def read_rows(file): return [json.loads(l) for l in file.read_text().splitlines()] if file and file.exists() else []

def add_row(file, row):
    "Append `row` as a line of JSON."
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open('a') as f: f.write(json.dumps(row) + '\n')

def same_run(row, other):
    "Whether two rows are of one run: what was asked is the same, whatever came out."
    keys = 'candidate split seed asked n recipe'.split()
    return json.dumps([row.get(k) for k in keys]) == json.dumps([other.get(k) for k in keys])

def do(name, seed, args, file, ask, run):
    "One run, unless its row is in `file` (None: not recorded): in a process of its own, which adds the row."
    if file and any(same_run(ask(name, seed, args), r) for r in read_rows(file)): return print(f'{name}, seed {seed}: done before')
    if not args.child: return run_alone(name, seed)
    row = run(name, seed, args)
    print(json.dumps(row))
    if file: add_row(file, row)

def cell(v):
    "A value as a table shows it."
    if v is None: return '–'
    return f'{v:,}' if isinstance(v, int) else f'{v:,.2f}' if isinstance(v, float) else str(v)

def table(rows, cols):
    "A markdown table: `cols` maps headings to keys or functions of a row."
    value = lambda row,c: c(row) if callable(c) else row.get(c)
    lines = [list(cols), ['---']*len(cols), *[[cell(value(r, c)) for c in cols.values()] for r in rows]]
    return '\n'.join('| ' + ' | '.join(l) + ' |' for l in lines) + '\n'

def tried(row):
    "A mark for a run on a part of the texts."
    return f" **on {row['n']} texts only**" if row['n'] else ''

def own_settings(row, recipes):
    "How the recipe of `row` differs from the script's, as NAME=VALUE."
    flat = lambda r: {**r, **r.get('model', {})}
    def differ(mine, now, of=''):
        for k in {**now, **mine}:
            a,b = mine.get(k),now.get(k)
            if k == 'text' and a and b: yield from differ(flat(a), flat(b), 'text: ')
            elif k != 'model' and a != b: yield f'{of}{k}={a}'
    return [*differ(flat(row['recipe']), flat(recipes[row['candidate']]))]

def changed(row, recipes):
    "`own_settings` in brackets, nothing where there are none."
    diff = own_settings(row, recipes)
    return f" ({', '.join(diff)})" if diff else ''

def with_means(rows, recipes, cols):
    "`rows` by candidate, each run several times followed by its mean accuracy."
    groups = groupby(sorted(rows, key=lambda r: list(recipes).index(r['candidate'])), lambda r: json.dumps([r.get(k) for k in ('candidate','asked','n','recipe')]))
    for rs in groups.values():
        yield from rs
        if len(rs) > 1: yield {**rs[0], **{k:None for k in cols.values() if isinstance(k, str)}, 'seed':f'mean of {len(rs)}', 'accuracy':statistics.fmean(r['accuracy'] for r in rs)}

def ran_with(rows, env=MALLOC):
    "The machines, versions and commits of `rows`, and the environment of their runs, as lines of a list."
    keys = dict.fromkeys((r['machine'], r['versions'], r['commit'], r['date']) for r in rows)
    lines = [f'- {m}; {v}; commit {c}; {d}\n' for m,v,c,d in keys]
    if env: lines.append('- in the environment of every run: ' + ' '.join(f'`{k}={v}`' for k,v in env.items()) + '\n')
    return ''.join(lines)
