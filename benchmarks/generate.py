"""Tokens per second of generation: this library beside Hugging Face GPT-2 and x-transformers (both with their caches) and the workshop's loop.

One shape for all: 4 layers, d_model 256, 8 heads, vocabulary 10,000, random weights; a prompt of 16 tokens. Needs `pip install -e '.[bench]'`.
The candidates take turns in one process; each figure is a median over the rounds, each ratio the median of the rounds' ratios."""
from peers import *
from x_transformers import AutoregressiveWrapper
from fastai_txf.generate.decode import generate, stream_tokens

PROMPT = 16

# Candidates

def by_hugging_face(n):
    "`GPT2LMHeadModel.generate`, eager, with its cache."
    model = hugging_face().eval().to(DEVICE)
    return lambda x: model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=n, min_new_tokens=n, do_sample=True, top_k=0, pad_token_id=0)

def by_x_transformers(n):
    "`AutoregressiveWrapper.generate` with its cache."
    model = AutoregressiveWrapper(x_transformers()).eval().to(DEVICE)
    return lambda x: torch.cat([x, model.generate(x, n, cache_kv=True, filter_logits_fn=lambda l: l)], 1)

def by_workshop(n):
    "The workshop's loop: the whole text again for each token, its table of positions long enough."
    model = workshop().eval().to(DEVICE)
    def run(x):
        for _ in range(n): x = torch.cat([x, model(x)[:,-1].softmax(-1).multinomial(1)], 1)
        return x
    return run

def library(n, dtype=torch.float32, compile=False, **kw):
    model = ours(**kw).eval().to(DEVICE, dtype)
    return lambda x: generate(model, x, n, compile=compile)

NAMES = {'hf':'Hugging Face GPT-2 `generate`', 'x':'x-transformers `generate`', 'workshop':"the workshop's loop", 'ours':'`generate`, learned positions', 'rotary':'`generate`, rotary positions',
         'bf16':'`generate`, bf16 weights', 'compiled':'`generate(compile=True)`'}

def candidates(n, names):
    make = dict(hf=by_hugging_face, x=by_x_transformers, workshop=by_workshop, ours=library, rotary=lambda n: library(n, positions='rotary'), bf16=lambda n: library(n, torch.bfloat16), compiled=lambda n: library(n, compile=True))
    return {k:make[k](n) for k in names}

# Measuring

@torch.no_grad()
def race(runs, x, rounds, n):
    "Seconds of each run in each round, in turns, and of the call before the first one."
    def checked(f): assert f(x).shape == (len(x), x.shape[1]+n)
    warm = {k:seconds(checked, f) for k,f in runs.items()}
    res = {k:[] for k in runs}
    for _ in range(rounds):
        for k,f in runs.items(): res[k].append(seconds(f, x))
    return res, warm

def bandwidth():
    "Bytes a second that one matrix-vector product reads, from 23 MB of weights as a token does."
    w,x = torch.randn(256, 22_500, device=DEVICE),torch.randn(1, 256, device=DEVICE)
    return w.nbytes/statistics.median(seconds(lambda: x @ w) for _ in range(200))

LONG,GROWTH_ROUNDS = 1010,15 # tokens of a text in which the 1,000th is timed, and how often

def times(model, n, compile):
    "Milliseconds of each of the first `n` tokens of a long text, the prompt's own step left out."
    tokens,res = stream_tokens(model, torch.randint(2, VOCAB, (1,PROMPT), device=DEVICE), LONG, compile=compile),[]
    next(tokens)
    for _ in range(n-1): res.append(1000*seconds(next, tokens))
    tokens.close()
    return res

def rounds_of(models, n, rounds, compile):
    "Milliseconds of each token, `(rounds, models, n-1)`; the models take turns."
    for m in models: times(m, 3, compile) # compiles
    return torch.tensor([[times(m, n, compile) for m in models] for _ in range(rounds)])

def around(ts, i): return ts[...,max(0, i-9):i+8].median(-1)[0] # the i-th new token and its neighbours

# Results

def throughput(args, names, bs):
    "Rows of one race."
    x = torch.randint(2, VOCAB, (bs,PROMPT), device=DEVICE)
    secs,warm = race(candidates(args.n, names), x, args.rounds, args.n)
    read = {k:sum(p.nbytes for p in ours().parameters())*(0.5 if k=='bf16' else 1) for k in names}
    limit = bandwidth()
    for k,ts in secs.items():
        per_s = args.n/statistics.median(ts)
        yield dict(candidate=k, bs=bs, tokens_per_s=round(bs*per_s), ratio=ratio(secs['hf'], ts) if 'hf' in secs else None,
                   limit=per_s*read[k]/limit, first=round(warm[k], 1), rounds=args.rounds, n=args.n, **about(args.threads))

def growth(args, compile):
    "The time of the 1,000th token beside that of the 16th; and of the 16th beside that of a model with a short `max_len`."
    long,short = [ours(max_len=n).eval().to(DEVICE) for n in (2048,64)]
    ts = rounds_of([long], LONG, GROWTH_ROUNDS, compile)[:,0]
    ms_16,ms_1000 = [around(ts, i) for i in (16,1000)]
    ms_16_long,ms_16_short = around(rounds_of([long,short], 40, GROWTH_ROUNDS, compile), 16).median(0)[0].tolist()
    return dict(candidate='growth', compile=compile, ms_16=ms_16.median().item(), ms_1000=ms_1000.median().item(), growth=(ms_1000/ms_16).median().item(),
                ms_16_long=ms_16_long, ms_16_short=ms_16_short, **about(args.threads))

COLS = {'candidate':lambda r: NAMES[r['candidate']], 'batch':'bs', 'tokens/s':'tokens_per_s', 'times Hugging Face':'ratio', "share of the bandwidth limit":lambda r: f"{100*r['limit']:.0f} %", 'seconds of the first call':'first'}

def part(rows):
    "The results of one processor as markdown."
    speed,grown = [r for r in rows if r['candidate'] != 'growth'],[r for r in rows if r['candidate'] == 'growth']
    rounds = {r['bs']:r['rounds'] for r in speed}
    medians = ', '.join(f"{n} with a batch of {bs}" for bs,n in rounds.items())
    res = f"## {rows[0]['machine']}\n\n{speed[0]['n']} new tokens; medians of rounds: {medians}.\n\n{table(speed, COLS)}\n"
    for r in grown: res += f"{'Compiled: t' if r['compile'] else 'T'}he 16th token takes {r['ms_16']:.2f} ms, the 1,000th {r['ms_1000']:.2f} ms ({r['growth']:.2f} times, the median of {GROWTH_ROUNDS} texts). In turns with a model of `max_len=64` the 16th takes {r['ms_16_long']:.3f} ms, that model's {r['ms_16_short']:.3f} ms.\n\n"
    return res + ran_with(rows, env=None)

def render(rows):
    "The results as markdown, a part for each processor."
    return f'# Generation\n\nWritten by `python benchmarks/generate.py`. {LAYERS} layers, d_model {WIDTH}, {HEADS} heads, vocabulary {VOCAB:,}; a prompt of {PROMPT} tokens, new ones ' \
           'sampled from the whole distribution, in rounds in which the candidates take turns. The bandwidth limit is what reading all weights once per step would allow.\n\n' + '\n'.join(map(part, by_machine(rows)))

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument('--only', nargs='+', choices=NAMES, default=list(NAMES), help='candidates')
    p.add_argument('--n', type=int, default=256, help='new tokens')
    p.add_argument('--rounds', type=int, default=7, help='rounds of batch 1; of batch 32 a third')
    p.add_argument('--threads', type=int, default=torch.get_num_threads(), help='threads of torch')
    p.add_argument('--out', type=Path, default=None, help='folder of the results; without it a part of the candidates, or other numbers of tokens and rounds, are only tried')
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = list(throughput(args, args.only, 1))
    tried = unusual(args, p, 'only', 'n', 'rounds')
    args.rounds = max(1, args.rounds//3)
    rows += throughput(args, [k for k in args.only if k != 'workshop'], 32)
    rows += [growth(args, o) for o in (False,True)]
    print(text := render(rows))
    if args.out: record('generate', rows, text, args.out)
    elif not tried: record_machine('generate', rows, render)

if __name__ == '__main__': main()
